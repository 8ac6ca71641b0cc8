#!/usr/bin/env python3
"""Writes the golden vectors, tests/golden/*.npz, with the oracle (ibp_gnn/reference.py).

They pin version 1 of the byte format (csrc/core/format.h): every backend must write and read exactly these bytes. Run
this only when the format's version changes; tests fail if the files differ from what it would write.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ibp_gnn import reference
from ibp_gnn.rows import dtype_from_name, to_bytes
from ibp_gnn.testing import special_rows

GOLDEN_FOLDER = Path(__file__).resolve().parents[1] / "tests" / "golden"
FORMAT_VERSION = 1
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


def make_vector(case: Case) -> dict[str, np.ndarray]:
    """Everything that a test needs, by name."""
    rows = to_bytes(special_rows(dtype_from_name(case.dtype), case.width, case.kind, n=NUM_ROWS)).numpy()
    row_bytes = rows.shape[1]
    mask, bitval = reference.invariant_bits(reference.count_ones(rows), len(rows), case.threshold)
    chunk_bits = case.word_bits * case.words_per_chunk
    slot_bytes = row_bytes if case.slot_share == 1 else int(case.slot_share * row_bytes) // 4 * 4
    encoded = reference.encode(rows, mask, bitval, chunk_bits, slot_bytes)
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
        "payload_bytes": reference.measure(rows, mask, bitval, chunk_bits),
        "slots": encoded.slots,
        "bitmask": encoded.bitmask,
        "overflow": encoded.overflow,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=GOLDEN_FOLDER, help="where to write (default: %(default)s)")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        path = folder / f"{case.name}.npz"
        np.savez_compressed(path, **make_vector(case))
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
