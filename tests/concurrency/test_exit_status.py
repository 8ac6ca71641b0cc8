"""Ctrl-C and readers that have seen enough, of commands as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ibp_gnn
from ibp_gnn.concurrency.exit_status import exit_status

PROGRAM = """
import sys, time
from ibp_gnn.concurrency.exit_status import exit_status
def run():
    print("ready", flush=True)
    {body}
sys.exit(exit_status(run, lambda line: print("name:", line, file=sys.stderr)))
"""


def start(body: str) -> subprocess.Popen[str]:
    paths = [str(Path(ibp_gnn.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", PROGRAM.format(body=body)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_status_of_the_work() -> None:
    assert exit_status(lambda: None, print) == 0
    assert exit_status(lambda: 2, print) == 2
    with pytest.raises(ValueError, match="of the work"):
        exit_status(lambda: int("of the work"), print)


def test_ctrl_c() -> None:
    with start("time.sleep(60)") as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, "name: interrupted; run it again to go on\n")


@pytest.mark.parametrize("lines", [3, 100_000])
def test_a_reader_that_has_seen_enough(lines: int) -> None:
    with start(f"time.sleep(0.5)\n    for _ in range({lines}): print('line')") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
