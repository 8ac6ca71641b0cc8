"""Fuzz target: both decoders and encoders of the CPU against the oracle. Codecs, slots, bitmasks, overflow rows and ids
of any bytes: every code path refuses what the oracle refuses, and returns the oracle's bits for everything else.

Run it with scripts/fuzz.sh.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

from ibp_gnn import FormatError, _native
from ibp_gnn.codec.dict import DictForm
from ibp_gnn.codec.ibp import IbpForm
from ibp_gnn.testing import oracle, oracle_dict

MOST_ROWS, MOST_VALUES = 6, 70


class Input:
    """Bytes taken from the front; zeros past their end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def array(self, length: int) -> np.ndarray:
        taken = self._data[self._at : self._at + length]
        self._at += length
        return np.frombuffer(taken.ljust(length, b"\0"), np.uint8).copy()

    def between(self, low: int, high: int) -> int:
        """Both included."""
        return low + int(self.array(1)[0]) % (high - low + 1)

    def flag(self) -> bool:
        return bool(self.between(0, 1))


def test_one_input(data: bytes) -> None:
    given = Input(data)
    try:
        form: Any = _a_dict(given) if given.flag() else _an_ibp(given)
    except ValueError:
        return
    row_bytes = form.row_bytes
    rows = given.array(row_bytes * given.between(0, MOST_ROWS)).reshape(-1, row_bytes)
    least = min(row_bytes, oracle.OVERFLOW_INDEX_BYTES)
    slot_bytes = max(least, row_bytes * given.between(0, 130) // 100)
    encoded = _check_encoding(form, rows, slot_bytes)
    _check_decoding(form, encoded, slot_bytes, len(rows), list(range(len(rows))))
    # Any bytes in the place of what was written.
    num_rows, damaged = given.between(0, MOST_ROWS), given.between(0, MOST_ROWS)
    any_rows = oracle.Encoded(
        given.array(num_rows * slot_bytes + oracle.SLACK_BYTES),
        given.array(oracle.bitmask_bytes(num_rows)),
        given.array(damaged % 3 * row_bytes + oracle.SLACK_BYTES),
    )
    ids = [given.between(0, num_rows) for _ in range(given.between(0, 4))]
    _check_decoding(form, any_rows, slot_bytes, num_rows, ids)
    for index in range(num_rows):
        _check_decoding(form, any_rows, slot_bytes, num_rows, [index])


@functools.cache
def _paths() -> list[str]:
    def has(path: str) -> bool:
        nothing = torch.empty(0, 1, dtype=torch.uint8), torch.empty(0, dtype=torch.int32)
        try:
            _native.cpu.measure(IbpForm(np.zeros(1), np.zeros(1), 8, 1, 1.0).native, *nothing, 1, path)
        except ValueError:
            return False
        return True

    return [path for path in ("scalar", "avx2", "avx512") if has(path)]


def _an_ibp(given: Input) -> IbpForm:
    row_bytes = given.between(1, 4 * MOST_VALUES)
    mask = given.array(row_bytes)
    bitval = given.array(row_bytes) & (mask if given.between(0, 15) else 255)
    return IbpForm(mask, bitval, 8 << given.between(0, 3), 1 << given.between(0, 9), 1.0)


def _a_dict(given: Input) -> DictForm:
    value_bits = 8 << given.between(0, 3)
    sign_low, zero_code, per_column = given.flag(), given.flag(), given.flag()
    symbol_bits = 8 if given.flag() else given.between(1, min(value_bits - 1, 8 if per_column else 16))
    trim_bits = 0 if given.flag() else given.between(0, max(0, value_bits - symbol_bits - 1))
    code_bits, num_values = given.between(1, 4), given.between(1, MOST_VALUES)
    starts = given.array(2 * (num_values if per_column else 1)).reshape(-1, 2).astype(np.int64)
    dictionary = starts[:, :1] + (2 * starts[:, 1:] + 1) * np.arange(1 << code_bits)  # distinct
    escapes = given.array(2 * oracle_dict.PLAIN_SYMBOL).view(np.uint16)
    most = (1 << symbol_bits) - 1
    parts = (num_values, value_bits, symbol_bits, trim_bits, code_bits, sign_low, zero_code, per_column)
    dictionary &= most
    dictionary[:, (1 << code_bits) - 1 - zero_code :] = 0  # what has no symbol
    return DictForm(*parts, dictionary, escapes & most)


def _check_encoding(form: Any, rows: np.ndarray, slot_bytes: int) -> oracle.Encoded:
    """Returns what the oracle writes."""
    if isinstance(form, DictForm):
        lengths, wanted = oracle_dict.measure(rows, form), oracle_dict.encode(rows, form, slot_bytes)
    else:
        codec = form.mask_bytes, form.bitval_bytes, form.word_bits * form.words_per_chunk
        lengths, wanted = oracle.measure(rows, *codec), oracle.encode(rows, *codec, slot_bytes)
    overflows = (lengths > slot_bytes) & (slot_bytes < form.row_bytes)
    index = np.where(overflows, np.cumsum(overflows) - 1, -1).astype(np.int64)
    for path in _paths():
        measured = np.zeros(len(rows), np.int32)
        _native.cpu.measure(form.native, rows, measured, 1, path)
        assert measured.tolist() == lengths.tolist(), path
        got = oracle.Encoded(*(np.full_like(part, 0xA5) for part in wanted))
        for part in (got.slots, got.overflow):
            part[len(part) - oracle.SLACK_BYTES :] = 0
        _native.cpu.encode(form.native, rows, index, got.slots, slot_bytes, got.bitmask, got.overflow, 1, path)
        for name, one, other in zip(oracle.Encoded._fields, wanted, got, strict=True):
            assert one.tobytes() == other.tobytes(), f"{path}: {name}"
    return wanted


def _check_decoding(form: Any, encoded: oracle.Encoded, slot_bytes: int, num_rows: int, ids: list[int]) -> None:
    given = np.array(ids, np.int64)
    wanted, refused = None, None
    try:
        if isinstance(form, DictForm):
            wanted = oracle_dict.decode(*encoded, slot_bytes, num_rows, form, given)
        else:
            codec = form.mask_bytes, form.bitval_bytes, form.word_bits * form.words_per_chunk
            wanted = oracle.decode(*encoded, slot_bytes, num_rows, *codec, given)
    except (FormatError, IndexError) as error:
        refused = type(error)
    for path in _paths():
        out = np.zeros((len(ids), form.row_bytes), np.uint8)
        arguments = encoded.slots, slot_bytes, encoded.bitmask, encoded.overflow, num_rows, given, out, 1, path
        try:
            _native.cpu.decode(form.native, *arguments)
        except (FormatError, IndexError) as error:
            # Ids are checked before any row is read.
            assert refused is type(error) or (refused is FormatError and isinstance(error, IndexError)), path
            continue
        assert wanted is not None, f"{path}: want {refused}"
        assert out.tobytes() == wanted.tobytes(), path
