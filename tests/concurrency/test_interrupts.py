"""uninterrupted(): signals that come inside are handled at its end."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest
from time_limits import at_most

from ibp_gnn.concurrency.interrupts import uninterrupted


class Interrupt(BaseException):
    pass


def interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupt(number)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGVTALRM)}
    with at_most(30):
        signal.signal(signal.SIGUSR1, interrupt)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)


def all_handlers() -> dict[int, object]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_inside_is_handled_at_the_end(number: int) -> None:
    before, done = all_handlers(), []
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else Interrupt):
        with uninterrupted():
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
            done.append(1)
    assert done == [1] and all_handlers() == before
    with uninterrupted():
        pass  # it was handled once


def test_without_a_signal_nothing_changes() -> None:
    before = all_handlers()
    with uninterrupted():
        assert signal.getsignal(signal.SIGINT) != before[signal.SIGINT]
    assert all_handlers() == before
    with pytest.raises(KeyError):
        with uninterrupted():
            raise KeyError
    assert all_handlers() == before


def test_an_error_inside_is_the_interrupts_context() -> None:
    with pytest.raises(Interrupt) as caught:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGUSR1)
            raise KeyError("inside")
    assert isinstance(caught.value.__context__, KeyError)


def test_several_signals_are_all_handled() -> None:
    handled = []

    def note(number: int, frame: FrameType | None) -> None:
        handled.append(number)
        raise Interrupt(number)

    numbers = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGVTALRM]
    for number in numbers:
        signal.signal(number, note)
    before = all_handlers()
    with pytest.raises(Interrupt):
        with uninterrupted():
            for number in numbers:
                os.kill(os.getpid(), number)
            assert handled == []
    assert sorted(handled) == sorted(numbers) and all_handlers() == before


def test_nested() -> None:
    before, reached = all_handlers(), []
    with pytest.raises(Interrupt):
        with uninterrupted():
            with uninterrupted():
                os.kill(os.getpid(), signal.SIGUSR1)
            reached.append("after the inner one")
    assert reached and all_handlers() == before


def test_from_a_moment_on() -> None:
    """What is left before the outer block ends is left before the handler raises."""
    before, done = all_handlers(), []
    with pytest.raises(Interrupt):
        with uninterrupted(at_once=False) as signals:
            try:
                assert all_handlers() == before
                signals.put_off()
                signals.put_off()
                os.kill(os.getpid(), signal.SIGUSR1)
            finally:
                done.append("left")
            done.append("whole")
    assert done == ["left", "whole"] and all_handlers() == before
    with uninterrupted(at_once=False):
        with pytest.raises(Interrupt):
            os.kill(os.getpid(), signal.SIGUSR1)


def test_left_unhandled() -> None:
    before, signals = all_handlers(), uninterrupted()
    with signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals.leave_unhandled() == [signal.SIGUSR1]
        assert all_handlers() == before
    assert all_handlers() == before


def test_a_handler_that_is_set_inside_stays() -> None:
    with uninterrupted():
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN


def test_other_handlers_stay_as_they_are() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    with uninterrupted():
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL


def test_in_another_thread_nothing_is_put_off() -> None:
    inside, leave, before = threading.Event(), threading.Event(), all_handlers()

    def hold() -> None:
        with uninterrupted():
            inside.set()
            leave.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(20)
    try:
        with pytest.raises(Interrupt):
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        leave.set()
        thread.join()
    assert all_handlers() == before


def test_a_signal_that_another_thread_takes() -> None:
    done = []
    with pytest.raises(Interrupt):
        with uninterrupted():
            thread = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))
            thread.start()
            thread.join()
            done.append(1)
    assert done == [1]


@pytest.mark.parametrize("nested", [False, True])
def test_signals_at_any_moment(nested: bool) -> None:
    """Real ones, one a round, before, inside and after: the inside is whole or has not begun, each signal is handled
    once, and the handlers are back."""
    handled, randoms, cut, whole = [], random.Random(0), 0, 0

    def note(number: int, frame: FrameType | None) -> None:
        handled.append(number)
        raise Interrupt

    limit = signal.signal(signal.SIGALRM, note)
    before, deadline = all_handlers(), time.monotonic() + 1.0
    gc.collect()
    gc.disable()  # what is raised while it calls somebody back is lost
    try:
        while time.monotonic() < deadline:
            handled.clear()
            steps = 0
            with pytest.raises(Interrupt):
                signal.setitimer(signal.ITIMER_REAL, randoms.uniform(1e-6, 200e-6))
                with uninterrupted():
                    steps += 1
                    if nested:
                        with uninterrupted():
                            steps += 1
                    for _ in range(randoms.randrange(300)):
                        steps += 0
                    steps += 1
                while time.monotonic() < deadline + 20:  # until it comes
                    pass
            assert len(handled) == 1 and steps in (0, 2 + nested)
            assert all_handlers() == before
            cut += not steps
            whole += steps > 0
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, limit)
    assert cut > 5 and whole > 20
