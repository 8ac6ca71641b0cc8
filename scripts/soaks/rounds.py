"""One round of the soak: a store, and threads and processes that read, update, save, send, fork, cache, drop and close
it at the same time. Everything is drawn from the round's seed."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import ibp_gnn
from ibp_gnn import CompressedFeatureStore, CompressedGPUCache, Prefetcher, _native

from . import make
from .failures import ALLOCATION_ERRORS, NoMemory, failing_after, limit_memory
from .readers import SpawnedReader, forked, wait_for
from .truth import Truth

_MOST_BYTES = 4 << 20  # of a gather
_MOST_UPDATES = 40  # whose versions are all kept
_PATHS = ("", "scalar", "avx2", "avx512")


class Round:
    """`run` raises Difference, or whatever else went wrong. counts: of what was done."""

    def __init__(self, seed: int, index: int, threads: int, device: str, spawned: SpawnedReader) -> None:
        """device: "cpu", or "cuda" for both."""
        self._name = f"{seed}/{index}"
        self._rng = self._random("round")
        self._threads, self._devices, self._spawned = threads, ["cpu", "cuda"] if device == "cuda" else ["cpu"], spawned
        self.counts: Counter[str] = Counter()
        self.values = 0
        self._stop = threading.Event()
        self._closing: set[int] = set()  # ids of sources that somebody closes
        self._caches: list[CompressedGPUCache] = []
        self._errors: list[BaseException] = []

    def _random(self, of: str) -> random.Random:
        return random.Random(f"{self._name}/{of}")

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ibp_soak_") as folder:
            self._folder = Path(folder)
            try:
                self._run()
            finally:
                self._caches.clear()

    def _run(self) -> None:
        rng = self._rng
        _native.cpu_path = rng.choice([path for path in _PATHS if _has(path)])
        features = make.some_features(rng)
        self._store, self._updates = make.some_store(rng, features), True
        self._truth = Truth(features.clone())
        if rng.random() < 0.5:
            self._store, self._updates = make.through_a_file(rng, self._store, self._folder / "rows.ibp")
        threads = [self._start(self._read, f"reader{n}") for n in range(self._threads)]
        if self._updates:
            threads.append(self._start(self._update, "writer"))
        try:
            for _ in range(rng.randint(3, 8)):
                if self._errors:
                    break
                action = rng.choice(self._actions())
                self.counts[action.__name__.strip("_")] += 1
                action(rng)
            self._end(rng)
        except BaseException as error:
            self._errors.insert(0, error)
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(300)
                if thread.is_alive():
                    self._errors.append(AssertionError(f"thread {thread.name} hangs"))
        self.values = self._truth.values
        if self._errors:
            raise self._errors[0]
        if rng.random() < 0.5:
            self._store.close()

    def _actions(self) -> list[Callable[[random.Random], None]]:
        actions = [self._save, self._fork, self._fork_with_little_memory, self._send, self._copy, self._ask_oracle]
        actions += [self._fail_to_save, self._rest]
        if "cuda" in self._devices:
            actions += [self._make_cache, self._make_cache, self._drop_cache, self._drop_under_kernels]
        return actions

    def _start(self, work: Callable[[random.Random], None], name: str) -> threading.Thread:
        def run() -> None:
            try:
                work(self._random(name))
            except BaseException as error:
                self._errors.append(error)
                self._stop.set()

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    # --- threads

    def _read(self, rng: random.Random) -> None:
        stream = torch.cuda.Stream() if "cuda" in self._devices else None
        while not self._stop.is_set():
            caches = list(self._caches)
            source: Any = rng.choice([self._store, *caches, *caches])
            device = rng.choice(self._devices)
            with self._unless_closed(source):
                with torch.cuda.stream(stream) if device == "cuda" and rng.random() < 0.7 else contextlib.nullcontext():
                    rng.choice([self._gather, self._gather, self._gather, self._index, self._prefetch, self._fail])(
                        rng, source, device
                    )
            if id(self._store) in self._closing:
                return

    @contextlib.contextmanager
    def _unless_closed(self, source: Any) -> Iterator[None]:
        """A source that somebody closes may say so, and nothing else."""
        try:
            yield
        except ValueError as error:
            if not {id(source), id(self._store)} & self._closing or "closed" not in str(error):
                raise

    def _ids(self, rng: random.Random) -> torch.Tensor:
        row_bytes = self._store.codec.row_bytes
        return make.some_ids(rng, len(self._truth.rows), max(1, min(200_000, _MOST_BYTES // row_bytes)))

    def _gather(self, rng: random.Random, source: Any, device: str) -> None:
        ids = self._ids(rng)
        given = ids.to(device) if rng.random() < 0.5 else ids
        out = None
        if rng.random() < 0.3:
            out = torch.empty(len(ids), *self._truth.rows.shape[1:], dtype=self._truth.rows.dtype, device=device)
        since = self._truth.committed
        got = source.gather(given, device=device, out=out)
        self._truth.compare(got, ids, since, f"gather of {len(ids)} to {device} from {source!r}")
        self.counts[f"gathers to {device}"] += 1

    def _index(self, rng: random.Random, source: Any, device: str) -> None:
        first = rng.randrange(len(self._truth.rows))
        count = rng.randint(1, 100)
        since = self._truth.committed
        got = source[first : first + count]
        ids = torch.arange(first, min(first + count, len(self._truth.rows)))
        self._truth.compare(got, ids, since, f"index {first}:{first + count} of {source!r}")

    def _prefetch(self, rng: random.Random, source: Any, device: str) -> None:
        batches = [self._ids(rng) for _ in range(rng.randint(1, 4))]
        leave_at = rng.randint(0, 4)
        with Prefetcher(batches, source, device=device, lookahead=rng.randint(1, 3)) as prefetcher:
            since = self._truth.committed
            for at, (ids, got) in enumerate(prefetcher):
                # The rows of the moment of the yield.
                self._truth.compare(got, ids, since, f"prefetch to {device} from {source!r}")
                since = self._truth.committed
                if at == leave_at:
                    break
        self.counts["prefetches"] += 1

    def _fail(self, rng: random.Random, source: Any, device: str) -> None:
        try:
            with failing_after(rng.randint(0, 6)):
                self._gather(rng, source, device)
        except NoMemory:
            self.counts["failed gathers"] += 1

    def _update(self, rng: random.Random) -> None:
        num_rows, width = self._truth.rows.shape
        for _ in range(_MOST_UPDATES):
            if self._stop.wait(rng.random() * 0.05):
                return
            count = rng.choice([1, 1, rng.randint(0, 40), rng.randint(0, max(1, num_rows // 4))])
            generator = torch.Generator().manual_seed(rng.getrandbits(40))
            ids = torch.randperm(num_rows, generator=generator)[:count]
            rows = make.some_rows(rng, self._truth.rows.dtype, width, len(ids)) if len(ids) else self._truth.rows[:0]
            self._truth.begin(ids, rows)
            fails = rng.random() < 0.3
            try:
                with failing_after(rng.randint(0, 60)) if fails else contextlib.nullcontext():
                    self._store.update(ids, rows)
            except NoMemory:
                self._truth.take_back()
                self.counts["failed updates"] += 1
            except ValueError as error:
                if id(self._store) not in self._closing or "closed" not in str(error):
                    raise
                return
            else:
                self._truth.commit()
                self.counts["updates"] += 1
            with self._unless_closed(self._store):
                self._truth.compare(self._store.gather(ids), ids, self._truth.committed, "gather after an update")

    # --- what one thread does meanwhile

    def _all_ids(self) -> torch.Tensor:
        return torch.arange(len(self._truth.rows))

    def _save(self, rng: random.Random) -> None:
        since = self._truth.committed
        loaded, _ = make.through_a_file(rng, self._store, self._folder / "saved.ibp")
        with loaded:
            self._truth.compare(loaded.gather(self._all_ids()), self._all_ids(), since, "a store that was saved")

    def _fail_to_save(self, rng: random.Random) -> None:
        folder, since = self._folder / "failed", self._truth.committed
        folder.mkdir(exist_ok=True)
        try:
            with failing_after(rng.randint(0, 10)):
                self._store.save(folder / "store.ibp")
        except NoMemory:
            assert not os.listdir(folder), f"want no file of a save that failed, got {os.listdir(folder)}"
            return
        with CompressedFeatureStore.load(folder / "store.ibp", progress=False) as loaded:
            self._truth.compare(loaded.gather(self._all_ids()), self._all_ids(), since, "a store that was saved")
        (folder / "store.ibp").unlink()

    def _copy(self, rng: random.Random) -> None:
        since = self._truth.committed
        made = copy.deepcopy(self._store) if rng.random() < 0.5 else pickle.loads(pickle.dumps(self._store))
        self._truth.compare(made.gather(self._all_ids()), self._all_ids(), since, "a copy")

    def _ask_oracle(self, rng: random.Random) -> None:
        made = pickle.loads(pickle.dumps(self._store))
        ids = [rng.randrange(len(made)) for _ in range(20)]
        wanted = make.oracle_reader(made)(ids)
        got = made.gather(torch.tensor(ids)).reshape(len(ids), -1).view(torch.uint8)
        ibp_gnn.testing.assert_bitwise_equal(got, wanted)

    def _fork(self, rng: random.Random) -> None:
        """Children read what was there at the fork, or, of shared rows, what is there now."""
        children = [forked(lambda: self._read_in_child(rng)) for _ in range(rng.randint(1, 2))]
        for child in children:
            wait_for(child)

    def _read_in_child(self, rng: random.Random) -> None:
        self._truth.after_fork_in_child()
        shared = self._store._shared is not None  # whose updates the child sees, but not their rows
        for _ in range(6):
            before = self._store.version
            ids = self._ids(rng)
            got = self._store.gather(ids)
            if not shared or self._store.version == before == self._version_at_fork():
                self._truth.compare(got, ids, self._truth.committed, "gather in a forked process")

    def _version_at_fork(self) -> int:
        return self._truth.committed if self._truth.failed == 0 else -1

    def _fork_with_little_memory(self, rng: random.Random) -> None:
        more_bytes = rng.choice([0, 1 << 16, 1 << 20, 4 << 20, 16 << 20, 64 << 20])

        def work() -> None:
            self._truth.after_fork_in_child()
            limit_memory(more_bytes)
            for _ in range(10):
                with contextlib.suppress(*ALLOCATION_ERRORS):
                    ids = self._ids(rng)
                    got = self._store.gather(ids)
                    if self._store._shared is None:
                        self._truth.compare(got, ids, self._truth.committed, "gather in a process with little memory")

        wait_for(forked(work))

    def _send(self, rng: random.Random) -> None:
        """To a spawned process; rows in memory are shared with it from then on."""
        self._spawned.ask(self._store)
        for _ in range(rng.randint(1, 5)):
            ids = self._ids(rng)
            since = self._truth.committed
            got = self._spawned.ask(ids)
            self._truth.compare(got, ids, since, "gather in a spawned process")
        self._spawned.ask("drop")

    def _rest(self, rng: random.Random) -> None:
        time.sleep(rng.random())

    # --- GPUs

    def _make_cache(self, rng: random.Random) -> None:
        num_rows = len(self._truth.rows)
        hotness = torch.rand(num_rows, generator=torch.Generator().manual_seed(rng.getrandbits(40)))
        made = CompressedGPUCache(
            self._store,
            f"{rng.randint(1, num_rows)} rows",
            hotness=hotness if rng.random() < 0.6 else None,
        )
        self._caches.append(made)

    def _drop_cache(self, rng: random.Random) -> None:
        if not self._caches:
            return
        cache = self._caches.pop(rng.randrange(len(self._caches)))
        if rng.random() < 0.5:
            self._closing.add(id(cache))
            cache.close()

    def _drop_under_kernels(self, rng: random.Random) -> None:
        """Gathers wait behind a busy stream, and run when what they read belongs to nobody else."""
        self._make_cache(rng)
        cache = self._caches.pop()
        streams = [torch.cuda.Stream() for _ in range(rng.randint(1, 3))]
        fetched = []
        for stream in streams:
            ids = self._ids(rng)
            since = self._truth.committed
            given = ids.to("cuda")
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(rng.randint(0, 40_000_000))
                fetched.append((cache.gather(given), ids, since))
        if rng.random() < 0.5:
            self._closing.add(id(cache))
            cache.close()
        del cache
        torch.empty(1 << 22, dtype=torch.uint8, device="cuda").fill_(0xA5)  # where it was
        for stream, (got, ids, since) in zip(streams, fetched, strict=True):
            stream.synchronize()
            self._truth.compare(got, ids, since, "gather whose cache was dropped")

    def _end(self, rng: random.Random) -> None:
        if rng.random() < 0.5:  # while others read and update
            self._closing.add(id(self._store))
            self._store.close()


def _has(path: str) -> bool:
    row, length = torch.zeros(1, 1, dtype=torch.uint8), torch.zeros(1, dtype=torch.int32)
    form = ibp_gnn.Codec.fit(row, codec="ibp").form
    try:
        _native.cpu.measure(form.native, row, length, 1, path)
    except ValueError:
        return False
    return True
