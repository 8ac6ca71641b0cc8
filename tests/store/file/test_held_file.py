"""The rows of a file: mapped, or read to memory."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from forks import forked
from page_locking import Registers
from shared_stores import build, sent
from store_files import NUM_ROWS, an_order, make, mixed_rows, small_file
from time_limits import at_most
from update_rows import ALL, fitting

from ibp_gnn import CompressedFeatureStore, FormatError
from ibp_gnn.codec.compressed_rows import CompressedRows
from ibp_gnn.store.file.held_file import HeldFile
from ibp_gnn.store.file.reading import StoreFile
from ibp_gnn.testing import assert_bitwise_equal

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    with at_most(200):
        yield


def test_a_mapped_store_that_is_page_locked_is_mapped_by_workers(registers: Registers, tmp_path: Path) -> None:
    path = tmp_path / "s.ibp"
    build(fitting()).save(path)
    store = CompressedFeatureStore.load(path, pin=True)  # its own copy, in memory
    other = sent(store)
    assert other._held_file is not None and other._held_file._is_mapped and store.page_lock()
    assert_bitwise_equal(other.gather(ALL), fitting())
    store.close()
    assert registers.locked == {}


def test_a_child_forked_while_rows_are_read_to_memory(
    registers: Registers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may be in the middle of it, with a lock of the store's. The child does not wait for it."""
    path, reading, go_on = tmp_path / "s.ibp", threading.Event(), threading.Event()
    build(fitting()).save(path)
    store = CompressedFeatureStore.load(path)
    held, pid = store._held_file, os.getpid()
    assert held is not None and held._is_mapped
    read_rows = held.file.read_rows

    def slowly() -> CompressedRows:
        if os.getpid() == pid:
            reading.set()
            assert go_on.wait(30)
        return read_rows()

    monkeypatch.setattr(held.file, "read_rows", slowly)
    thread = threading.Thread(target=store.page_lock)
    thread.start()
    assert reading.wait(30)

    def work() -> None:
        signal.alarm(10)
        assert store.page_lock() and not held._is_mapped
        assert_bitwise_equal(store.gather(ALL), fitting())

    child = forked(work)
    status = os.waitpid(child, 0)[1]
    go_on.set()
    thread.join()
    assert status == 0 and store.page_lock()
    store.close()


def test_rows_that_were_read_in_vain_go(tmp_path: Path) -> None:
    path = tmp_path / "s.ibp"
    build(fitting()).save(path)
    held = HeldFile(StoreFile(path), "mapped")
    mapped = held.rows
    held.back_to_mapping()  # nothing was read
    assert held.rows is mapped and not held.is_checked
    for _ in range(2):
        read = weakref.ref(held.to_memory().slots)
        assert held.rows is not mapped and held.is_checked
        held.back_to_mapping()
        held.back_to_mapping()
        gc.collect()
        assert held.rows is mapped and read() is None and held._is_mapped
    for place in ("private", "shared"):
        held = HeldFile(StoreFile(path), place)
        rows = held.to_memory()
        held.back_to_mapping()
        assert held.rows is rows
        held.close()


def test_a_mapped_store_is_pickled_by_name(tmp_path: Path) -> None:
    rows = mixed_rows(torch.float32, 300)
    path = make(tmp_path / "s.ibp", rows, order=an_order())
    with CompressedFeatureStore.load(path) as store:
        pickled = pickle.dumps(store)
        assert len(pickled) < 2000
        assert_bitwise_equal(pickle.loads(pickled).gather(torch.arange(NUM_ROWS)), rows)
    make(path, rows[:50])
    with pytest.raises(FormatError, match="want the file that it was when the store was pickled"):
        pickle.loads(pickled)
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(store)


@pytest.mark.parametrize("options", [{}, {"mmap": False}, {"shared": True}, {"verify": "read"}], ids=str)
def test_page_locked_rows_are_in_memory_and_checked(options: dict, tmp_path: Path, registers: Registers) -> None:
    path, rows = small_file(tmp_path)
    store = CompressedFeatureStore.load(path, pin=True, **options)
    held = store.rows
    assert registers.locked == {part.data_ptr(): part.numel() for part in (held.slots, held.overflow)}
    assert_bitwise_equal(store.gather(torch.arange(NUM_ROWS)), rows)
    store.close()
    assert registers.locked == {}
    damaged = bytearray(path.read_bytes())
    with StoreFile(path) as file:
        damaged[file.section("slots").offset + 5] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(FormatError, match="block 0 of section 'slots'"):
        CompressedFeatureStore.load(path, pin=True, **options)
