"""Ctrl-C, and other signals whose Python handlers raise, only at moments that suit."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = tuple(signal.valid_signals())


class uninterrupted:  # a context manager, named like those of contextlib
    """`with uninterrupted():` puts off what Python's signal handlers do, such as raising KeyboardInterrupt, to its end.
    A signal that comes several times is handled once.

    Python runs its handlers in the main thread alone, whichever thread a signal goes to. So nothing is done in other
    threads, and handlers are replaced in the main one; blocking the signals there would leave them to other threads.
    Handlers that are not Python's (SIG_DFL, SIG_IGN, those of C code) stay as they are. Nothing should wait inside.
    """

    def __init__(self, *, at_once: bool = True) -> None:
        """at_once: or from `put_off` on: `with uninterrupted(at_once=False) as signals, lock: ... signals.put_off()`.
        Then the lock is left, too, before a handler raises."""
        self._at_once = at_once
        self._handlers: dict[int, Any] = {}  # those that are, or are to be, replaced
        self._came: dict[int, tuple[Any, FrameType | None]] = {}

    def __enter__(self) -> uninterrupted:
        if self._at_once:
            self.put_off()
        return self

    def put_off(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        try:
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler) and number not in self._handlers:
                    self._handlers[number] = handler
                    signal.signal(number, self._remember)
        except BaseException:  # of a handler that was yet to be replaced
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        """Any step may raise once the first handler is back; what is left is done then, too."""
        try:
            self._put_back()
            while self._came:
                number, (handler, frame) = self._came.popitem()
                handler(number, frame)
        except BaseException:
            self.__exit__()
            raise

    def leave_unhandled(self) -> list[int]:
        """Instead of the end. Returns the signals that came; nobody has handled them."""
        try:
            self._put_back()
        except BaseException:
            self._put_back()
            raise
        came = list(self._came)
        self._came.clear()
        return came

    def _put_back(self) -> None:
        while self._handlers:
            number, handler = next(iter(self._handlers.items()))
            if signal.getsignal(number) == self._remember:  # else it was replaced inside
                signal.signal(number, handler)
            del self._handlers[number]

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._came.setdefault(number, (self._handlers[number], frame))
