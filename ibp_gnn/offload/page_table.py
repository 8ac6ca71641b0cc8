"""Where pages lie, by the user's numbers: for lists of pages on the host, for ids of tokens on any device."""

from __future__ import annotations

import numpy as np
import torch

from ..codec.gather import ids_on_gpu

MOST_PAGES = 1 << 24


class PageTable:
    """arena, place: of each page; -1 where there is none. Grows with the highest number."""

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._places = np.full(0, -1, np.int64)
        self._arenas = np.full(0, -1, np.int64)
        self._count = 0
        self._on_devices: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and 0 <= number < len(self._places) and self._places[number] >= 0

    def __getitem__(self, number: int) -> tuple[int, int]:
        """Arena and place. Raises KeyError."""
        if number not in self:
            raise KeyError(f"page_ids: want pages that were put, got {number}")
        return int(self._arenas[number]), int(self._places[number])

    def set(self, numbers: list[int], arena: int, places: list[int]) -> None:
        """numbers: of pages that are not here, each once."""
        most = max(numbers) + 1
        if most > len(self._places):
            longer = min(max(most, 2 * len(self._places), 1024), MOST_PAGES)
            more = np.full(longer - len(self._places), -1, np.int64)
            self._places, self._arenas = np.append(self._places, more), np.append(self._arenas, more)
        self._places[numbers], self._arenas[numbers] = places, arena
        self._count += len(numbers)
        self._on_devices.clear()

    def pop(self, number: int) -> tuple[int, int]:
        """Arena and place of a page that is not here any more. Raises KeyError."""
        found = self[number]
        self._places[number] = self._arenas[number] = -1
        self._count -= 1
        self._on_devices.clear()
        return found

    def clear(self) -> None:
        self.__init__(self._page_tokens)  # type: ignore[misc]

    def find_tokens(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """ids: int32/int64 [n], page number * page_tokens + token. Returns the tokens' rows in their arenas, and the
        arenas, both int64 [n] on the device of ids; -1 where there is no such page. Does not wait for a GPU."""
        places, arenas = self._on(ids.device)
        pages = torch.div(ids, self._page_tokens, rounding_mode="floor").to(torch.int64)
        at = pages.clamp(0, len(places) - 1)
        known = (pages == at) & (places[at] >= 0)
        rows = (places[at] - pages) * self._page_tokens + ids
        return torch.where(known, rows, -1), torch.where(known, arenas[at], -1)

    def _on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Both arrays; not empty."""
        if device not in self._on_devices:
            arrays = [torch.from_numpy(array.copy() if len(array) else np.full(1, -1, np.int64))
                      for array in (self._places, self._arenas)]  # fmt: skip
            moved = [ids_on_gpu(array, device) if device.type == "cuda" else array for array in arrays]
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()  # for every stream
            self._on_devices[device] = moved[0], moved[1]
        return self._on_devices[device]
