"""Where packed rows lie, in plain NumPy: slow, and written from csrc/core/packed_rows.h alone."""

from __future__ import annotations

import numpy as np

ROWS_PER_RECORD, START_BITS = 24, 40
RECORD = np.dtype([("start_and_kinds", "<u8"), ("units", "u1", (ROWS_PER_RECORD,))])


def places(
    directory: np.ndarray, num_rows: int, row_bytes: int, unit_bytes: int, least_bytes: int
) -> list[tuple[int, int, bool]]:
    """directory: uint8 [n]. Returns for each row where it starts, how many bytes it takes, and whether it is a payload.

    Example:
        >>> record = np.zeros(1, RECORD)
        >>> record["start_and_kinds"], record["units"][0, 0] = 100 | 1 << START_BITS, 3
        >>> places(record.view(np.uint8), 2, row_bytes=64, unit_bytes=4, least_bytes=8)
        [(100, 20, True), (120, 64, False)]
    """
    found: list[tuple[int, int, bool]] = []
    for record in directory.view(RECORD):
        word = int(record["start_and_kinds"])
        at = word & ((1 << START_BITS) - 1)
        for index in range(ROWS_PER_RECORD):
            if len(found) == num_rows:
                return found
            is_payload = bool(word >> (START_BITS + index) & 1)
            length = least_bytes + int(record["units"][index]) * unit_bytes
            if not is_payload:
                length = -(-row_bytes // unit_bytes) * unit_bytes
            found.append((at, length, is_payload))
            at += length
    return found
