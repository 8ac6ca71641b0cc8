"""Work in forked processes. It must not hang, and its errors are seen."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any

import torch


def forked(work: Callable[[], object], seconds: int = 60) -> int:
    """Starts `work` in a forked process, which ends with status 0 unless it raises or takes longer. Returns its pid,
    which is to be waited for."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(seconds)
            torch.set_num_threads(1)  # torch's own threads hang in a forked process
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def in_child(work: Callable[[], object], seconds: int = 60) -> Any:
    """What `work` returns in a forked process. Fails where it raises or takes longer."""
    reading, writing = os.pipe()

    def send() -> None:
        answer = pickle.dumps(work())
        with open(writing, "wb") as file:
            file.write(answer)

    pid = forked(send, seconds)
    os.close(writing)
    with open(reading, "rb") as file:
        answer = file.read()
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"the child ended with {status}"
    return pickle.loads(answer)
