"""How commands and scripts end: after Ctrl-C, and where nobody reads on, without a traceback."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

INTERRUPTED = "interrupted; run it again to go on"
INTERRUPTED_STATUS = 130  # as shells have it: 128 + SIGINT


def exit_status(run: Callable[[], int | None], say: Callable[[str], None]) -> int:
    """What `run` returns, 0 for None. Ctrl-C: one line, 130. A reader of standard output that has seen enough, such as
    `head`: 0. say: prints a line for a person."""
    try:
        status = run() or 0
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C, while Python ends, has no traceback either
        say(INTERRUPTED)
        return INTERRUPTED_STATUS
    except BrokenPipeError:
        # Python flushes standard output once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
