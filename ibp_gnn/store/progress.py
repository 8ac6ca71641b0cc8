"""Progress bars of long work."""

from __future__ import annotations

import sys

from tqdm import tqdm

_DELAY_SECONDS = 1.0  # what is done sooner shows no bar


def progress_bar(label: str, num_bytes: int, show: bool | None, *, done_bytes: int = 0) -> tqdm:
    """A context manager; `update(n)` says that n more bytes are done.

    show: True and False as they say. None: where stderr is a terminal, and the work takes longer than a second.
    done_bytes: of them, what earlier work has done.
    """
    if show is None:
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        hidden, delay = not is_terminal, _DELAY_SECONDS
    else:
        hidden, delay = not show, 0.0
    return tqdm(
        total=num_bytes,
        initial=done_bytes,
        desc=label,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        delay=delay,
        disable=hidden,
    )
