"""How users say how big a cache is."""

from __future__ import annotations

import re

import torch

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_WANTED = "bytes (int), '4GB', '512MiB', a share of the store (float in (0, 1]), '100000 rows' or 'auto'"
# Left free by "auto": room for the activations, gradients and workspaces of a training step.
AUTO_RESERVE_BYTES = 4 << 30


def parse_capacity(
    capacity: int | float | str, *, num_rows: int, store_bytes: int, device: torch.device
) -> tuple[int | None, int]:
    """Returns (bytes or None for no limit, most rows). Raises ValueError saying what was wanted and got."""
    error = ValueError(f"capacity: want {_WANTED}, got {capacity!r}")
    if isinstance(capacity, bool) or not isinstance(capacity, (int, float, str)):
        raise TypeError(str(error))
    if isinstance(capacity, float):
        if not 0 < capacity <= 1:
            raise error
        return round(capacity * store_bytes), num_rows
    if isinstance(capacity, int):
        if capacity <= 0:
            raise error
        return capacity, num_rows
    text = capacity.strip().lower()
    if text == "auto":
        free, total = torch.cuda.mem_get_info(device)
        return max(0, free - min(AUTO_RESERVE_BYTES, total // 4)), num_rows
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text)
    if match is None or (match[2] != "rows" and match[2] not in _UNITS):
        raise error
    if match[2] == "rows":
        if not match[1].isdigit() or not 1 <= int(match[1]) <= num_rows:
            raise ValueError(f"capacity: want 1 to {num_rows} rows, got {capacity!r}")
        return None, int(match[1])
    if float(match[1]) == 0:
        raise error
    return int(float(match[1]) * _UNITS[match[2]]), num_rows
