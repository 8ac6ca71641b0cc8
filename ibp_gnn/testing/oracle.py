"""The oracle: the byte format of csrc/core/format.h once more, slow and plain, for tests to compare with.

It was written from that file alone and shares nothing with the extensions but the exception. Rows, masks and buffers
are NumPy uint8 arrays; a row of bits is a bool array in which index k is bit k % 8 of byte k // 8. Codec "dict" is in
reference_dict.py, and takes the slots from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .._native import FormatError

Bytes = npt.NDArray[np.uint8]
Bits = npt.NDArray[np.bool_]

SLACK_BYTES = 64
OVERFLOW_INDEX_BYTES = 4
THRESHOLDS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0)
MAX_FITTED_CHUNK_BITS = 4096


class Encoded(NamedTuple):
    """slots: [n * slot_bytes + SLACK_BYTES]; bitmask: [bitmask_bytes(n)]; overflow: [m * row_bytes + SLACK_BYTES]."""

    slots: Bytes
    bitmask: Bytes
    overflow: Bytes


class Fitted(NamedTuple):
    """mask, bitval: [row_bytes]."""

    mask: Bytes
    bitval: Bytes
    word_bits: int
    words_per_chunk: int
    threshold: float


def bitmask_bytes(num_rows: int) -> int:
    """One bit per row, in whole groups of 32."""
    return -(-num_rows // 32) * 4


def count_ones(rows: Bytes) -> npt.NDArray[np.int64]:
    """rows: [n, row_bytes]. Returns [8 * row_bytes]: how many rows have bit k set."""
    return to_bits(rows).sum(axis=0, dtype=np.int64)


def invariant_bits(ones: npt.NDArray[np.int64], num_rows: int, threshold: float) -> tuple[Bytes, Bytes]:
    """ones: from count_ones. Returns mask and bitval, [row_bytes] each: the bits on whose value a share `threshold`
    of the rows agree, and that value; half the rows are no majority for 1."""
    majority_is_one = ones > num_rows - ones
    agreeing = np.maximum(ones, num_rows - ones)
    mask = agreeing >= threshold * num_rows
    return to_bytes(mask), to_bytes(mask & majority_is_one)


def measure(rows: Bytes, mask: Bytes, bitval: Bytes, chunk_bits: int) -> npt.NDArray[np.int32]:
    """rows: [n, row_bytes]; mask, bitval: [row_bytes]. Returns [n]: every payload's length in bytes."""
    _check_codec(rows.shape[1], mask, bitval, chunk_bits)
    participation = _participation(to_bits(rows), to_bits(mask), to_bits(bitval), chunk_bits)
    kept = _kept(participation, to_bits(mask), chunk_bits)
    payload_bits = participation.shape[1] + kept.sum(axis=1)
    return _ceil_bytes(payload_bits).astype(np.int32)


def encode(rows: Bytes, mask: Bytes, bitval: Bytes, chunk_bits: int, slot_bytes: int) -> Encoded:
    """rows: [n, row_bytes]; mask, bitval: [row_bytes]."""
    _check_codec(rows.shape[1], mask, bitval, chunk_bits)
    row_bits, mask_bits = to_bits(rows), to_bits(mask)
    participation = _participation(row_bits, mask_bits, to_bits(bitval), chunk_bits)
    kept = _kept(participation, mask_bits, chunk_bits)
    payloads = [to_bytes(np.concatenate([participation[i], row_bits[i][kept[i]]])) for i in range(len(rows))]
    return write_slots(rows, payloads, slot_bytes)


