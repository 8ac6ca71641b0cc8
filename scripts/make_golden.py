#!/usr/bin/env python3
"""Writes the golden vectors, tests/golden/*.npz and tests/golden/dict/*.npz, with the oracle (ibp_gnn/testing/oracle.py
and oracle_dict.py).

They pin version 2 of the byte format (csrc/core/format.h, csrc/core/dict_layout.h): every backend must write and read
exactly these bytes. Run this only when the format's version changes; tests fail if the files differ from what it would
write.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ibp_gnn.codec.values import dtype_from_name, to_bytes
from ibp_gnn.testing import oracle, oracle_dict, special_rows
from ibp_gnn.testing.oracle_dict import Cut

GOLDEN_FOLDER = Path(__file__).resolve().parents[1] / "tests" / "golden"
DICT_GOLDEN_FOLDER = GOLDEN_FOLDER / "dict"
FORMAT_VERSION = 2
NUM_ROWS = 40  # more than one group of 32 bitmask bits


class Case(NamedTuple):
    """slot_share: slot_bytes as a share of row_bytes, rounded down to 4; 1 means in place."""

    name: str
    dtype: str
    width: int
    kind: str
    word_bits: int
    words_per_chunk: int
    threshold: float
    slot_share: float


CASES = (
    Case("int8_chunk8", "int8", 3, "outliers", 8, 1, 0.75, 1),
    Case("bool_chunk8", "bool", 128, "random_bits", 8, 1, 0.5, 0.55),
    Case("float8_e4m3fn_chunk8", "float8_e4m3fn", 50, "nan_payloads", 8, 1, 0.6, 0.5),
    Case("float16_chunk16", "float16", 31, "negative_zero", 16, 1, 0.85, 0.4),
    Case("bfloat16_chunk16", "bfloat16", 33, "powers_of_two", 16, 1, 0.5, 0.9),
    Case("int16_chunk16", "int16", 1, "all_equal", 16, 1, 1.0, 1),
    Case("float32_chunk32", "float32", 50, "outliers", 32, 1, 0.7, 0.8),
    Case("float32_chunk64", "float32", 33, "powers_of_two", 64, 1, 0.55, 0.97),
    Case("int32_chunk64", "int32", 32, "denormals", 32, 2, 0.9, 1),
    Case("float64_chunk128", "float64", 31, "outliers", 64, 2, 0.7, 0.5),
    Case("int64_chunk128", "int64", 2, "outliers", 64, 2, 0.8, 1),
    Case("uint8_chunk4096", "uint8", 602, "outliers", 8, 512, 0.8, 0.5),
    Case("float32_chunk4096", "float32", 128, "outliers", 32, 128, 0.8, 1),
    Case("float8_e5m2_chunk4096", "float8_e5m2", 100, "outliers", 8, 512, 0.8, 0.95),
)


class DictCase(NamedTuple):
    """Like Case, for codec "dict"; trim_bits are made 0 in all rows but the last."""

    name: str
    dtype: str
    width: int
    kind: str
    cut: Cut
    code_bits: int
    zero_code: bool
    per_column: bool
    trim_bits: int
    slot_share: float


DICT_CASES = (
    DictCase("uint8_code1", "uint8", 50, "outliers", Cut(4, False), 1, False, True, 0, 1),
    DictCase("bool_zero_code", "bool", 128, "random_bits", Cut(7, False), 2, True, False, 0, 0.4),
    DictCase("float8_e5m2_code2", "float8_e5m2", 33, "nan_payloads", Cut(5, True), 2, False, False, 0, 0.9),
    DictCase("bfloat16_code3", "bfloat16", 50, "nan_payloads", Cut(8, True), 3, False, False, 0, 0.9),
    DictCase("bfloat16_columns", "bfloat16", 64, "nan_payloads", Cut(8, True), 3, False, True, 0, 0.76),
    DictCase("float16_zero_code", "float16", 31, "negative_zero", Cut(5, True), 4, True, False, 3, 1),
    DictCase("float32_code3", "float32", 33, "nan_payloads", Cut(8, True), 3, False, False, 0, 0.91),
    DictCase("float32_columns", "float32", 50, "nan_payloads", Cut(8, True), 3, False, True, 0, 0.88),
    DictCase("float32_trim", "float32", 9, "all_equal", Cut(8, True), 4, False, False, 20, 0.5),
    DictCase("int32_code4", "int32", 31, "alternating", Cut(12, False), 4, False, False, 7, 0.7),
    DictCase("int64_code2", "int64", 7, "nan_payloads", Cut(16, False), 2, True, False, 0, 1),
    DictCase("float64_code1", "float64", 3, "outliers", Cut(11, True), 1, False, False, 5, 1),
)


def make_vector(case: Case) -> dict[str, np.ndarray]:
    """Everything that a test needs, by name."""
    rows = to_bytes(special_rows(dtype_from_name(case.dtype), case.width, case.kind, n=NUM_ROWS)).numpy()
    row_bytes = rows.shape[1]
    mask, bitval = oracle.invariant_bits(oracle.count_ones(rows), len(rows), case.threshold)
    chunk_bits = case.word_bits * case.words_per_chunk
    slot_bytes = row_bytes if case.slot_share == 1 else int(case.slot_share * row_bytes) // 4 * 4
    encoded = oracle.encode(rows, mask, bitval, chunk_bits, slot_bytes)
    return {
        "format_version": np.array(FORMAT_VERSION),
        "dtype": np.array(case.dtype),
        "width": np.array(case.width),
        "word_bits": np.array(case.word_bits),
        "words_per_chunk": np.array(case.words_per_chunk),
        "threshold": np.array(case.threshold),
        "slot_bytes": np.array(slot_bytes),
        "rows": rows,
        "mask": mask,
        "bitval": bitval,
        "payload_bytes": oracle.measure(rows, mask, bitval, chunk_bits),
        "slots": encoded.slots,
        "bitmask": encoded.bitmask,
        "overflow": encoded.overflow,
    }


def make_dict_vector(case: DictCase) -> dict[str, np.ndarray]:
    rows = to_bytes(special_rows(dtype_from_name(case.dtype), case.width, case.kind, n=NUM_ROWS)).numpy()
    value_bits = 8 * dtype_from_name(case.dtype).itemsize
    values = rows.view(f"<u{value_bits // 8}")
    values[:-1] &= values.dtype.type((1 << value_bits) - (1 << case.trim_bits))
    form = oracle_dict.make_form(
        rows,
        value_bits,
        case.cut,
        case.code_bits,
        zero_code=case.zero_code,
        per_column=case.per_column,
        trim_bits=case.trim_bits,
    )
    row_bytes = rows.shape[1]
    slot_bytes = row_bytes if case.slot_share == 1 else int(case.slot_share * row_bytes) // 4 * 4
    encoded = oracle_dict.encode(rows, form, slot_bytes)
    return {
        "format_version": np.array(FORMAT_VERSION),
        "dtype": np.array(case.dtype),
        **{field.name: np.asarray(getattr(form, field.name)) for field in dataclasses.fields(form)},
        "slot_bytes": np.array(slot_bytes),
        "rows": rows,
        "payload_bytes": oracle_dict.measure(rows, form),
        "slots": encoded.slots,
        "bitmask": encoded.bitmask,
        "overflow": encoded.overflow,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codec", choices=["ibp", "dict"], default="ibp", help="(default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where to write (default: the codec's folder)")
    arguments = parser.parse_args()
    if arguments.codec == "ibp":
        vectors = {case.name: make_vector(case) for case in CASES}
    else:
        vectors = {case.name: make_dict_vector(case) for case in DICT_CASES}
    folder = arguments.folder or (GOLDEN_FOLDER if arguments.codec == "ibp" else DICT_GOLDEN_FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    for name, vector in vectors.items():
        path = folder / f"{name}.npz"
        np.savez_compressed(path, **vector)
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
