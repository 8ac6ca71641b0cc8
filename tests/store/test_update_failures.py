"""An update that fails, wherever it does, changes nothing: in the store, on every GPU and in every cache."""

from __future__ import annotations

import signal

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from update_rows import ALL, ROWS, fitting, raw

from ibp_gnn import CompressedFeatureStore, CompressedGPUCache, PinError, _native
from ibp_gnn.store import updates
from ibp_gnn.testing import assert_bitwise_equal

CALLS = ("scatter_rows", "register_host_memory", "make_gather_plan", "measure", "encode")  # of the CUDA extension


class Injected(RuntimeError):
    pass


class FailsOnce(TorchDispatchMode):
    """The operation of that number fails: torch's, allocations and copies among them, or one of CALLS."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number
        self.called: set[str] = set()  # of CALLS

    def count(self, name: str = "") -> None:
        self.called.add(name)
        self.left -= 1
        if self.left == -1:
            raise Injected

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count()
        return function(*args, **(kwargs or {}))


class CountedCuda:
    """The CUDA extension, whose CALLS may fail."""

    def __init__(self, real: object, failing: FailsOnce) -> None:
        self._real, self._failing = real, failing

    def __getattr__(self, name: str) -> object:
        value = getattr(self._real, name)
        if name not in CALLS:
            return value

        def call(*args: object, **kwargs: object) -> object:
            self._failing.count(name)
            return value(*args, **kwargs)

        return call


def fail_everywhere(
    store: CompressedFeatureStore,
    ids: torch.Tensor,
    rows: torch.Tensor,
    before: torch.Tensor,
    readers: list[CompressedFeatureStore | CompressedGPUCache],
    devices: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[int, set[str]]:
    """Updates again and again, with a failure in another place each time, until there is none. Returns how many there
    were, and which of CALLS were made."""
    after = before.clone()
    after[ids] = rows.cpu()
    failures = 0
    while True:
        failing = FailsOnce(failures)
        with monkeypatch.context() as patched:
            if _native.cuda_is_built():
                counted = CountedCuda(_native.cuda(), failing)
                patched.setattr(_native, "cuda", lambda counted=counted: counted)
            try:
                with failing:
                    store.update(ids, rows)
            except (Injected, PinError):
                done = False
            else:
                done = True
        for reader in readers:
            for device in devices:
                assert_bitwise_equal(reader.gather(ALL, device=device).cpu(), after if done else before)
        if done:
            assert failing.left >= 0, "a failure that nobody saw"
            return failures, failing.called - {""}
        failures += 1


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("layout", ["compact", "inplace"])
def test_on_the_cpu(layout: str, ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fitting()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1)) if ordered else None
    with CompressedFeatureStore.build(before.clone(), layout=layout, order=order, progress=False) as store:
        ids = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2))[:40]
        for rows in (raw(40), fitting()[:40], raw(40, seed=2)):  # the overflow area grows, is left, and used again
            failures, _ = fail_everywhere(store, ids, rows, before, [store], ["cpu"], monkeypatch)
            assert failures > 20
            before[ids] = rows


@pytest.mark.cuda
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("layout", ["compact", "inplace"])
def test_on_a_gpu(layout: str, ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fitting()
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1)) if ordered else None
    with CompressedFeatureStore.build(before.clone(), layout=layout, order=order, progress=False) as store:
        prefix = CompressedGPUCache(store, "99 rows")
        chosen = CompressedGPUCache(store, "99 rows", hot_ids=torch.arange(50, 149))
        ids = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2))[:40]
        readers: list[CompressedFeatureStore | CompressedGPUCache] = [store, prefix, chosen]
        store.gather(ALL, device="cuda")
        calls: set[str] = set()
        for rows in (raw(40), fitting()[:40]):
            failures, called = fail_everywhere(store, ids, rows.cuda(), before, readers, ["cpu", "cuda"], monkeypatch)
            assert failures > 50
            calls |= called
            before[ids] = rows
        assert calls == set(CALLS) - ({"register_host_memory"} if layout == "inplace" else set())
        for reader in readers:
            reader.check()


def test_an_update_that_cannot_be_taken_back_is_told_by_every_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CompressedFeatureStore.build(fitting(), progress=False)
    before = store.gather(ALL)
    calls = []

    def fail(target: torch.Tensor, at: torch.Tensor, rows: torch.Tensor) -> None:
        calls.append(at)
        if len(calls) >= 2:
            raise Injected("no memory")
        target.index_copy_(0, at, rows)

    with monkeypatch.context() as patched:
        patched.setattr(updates, "_scatter", fail)
        with pytest.raises(updates.UndoError, match="could not be written .*no memory.*nor put back .*no memory"):
            store.update(ALL[:3], raw(3))
    for call in (lambda: store.gather(ALL), lambda: store.update(ALL[:3], raw(3)), lambda: store.shape):
        with pytest.raises(RuntimeError, match="this CompressedFeatureStore cannot be used any more: in an update"):
            call()
    store.close()
    assert len(before) == ROWS


@pytest.mark.parametrize("when", ["_scatter", "commit"])
def test_an_interrupt_waits_for_what_cannot_be_left_half_done(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while rows are written, or after they were: the update is whole, and then the interrupt is raised."""
    store = CompressedFeatureStore.build(fitting(), progress=False)
    owner = updates if when == "_scatter" else updates.RowWriter
    real = getattr(owner, when)

    def interrupted(*args: object) -> None:
        signal.raise_signal(signal.SIGINT)
        real(*args)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(owner, when, interrupted)
        store.update(ALL[:9], raw(9))
    wanted = torch.cat([raw(9), fitting()[9:]])
    assert_bitwise_equal(store.gather(ALL), wanted)
    assert store.version == 1
    store.update(ALL[100:140], raw(40, seed=2))  # uses overflow rows that are really free
    wanted[100:140] = raw(40, seed=2)
    assert_bitwise_equal(store.gather(ALL), wanted)


def test_an_error_while_rows_are_written_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CompressedFeatureStore.build(fitting(), progress=False)
    real, calls = updates._scatter, []

    def interrupt(target: torch.Tensor, at: torch.Tensor, rows: torch.Tensor) -> None:
        real(target, at, rows)
        calls.append(at)
        if len(calls) == 2:
            raise Injected

    monkeypatch.setattr(updates, "_scatter", interrupt)
    with pytest.raises(Injected):
        store.update(ALL[:9], raw(9))
    monkeypatch.undo()
    assert_bitwise_equal(store.gather(ALL), fitting())
    assert store.version == 0
    store.update(ALL[:9], raw(9))
    assert_bitwise_equal(store.gather(ALL[:9]), raw(9))
    assert store.version == 1