def decode(
    slots: Bytes,
    bitmask: Bytes,
    overflow: Bytes,
    slot_bytes: int,
    num_rows: int,
    mask: Bytes,
    bitval: Bytes,
    chunk_bits: int,
    ids: npt.NDArray[np.integer] | None = None,
) -> Bytes:
    """slots, bitmask, overflow: as from encode; ids: [m], None means all rows in order. Returns [m, row_bytes].
    Raises IndexError for an id out of range, FormatError for short buffers, payloads longer than format.h allows and
    overflow indices that lead nowhere."""
    _check_codec(len(mask), mask, bitval, chunk_bits)
    mask_bits, bitval_bits = to_bits(mask), to_bits(bitval)
    num_chunks = -(-len(mask_bits) // chunk_bits)

    def row_of(i: int, payload_bytes: Bytes) -> Bytes:
        payload = to_bits(payload_bytes)
        if num_chunks > len(payload):
            raise FormatError(f"row {i}: want {num_chunks} participation bits, got room for {len(payload)}")
        kept = _kept(payload[None, :num_chunks], mask_bits, chunk_bits)[0]
        end = num_chunks + int(kept.sum())
        if end > len(payload):
            raise FormatError(f"row {i}: want a payload of at most {len(payload_bytes)} bytes, got {end} bits")
        row = bitval_bits.copy()
        row[kept] = payload[num_chunks:end]
        return to_bytes(row)

    return read_slots(Encoded(slots, bitmask, overflow), slot_bytes, num_rows, len(mask), row_of, ids)


def write_slots(rows: Bytes, payloads: Sequence[Bytes | None], slot_bytes: int) -> Encoded:
    """rows: [n, row_bytes]; payloads: one for each row, of any length, or None for a row that has none."""
    num_rows, row_bytes = rows.shape
    _check_slot(row_bytes, slot_bytes)
    slots = np.zeros((num_rows, slot_bytes), np.uint8)
    is_payload = np.zeros(8 * bitmask_bytes(num_rows), np.bool_)
    overflow: list[Bytes] = []
    for i, payload in enumerate(payloads):
        if payload is not None and len(payload) < row_bytes and len(payload) <= slot_bytes:
            slots[i, : len(payload)] = payload
            is_payload[i] = True
        elif slot_bytes >= row_bytes:
            slots[i, :row_bytes] = rows[i]
        else:
            slots[i, :OVERFLOW_INDEX_BYTES] = np.array([len(overflow)], "<u4").view(np.uint8)
            overflow.append(rows[i])
    slack = np.zeros(SLACK_BYTES, np.uint8)
    return Encoded(np.concatenate([slots.reshape(-1), slack]), to_bytes(is_payload), np.concatenate([*overflow, slack]))


def read_slots(
    encoded: Encoded,
    slot_bytes: int,
    num_rows: int,
    row_bytes: int,
    row_of: Callable[[int, Bytes], Bytes],
    ids: npt.NDArray[np.integer] | None = None,
) -> Bytes:
    """row_of: from a row's number and all bytes that its payload may have, to the row; raises FormatError if the
    payload would be longer. ids: [m], None means all rows in order. Returns [m, row_bytes]; raises as `decode`."""
    slots, bitmask, overflow = encoded
    _check_slot(row_bytes, slot_bytes)
    for name, buffer, wanted in (
        ("slots", slots, num_rows * slot_bytes + SLACK_BYTES),
        ("bitmask", bitmask, bitmask_bytes(num_rows)),
        ("overflow", overflow, SLACK_BYTES),
    ):
        if len(buffer) < wanted:
            raise FormatError(f"{name}: want at least {wanted} bytes, got {len(buffer)}")
    num_overflow = (len(overflow) - SLACK_BYTES) // row_bytes
    is_payload = to_bits(bitmask)
    wanted_ids = range(num_rows) if ids is None else ids.tolist()
    rows = np.zeros((len(wanted_ids), row_bytes), np.uint8)
    for at, i in enumerate(wanted_ids):
        if not 0 <= i < num_rows:
            raise IndexError(f"ids: want 0 <= id < {num_rows}, got {i} at position {at}")
        slot = slots[i * slot_bytes : (i + 1) * slot_bytes]
        if is_payload[i]:
            rows[at] = row_of(i, slot[: min(slot_bytes, row_bytes - 1)])
        elif slot_bytes >= row_bytes:
            rows[at] = slot[:row_bytes]
        else:
            index = int(slot[:OVERFLOW_INDEX_BYTES].copy().view("<u4")[0])
            if index >= num_overflow:
                raise FormatError(f"row {i}: want an overflow index below {num_overflow}, got {index}")
            rows[at] = overflow[index * row_bytes : (index + 1) * row_bytes]
    return rows


def fit(
    rows: Bytes,
    value_bits: int,
    word_bits: int | None = None,
    words_per_chunk: int | None = None,
    threshold: float | None = None,
) -> Fitted:
    """rows: [n, row_bytes], n >= 1; value_bits: bits of one value. Tries every candidate on all rows and keeps the
    first that stores them in the fewest bytes (a payload, or the raw row if that is not longer). Thresholds go up; for
    each, chunks do."""
    num_rows, row_bytes = rows.shape
    ones = count_ones(rows)
    best, best_size = None, -1
    for candidate_threshold in THRESHOLDS if threshold is None else (threshold,):
        mask, bitval = invariant_bits(ones, num_rows, candidate_threshold)
        for words in fit_chunks(8 * row_bytes, value_bits, word_bits, words_per_chunk):
            lengths = measure(rows, mask, bitval, words[0] * words[1])
            size = int(np.minimum(lengths, row_bytes).sum())
            if best is None or size < best_size:
                best, best_size = Fitted(mask, bitval, *words, candidate_threshold), size
    if best is None:
        raise ValueError("fit: want at least one candidate, got none")
    return best


def fit_chunks(
    row_bits: int, value_bits: int, word_bits: int | None, words_per_chunk: int | None
) -> list[tuple[int, int]]:
    """(word_bits, words_per_chunk) candidates, shortest chunk first. Only their product, the chunk's bits, matters to
    the payload: with word_bits open each product is tried once, as values' words or, below these, as one word."""
    if words_per_chunk is not None:
        return [(bits, words_per_chunk) for bits in (8, 16, 32, 64) if word_bits in (None, bits)]
    shortest = word_bits or 8
    products = [shortest]
    while products[-1] < min(row_bits, MAX_FITTED_CHUNK_BITS):
        products.append(2 * products[-1])
    words = [word_bits or min(value_bits, product) for product in products]
    return [(bits, product // bits) for bits, product in zip(words, products, strict=True)]


def to_bits(array: Bytes) -> Bits:
    """[..., bytes] to [..., 8 * bytes]."""
    return np.unpackbits(array, axis=-1, bitorder="little").astype(np.bool_)


def to_bytes(bits: Bits) -> Bytes:
    """[..., bits] to [..., ceil(bits / 8)]; unused bits of the last byte are 0."""
    return np.packbits(bits, axis=-1, bitorder="little")


def _participation(row_bits: Bits, mask_bits: Bits, bitval_bits: Bits, chunk_bits: int) -> Bits:
    """row_bits: [n, row bits]. Returns [n, chunks]: whether the chunk has the invariant bits' values everywhere."""
    agrees = (row_bits & mask_bits) == bitval_bits
    return np.logical_and.reduceat(agrees, np.arange(0, agrees.shape[1], chunk_bits), axis=1)


def _kept(participation: Bits, mask_bits: Bits, chunk_bits: int) -> Bits:
    """participation: [n, chunks]. Returns [n, row bits]: the bits that the payload holds."""
    chunk_of_bit = np.arange(len(mask_bits)) // chunk_bits
    return ~mask_bits | ~participation[:, chunk_of_bit]


def _ceil_bytes(bits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return -(-bits // 8)


def _check_codec(row_bytes: int, mask: Bytes, bitval: Bytes, chunk_bits: int) -> None:
    if mask.shape != (row_bytes,) or bitval.shape != (row_bytes,):
        raise ValueError(f"mask, bitval: want [{row_bytes}], got {list(mask.shape)}, {list(bitval.shape)}")
    if np.any(bitval & ~mask):
        raise ValueError("bitval: want 0 wherever mask is 0, got a 1")
    if chunk_bits < 8 or chunk_bits & (chunk_bits - 1):
        raise ValueError(f"chunk_bits: want a power of two from 8, got {chunk_bits}")


def _check_slot(row_bytes: int, slot_bytes: int) -> None:
    shortest = OVERFLOW_INDEX_BYTES if slot_bytes < row_bytes else 1
    if slot_bytes < shortest:
        raise ValueError(f"slot_bytes: want at least {shortest}, got {slot_bytes}")
