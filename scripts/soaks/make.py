"""Stores at random, and rows for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ibp_gnn import Codec, CompressedFeatureStore
from ibp_gnn.testing import oracle, oracle_dict
from ibp_gnn.testing.bits import KINDS, special_rows

DTYPES = (
    torch.float32,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
)


def some_rows(rng: random.Random, dtype: torch.dtype, width: int, count: int) -> torch.Tensor:
    """[count, width]; parts of them of different kinds."""
    parts: list[torch.Tensor] = []
    left = count
    while left > 0:
        n = min(left, rng.randint(1, count))
        if dtype.is_floating_point and dtype.itemsize > 1 and rng.random() < 0.5:
            generator = torch.Generator().manual_seed(rng.getrandbits(40))
            part = torch.randn(n, width, generator=generator).to(dtype)
            if rng.random() < 0.3:
                part = part.relu()
        else:
            part = special_rows(dtype, width, rng.choice(KINDS), n, seed=rng.getrandbits(30))
        parts.append(part)
        left -= n
    return torch.cat([part.view(torch.uint8) for part in parts]).view(dtype)


def some_features(rng: random.Random) -> torch.Tensor:
    dtype = rng.choice(DTYPES)
    width = rng.choice([1, 2, 3, 16, 33, 50, 100, 128, 129, 256, rng.randint(1, 700)])
    most = min(60_000, (8 << 20) // (width * dtype.itemsize))
    count = rng.choice([1, 31, 32, 33, rng.randint(1, most), rng.randint(1, most)])
    return some_rows(rng, dtype, width, min(count, most))


def some_ids(rng: random.Random, num_rows: int, most: int) -> torch.Tensor:
    """int32 or int64 [0 to most], with repeats."""
    count = rng.choice([0, 1, rng.randint(0, 50), rng.randint(0, most), rng.randint(0, most)])
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    ids = torch.randint(num_rows, (count,), generator=generator)
    return ids.to(rng.choice([torch.int32, torch.int64]))


def some_store(rng: random.Random, features: torch.Tensor) -> CompressedFeatureStore:
    codec: Any = rng.choice(["auto", "ibp", "dict"])
    if rng.random() < 0.3:
        codec = Codec.fit(features[: rng.randint(1, len(features))], codec=codec)
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    order = torch.randperm(len(features), generator=generator) if rng.random() < 0.4 else None
    return CompressedFeatureStore.build(
        features,
        codec,
        layout=rng.choice(["compact", "compact", "inplace"]),
        order=order,
        chunk_rows=rng.choice([None, None, 32, 1000]),
        progress=False,
    )


def through_a_file(
    rng: random.Random, store: CompressedFeatureStore, path: Path
) -> tuple[CompressedFeatureStore, bool]:
    """Saved, and loaded in one of the ways. Returns it, and whether it can be updated."""
    way: dict[str, Any] = rng.choice([{}, {"mmap": False}, {"mmap": False}, {"shared": True}, {"verify": "read"}])
    store.save(path)
    return CompressedFeatureStore.load(path, progress=False, **way), way == {"mmap": False}


def oracle_reader(store: CompressedFeatureStore) -> Callable[[list[int]], torch.Tensor]:
    """store: that nobody updates. Returns what decodes rows with the oracle: uint8 [n, row_bytes]."""
    rows, form = store.rows, store.codec.form
    encoded = oracle.Encoded(rows.slots.numpy(), rows.bitmask.numpy(), rows.overflow.numpy())

    def read(ids: list[int]) -> torch.Tensor:
        slots = store.to_slots(torch.tensor(ids)).numpy()
        if store.codec.kind == "dict":
            got = oracle_dict.decode(*encoded, rows.slot_bytes, rows.num_rows, form, slots)  # type: ignore[arg-type]
        else:
            words: Any = form
            masks = words.mask_bytes, words.bitval_bytes, words.word_bits * words.words_per_chunk
            got = oracle.decode(*encoded, rows.slot_bytes, rows.num_rows, *masks, slots)
        return torch.from_numpy(got)

    return read
