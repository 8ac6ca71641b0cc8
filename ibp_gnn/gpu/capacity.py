"""How users say how big a cache is."""

from __future__ import annotations

import numbers
import re

import torch

_UNITS = {"b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {f"{unit}b": size for unit, size in _UNITS.items() if unit != "b"}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_WANTED = "bytes (int), '4GB', '4G', '512MiB', a share of the store (float in (0, 1], '50%'), '100000 rows' or 'auto'"
# Left free by "auto": room for the activations, gradients and workspaces of a training step.
AUTO_RESERVE_BYTES = 4 << 30


def parse_capacity(
    capacity: int | float | str, *, num_rows: int, store_bytes: int, device: torch.device
) -> tuple[int | None, int]:
    """capacity: an int (bytes), a float or "50%" (a share of the store), "4GB", "4G" (both 4 * 10^9 bytes), "4GiB",
    "100000 rows", "1 row" or "auto"; NumPy's numbers are as good as Python's.

    Returns (bytes or None for no limit, most rows). Raises TypeError and ValueError saying what was wanted and got."""
    error = ValueError(f"capacity: want {_WANTED}, got {capacity!r}")
    if isinstance(capacity, str):
        return _parse_text(capacity, num_rows, store_bytes, device, error)
    if isinstance(capacity, bool) or not isinstance(capacity, numbers.Real):
        raise TypeError(str(error))
    if isinstance(capacity, numbers.Integral):
        if capacity <= 0:
            raise error
        return int(capacity), num_rows
    return _of_share(float(capacity), store_bytes, error), num_rows


def parse_bytes(name: str, size: int | float | str, *, whole: int = 0) -> int:
    """size: bytes as for `parse_capacity`; a share of `whole`, if that is given. name: of the argument, for messages.
    Raises ValueError."""
    cpu, length = torch.device("cpu"), None
    try:
        if size != "auto" and (whole or not is_share(size)):
            length, _ = parse_capacity(size, num_rows=0, store_bytes=whole, device=cpu)
    except (TypeError, ValueError):
        length = None
    if not length:
        share = ", a share of it (float in (0, 1], '50%')" if whole else ""
        raise ValueError(f"{name}: want bytes (int), '4GB', '512MiB'{share}, got {size!r}")
    return length


def free_bytes(device: torch.device) -> int:
    """What "auto" means: GPU memory that is free now, less a reserve."""
    free, total = torch.cuda.mem_get_info(device)
    return max(0, free - min(AUTO_RESERVE_BYTES, total // 4))


def is_share(capacity: int | float | str) -> bool:
    """Whether this is a share of the store. capacity: what `parse_capacity` takes."""
    return capacity.strip().endswith("%") if isinstance(capacity, str) else not isinstance(capacity, numbers.Integral)


def _parse_text(
    capacity: str, num_rows: int, store_bytes: int, device: torch.device, error: ValueError
) -> tuple[int | None, int]:
    text = capacity.strip().lower()
    if text == "auto":
        return free_bytes(device), num_rows
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+|%)", text)
    if match is None:
        raise error
    number, unit = match.groups()
    if unit == "%":
        return _of_share(float(number) / 100, store_bytes, error), num_rows
    if unit in ("row", "rows"):
        if not number.isdecimal() or not 1 <= int(number) <= num_rows:
            raise ValueError(f"capacity: want 1 to {num_rows} rows, got {capacity!r}")
        return None, int(number)
    if unit not in _UNITS or float(number) == 0:
        raise error
    return int(float(number) * _UNITS[unit]), num_rows


def _of_share(share: float, store_bytes: int, error: ValueError) -> int:
    if not 0 < share <= 1:
        raise error
    return round(share * store_bytes)
