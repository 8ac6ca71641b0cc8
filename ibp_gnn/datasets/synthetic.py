"""Generated data sets in the shapes of OGB's, for benchmarks: their times and sizes mean something, their accuracy does
not.

Graph: both ends of every edge are drawn independently, node v with a probability that falls as a power of its rank, so
that degrees follow a power law; which node has which rank is random. No self loops; an edge may be there twice.

Features: every row copies signs, exponents and the upper mantissa bits from real rows, so that what a lossless codec
can save is what it saves on the real matrix; lower mantissa bits are random, so that no two rows are equal and none is
easier to compress than measured mantissas are. In detail, a row of width d is put together from rows of the real
matrix drawn at random, one for each (real width) columns, column by column below its own; of each value the sign, the
exponent and KEPT_MANTISSA_BITS stay. Bits that are zero in the whole real matrix stay zero, and so do zeros, infinities
and NaNs stay what they are.

Labels and split are uniformly random. The same arguments give the same bits, whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .node_dataset import DatasetError, NodeDataset

KEPT_MANTISSA_BITS = 3
"""float32 so gets 20 random bits of 23, float16 7 of 10, bfloat16 4 of 7."""

_BLOCK = 1 << 16  # rows, or edges: bounds the temporaries; a random stream of its own each
_GRAPH, _RANKS, _FEATURES, _LABELS, _SPLIT = range(5)


@dataclass(frozen=True)
class Shape:
    """The numbers of a real data set, at scale 1."""

    num_nodes: int
    num_edges: int
    """As published: undirected (each is then there both ways) or directed."""
    undirected: bool
    width: int
    num_classes: int
    num_train: int
    num_val: int
    num_test: int
    exponent: float
    """A node of rank r has an expected degree that falls as r ** -exponent."""


SHAPES = {
    "products": Shape(2_449_029, 61_859_140, True, 100, 47, 196_615, 39_323, 2_213_091, 0.5),
    "papers": Shape(111_059_956, 1_615_685_872, False, 128, 172, 1_207_179, 125_265, 214_338, 0.5),
}
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class _FloatBits:
    signed: torch.dtype
    numpy: type[np.unsignedinteger]
    mantissa_bits: int
    exponent_mask: int


_BITS = {
    torch.float32: _FloatBits(torch.int32, np.uint32, 23, 0x7F80_0000),
    torch.float16: _FloatBits(torch.int16, np.uint16, 10, 0x7C00),
    torch.bfloat16: _FloatBits(torch.int16, np.uint16, 7, 0x7F80),
}


def load_synthetic(
    shape: str, real: Tensor, *, scale: float = 1.0, dtype: str = "float32", seed: int = 0
) -> NodeDataset:
    """Generates a data set named "synthetic-<shape>", with its scale if that is not 1.

    shape: one of SHAPES. real: floating point [r, d], r >= 1, whose exponents the features follow; converted to dtype
    first. scale: of the numbers of nodes and edges, in (0, 1]. dtype: one of DTYPES.
    At scale 1, products takes 3 GB of memory (2 for the edges), papers 83 GB (26 for the edges).
    Raises DatasetError for other arguments.
    """
    if shape not in SHAPES:
        raise DatasetError(f"synthetic shape: want one of {sorted(SHAPES)}, got {shape!r}")
    if dtype not in DTYPES:
        raise DatasetError(f"synthetic dtype: want one of {sorted(DTYPES)}, got {dtype!r}")
    if not 0 < scale <= 1:
        raise DatasetError(f"synthetic scale: want a number in (0, 1], got {scale}")
    if not real.is_floating_point():
        raise DatasetError(f"real matrix: want floating point values, got {real.dtype}")
    sizes = SHAPES[shape]

    def scaled(count: int) -> int:
        return max(1, round(count * scale))

    train, val, test = scaled(sizes.num_train), scaled(sizes.num_val), scaled(sizes.num_test)
    num_nodes = max(scaled(sizes.num_nodes), train + val + test, 2)
    src, dst = power_law_edges(
        num_nodes, scaled(sizes.num_edges), exponent=sizes.exponent, undirected=sizes.undirected, seed=seed
    )
    ids = torch.from_numpy(_generator(seed, _SPLIT).permutation(num_nodes)[: train + val + test])
    labels = _generator(seed, _LABELS).integers(0, sizes.num_classes, num_nodes)
    return NodeDataset(
        name=f"synthetic-{shape}" + ("" if scale == 1 else f"-{scale:g}x"),
        num_classes=sizes.num_classes,
        src=src,
        dst=dst,
        features=features_like(real.to(DTYPES[dtype]), num_nodes, sizes.width, seed=seed),
        labels=torch.from_numpy(labels),
        train_ids=ids[:train],
        val_ids=ids[train : train + val],
        test_ids=ids[train + val :],
        synthetic=True,
    )


def power_law_edges(
    num_nodes: int, num_edges: int, *, exponent: float, undirected: bool, seed: int
) -> tuple[Tensor, Tensor]:
    """Returns src, dst: int64 [num_edges], or twice as many if `undirected`, the second half being the first one turned
    round. exponent: in [0, 1). num_nodes >= 2."""
    if num_nodes < 2 or not 0 <= exponent < 1:
        raise DatasetError(f"want at least 2 nodes and an exponent in [0, 1), got {num_nodes} and {exponent}")
    node_of_rank = _generator(seed, _RANKS).permutation(num_nodes)
    src, dst = (np.empty(num_edges * (1 + undirected), np.int64) for _ in range(2))
    for rows, generator in _blocks(num_edges, seed, _GRAPH):
        # The inverse of the distribution function of a density that falls as x ** -exponent on (0, 1).
        ranks = (generator.random((2, rows.stop - rows.start)) ** (1 / (1 - exponent)) * num_nodes).astype(np.int64)
        np.minimum(ranks, num_nodes - 1, out=ranks)  # the product may round up to num_nodes
        loops = ranks[0] == ranks[1]
        ranks[1, loops] = (ranks[1, loops] + 1) % num_nodes
        src[rows], dst[rows] = node_of_rank[ranks]
    if undirected:
        src[num_edges:], dst[num_edges:] = dst[:num_edges], src[:num_edges]
    return torch.from_numpy(src), torch.from_numpy(dst)


def features_like(real: Tensor, num_rows: int, width: int, *, seed: int, out: Tensor | None = None) -> Tensor:
    """Returns [num_rows, width] of the dtype of `real`, made as described above, in `out` if given (such a tensor,
    contiguous, perhaps over a writable memmap). real: [r, d] of one of DTYPES, r >= 1, on the CPU."""
    if real.dtype not in _BITS or real.dim() != 2 or 0 in real.shape:
        wanted = f"[rows, columns] of {sorted(DTYPES)}"
        raise DatasetError(f"real matrix: want {wanted}, got {list(real.shape)} {real.dtype}")
    if out is None:
        out = torch.empty(num_rows, width, dtype=real.dtype, device="cpu")
    elif list(out.shape) != [num_rows, width] or out.dtype != real.dtype or not out.is_contiguous():
        raise DatasetError(f"out: want {[num_rows, width]} {real.dtype}, got {list(out.shape)} {out.dtype}")
    kind = _BITS[real.dtype]
    words = real.contiguous().view(kind.signed).numpy().view(kind.numpy)
    result = out.view(kind.signed).numpy().view(kind.numpy)
    low_bits = np.bitwise_or.reduce(words, axis=None) & kind.numpy((1 << (kind.mantissa_bits - KEPT_MANTISSA_BITS)) - 1)
    exponent_mask, magnitude_mask = kind.numpy(kind.exponent_mask), kind.numpy(~np.array(0, kind.numpy) >> 1)
    columns = words.shape[1]
    for rows, generator in _blocks(num_rows, seed, _FEATURES):
        count = rows.stop - rows.start
        for first in range(0, width, columns):
            last = min(first + columns, width)
            copied = words[generator.integers(0, len(words), count), : last - first]
            noise = _random_words(generator, copied.shape, kind.numpy)
            special = (copied & magnitude_mask == 0) | (copied & exponent_mask == exponent_mask)
            result[rows, first:last] = np.where(special, copied, copied & ~low_bits | noise & low_bits)
    return out


def _random_words(generator: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = generator.bit_generator.random_raw(-(-size // 8))
    return raw.view(np.uint8)[:size].view(dtype).reshape(shape)


def _generator(seed: int, stream: int, block: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, stream, block])))


def _blocks(count: int, seed: int, stream: int) -> Iterator[tuple[slice, np.random.Generator]]:
    for block, first in enumerate(range(0, count, _BLOCK)):
        yield slice(first, min(first + _BLOCK, count)), _generator(seed, stream, block)
