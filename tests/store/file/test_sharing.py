"""load(shared=True): one copy of a file's rows for all processes."""

from __future__ import annotations

import errno
import fcntl
import gc
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from forks import forked
from shared_stores import build, descriptors
from store_files import NUM_ROWS, an_order, environment, make, mixed_rows, small_file
from time_limits import at_most
from update_rows import ALL, fitting

from ibp_gnn import CompressedFeatureStore, FormatError
from ibp_gnn.store.file import sharing
from ibp_gnn.store.file.reading import StoreFile
from ibp_gnn.testing import assert_bitwise_equal

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    with at_most(200):
        yield


def test_a_full_shared_memory_is_noticed_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path, folder = tmp_path / "s.ibp", tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(sharing, "FOLDER", folder)
    build(fitting()).save(path)
    open_before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(OSError, match=r"want \d+ bytes of shared memory, got \d+ free \(.*No space left"):
            CompressedFeatureStore.load(path, shared=True)
    gc.collect()
    assert descriptors() == open_before and not list(folder.iterdir())
    with CompressedFeatureStore.load(path, shared=True) as store:
        assert_bitwise_equal(store.gather(ALL), fitting())


def test_a_forked_child_does_not_keep_the_lock_of_a_copy_that_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third process that has opened the copy before it was removed sees that, and makes another one."""
    folder, path = tmp_path / "shm", tmp_path / "s.ibp"
    folder.mkdir()
    monkeypatch.setattr(sharing, "FOLDER", folder)
    build(fitting()).save(path)
    store = CompressedFeatureStore.load(path, shared=True)
    (name,) = folder.iterdir()
    opened = os.open(name, os.O_RDWR)
    pid = forked(lambda: signal.pause())
    try:
        store.close()
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)  # raises if the child has the lock
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(opened)
    assert not list(folder.iterdir())


def test_a_copy_that_cannot_be_removed_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, path = tmp_path / "shm", tmp_path / "s.ibp"
    folder.mkdir()
    monkeypatch.setattr(sharing, "FOLDER", folder)
    build(fitting()).save(path)
    open_before = descriptors()
    store = CompressedFeatureStore.load(path, shared=True)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(PermissionError):
            store.close()
    del store
    gc.collect()
    assert descriptors() == open_before


def _load_shared(path: Path, queue: object, wait: object) -> None:
    with CompressedFeatureStore.load(path, shared=True) as store:
        got = store.gather(torch.arange(NUM_ROWS)).numpy().tobytes()
        queue.put((got, os.stat(store._held_file._shared._fd).st_ino))  # type: ignore[attr-defined, union-attr]
        wait.wait(60)  # type: ignore[attr-defined]


def test_processes_share_one_copy(tmp_path: Path) -> None:
    rows = mixed_rows(torch.float32, 33)
    path = make(tmp_path / "s.ibp", rows, order=an_order())
    context = multiprocessing.get_context("spawn")
    queue, wait = context.Queue(), context.Event()
    children = [context.Process(target=_load_shared, args=(path, queue, wait)) for _ in range(2)]
    for child in children:
        child.start()
    answers = [queue.get(timeout=120) for _ in children]
    assert [got for got, _ in answers] == [rows.numpy().tobytes()] * 2
    assert answers[0][1] == answers[1][1]
    with CompressedFeatureStore.load(path, shared=True) as store:
        assert store._held_file is not None and store._held_file._shared is not None
        shared = store._held_file._shared.path
        assert os.stat(shared).st_ino == answers[0][1]
        assert_bitwise_equal(store.gather(torch.arange(NUM_ROWS)), rows)
        wait.set()
        for child in children:
            child.join(timeout=60)
            assert child.exitcode == 0
        assert shared.exists()
        assert_bitwise_equal(pickle.loads(pickle.dumps(store)).gather(torch.arange(NUM_ROWS)), rows)
    assert not shared.exists()


def test_a_copy_left_half_filled_is_filled_again(tmp_path: Path) -> None:
    rows = mixed_rows(torch.float32, 33)
    path = make(tmp_path / "s.ibp", rows)
    store = CompressedFeatureStore.load(path, shared=True)
    assert store._held_file is not None and store._held_file._shared is not None
    shared = store._held_file._shared.path
    size = shared.stat().st_size
    store.close()
    for left in (b"", bytes(size), b"\1" * (size // 2)):
        shared.write_bytes(left)
        shared.chmod(0o600)
        with CompressedFeatureStore.load(path, shared=True) as store:
            assert_bitwise_equal(store.gather(torch.arange(NUM_ROWS)), rows)
    assert not shared.exists()


def test_a_damaged_file_is_not_shared(tmp_path: Path) -> None:
    path, _ = small_file(tmp_path)
    damaged = bytearray(path.read_bytes())
    with StoreFile(path) as file:
        damaged[file.section("slots").offset + 5] ^= 1
    path.write_bytes(damaged)
    for _ in range(2):
        with pytest.raises(FormatError, match="block 0 of section 'slots'"):
            CompressedFeatureStore.load(path, shared=True)
    assert not list(sharing.FOLDER.glob("ibp_gnn-*"))


def test_shared_memory_that_others_fill_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There seemed to be room, and then there is none: an error, not a signal."""
    path = make(tmp_path / "s.ibp", mixed_rows(torch.float32, 33))
    fallocate, asked = os.posix_fallocate, []

    def full(fd: int, offset: int, length: int) -> None:
        asked.append((os.fstat(fd).st_size, offset, length))
        fallocate(fd, offset, 8192)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="want [0-9]+ bytes of shared memory, got [0-9]+ free") as caught:
            CompressedFeatureStore.load(path, shared=True)
        assert caught.value.errno == errno.ENOSPC
    ((size, offset, length),) = asked
    with StoreFile(path) as file:
        assert (size, offset) == (0, 0), "reserved before it is long enough to be written to"
        assert length > sum(file.section(name).nbytes for name in ("bitmask", "slots", "overflow"))
    assert not list(sharing.FOLDER.glob("ibp_gnn-*"))
    with CompressedFeatureStore.load(path, shared=True) as store:
        assert_bitwise_equal(store.gather(torch.arange(NUM_ROWS)), mixed_rows(torch.float32, 33))


def test_a_full_tmpfs_is_an_error_and_no_signal(tmp_path: Path) -> None:
    """In a process of its own, which SIGBUS would kill; its free space is asked for before others fill it."""
    folder = tmp_path / "shm"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "none", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("wants to mount a small tmpfs")
    try:
        make(tmp_path / "s.ibp", mixed_rows(torch.float32, 33))
        program = (
            "import sys; from pathlib import Path; import ibp_gnn; from ibp_gnn.store.file import sharing, writing\n"
            "sharing.FOLDER = Path(sys.argv[2]); writing.free_bytes = lambda folder: 1 << 40\n"
            "try: ibp_gnn.CompressedFeatureStore.load(sys.argv[1], shared=True)\n"
            "except OSError as error: print(error)"
        )
        command = [sys.executable, "-c", program, str(tmp_path / "s.ibp"), str(folder)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (done.returncode, done.stderr)
        assert "bytes of shared memory, got " in done.stdout
        assert os.listdir(folder) == []
    finally:
        subprocess.run(["umount", str(folder)], check=True)
