"""The oracle of packed rows, by hand."""

from __future__ import annotations

import numpy as np

from ibp_gnn.testing import oracle_packed


def test_two_records_by_hand() -> None:
    records = np.zeros(2, oracle_packed.RECORD)
    payloads = (1 << 24) - 1 - 2  # all but row 1
    records["start_and_kinds"][0] = 10 | payloads << oracle_packed.START_BITS
    records["units"][0, :3] = 1, 0, 255
    records["start_and_kinds"][1] = 5000
    found = oracle_packed.places(records.view(np.uint8), 25, row_bytes=30, unit_bytes=2, least_bytes=4)
    assert found[:4] == [(10, 6, True), (16, 30, False), (46, 514, True), (560, 4, True)]
    assert found[23] == (560 + 20 * 4, 4, True) and found[24] == (5000, 30, False)
    assert len(found) == 25
