"""Pages of tokens, losslessly compressed in CPU memory: below the KV cache, and for engines with pages of their own."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Sequence
from typing import Any

import torch

from ..codec import dispatch
from ..codec.gather import GpuGather, ids_on_gpu
from ..codec.values import as_ids, as_tensor, prepare_out, resolve_device, to_bytes
from ..gpu.capacity import parse_bytes
from .locked_region import Budget
from .page_arena import PageArena
from .page_landing import PageLanding, PageSelection, token_ids
from .page_table import MOST_PAGES, PageTable

_REFIT_PAGES = 16  # that are looked at for it


@dataclasses.dataclass(frozen=True)
class PageReport:
    """What pages hold, in bytes. raw_bytes: the pages uncompressed; compressed_bytes: their slots, overflow rows and
    bitmasks; locked_bytes: of CPU memory that is in use for all, page-locked for a GPU; fits: how often a codec was
    fitted.

    Example:
        >>> pages = ibp_gnn.offload.CompressedPages(32, (64,), torch.bfloat16, device="cpu")
        >>> pages.report()
        PageReport(pages=0, raw_bytes=0, compressed_bytes=0, locked_bytes=0, fits=0)
    """

    pages: int
    raw_bytes: int
    compressed_bytes: int
    locked_bytes: int
    fits: int


class CompressedPages:
    """Pages of page_tokens tokens each, by numbers of the user's choice.

    A page is compressed token by token on the device where it is, so that any token can be read by itself. On a GPU a
    put does not wait: pages go to page-locked memory on a stream of their own.

    Safe to use from several threads, which take turns. A context manager.

    Example:
        >>> kv = torch.randn(4, 64, 8, 128, dtype=torch.bfloat16)  # 4 pages of 64 tokens of 8 heads
        >>> pages = ibp_gnn.offload.CompressedPages(64, (8, 128), torch.bfloat16, budget="1GB", device="cpu")
        >>> pages.put([7, 8, 9, 3], kv)
        >>> torch.equal(pages.get([9, 7]), kv[[2, 0]])
        True
    """

    def __init__(
        self,
        page_tokens: int,
        token_shape: Sequence[int],
        dtype: torch.dtype,
        *,
        budget: int | str | Budget = "4GB",
        device: torch.device | str = "cuda",
        refit_drop: float = 0.05,
        landing: PageLanding | None = None,
        copies: torch.cuda.Stream | None = None,
    ) -> None:
        """Makes an empty store. It takes memory as pages come.

        Args:
            page_tokens: tokens of a page, a multiple of 32.
            token_shape: shape of a token.
            dtype: of the values.
            budget: CPU memory for all pages: bytes or "4GB"; or a Budget that several stores share.
            device: where pages come from and go to. On a GPU their memory is page-locked.
            refit_drop: a new codec is fitted when 16 pages in a row save less than the first ones did, by this share of
                their raw bytes. Older pages stay as they are.
            landing: buffers that several stores of the GPU share; None: its own.
            copies: the stream of copies, which they share then, too; None: its own.

        Raises:
            TypeError: a dtype that is not supported.
            ValueError: other bad arguments.
        """
        if isinstance(page_tokens, bool) or not isinstance(page_tokens, int) or page_tokens < 1 or page_tokens % 32:
            raise ValueError(f"page_tokens: want a multiple of 32, got {page_tokens!r}")
        self.page_tokens, self.token_shape, self.dtype = page_tokens, tuple(token_shape), dtype
        if not self.token_shape or math.prod(self.token_shape) < 1:
            raise ValueError(f"token_shape: want at least one value a token, got {self.token_shape}")
        if not 0 < refit_drop < 1:
            raise ValueError(f"refit_drop: want more than 0 and less than 1, got {refit_drop!r}")
        as_tensor(torch.empty(0, dtype=dtype, device="cpu"), "dtype")  # raises TypeError for one that is not supported
        self.device = resolve_device(device, torch.device("cpu"))
        if isinstance(budget, Budget):
            self._budget = budget
        else:
            self._budget = Budget(parse_bytes("budget", budget))
        self._refit_drop = refit_drop
        self._turn = threading.RLock()
        self._copies, self.landing = copies, landing
        if self.device.type == "cuda":
            self._copies = torch.cuda.Stream(self.device) if copies is None else copies
            self.landing = PageLanding(self.device, self._copies) if landing is None else landing
        self._arenas: list[PageArena] = []
        self._in_place: dict[int, GpuGather] = {}  # by arena
        self._table = PageTable(page_tokens)
        self._selected: tuple[list[int], PageSelection] | None = None
        self._recent: list[tuple[PageArena, int]] = []  # that the last puts wrote
        self._closed = False

    @property
    def page_shape(self) -> tuple[int, ...]:
        """Tokens of a page, and the shape of each."""
        return (self.page_tokens, *self.token_shape)

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, page_id: object) -> bool:
        return page_id in self._table

    def put(self, page_ids: Any, pages: torch.Tensor) -> None:
        """Stores pages, in the place of older ones of the same numbers. If it fails, nothing has changed.

        Args:
            page_ids: n different ints of at least 0, below 2^24, as a list or an integer tensor in CPU memory.
            pages: [n, page_tokens, *token_shape] on the device, any strides. Read on the current stream; on a GPU this
                does not wait, but for the first pages of a codec, which it is fitted to.

        Raises:
            ValueError: pages of another shape, dtype or device, or numbers that repeat.
            MemoryError: the budget is used up.
            PinError: the system does not page-lock so much memory.
        """
        numbers = _as_numbers(page_ids)
        self._check_open()
        if tuple(pages.shape) != (len(numbers), *self.page_shape) or pages.dtype != self.dtype:
            wanted = f"{[len(numbers), *self.page_shape]} {self.dtype}"
            raise ValueError(f"pages: want {wanted}, got {list(pages.shape)} {pages.dtype}")
        if pages.device != self.device:
            raise ValueError(f"pages: want them on {self.device}, got {pages.device}")
        if len(set(numbers)) != len(numbers):
            raise ValueError("page_ids: want different numbers, got some twice")
        if not numbers:
            return
        with self._turn:
            tokens = pages.detach().resolve_neg().reshape(len(numbers) * self.page_tokens, -1)
            arena = self._arena_for(tokens)
            places = arena.put(tokens)
            self._selected = None
            self._drop([number for number in numbers if number in self._table])
            self._table.set(numbers, len(self._arenas) - 1, places)
            self._recent = [*self._recent, *((arena, place) for place in places)][-_REFIT_PAGES:]

    def get(self, page_ids: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        """Whole pages, in any order. On a GPU enqueued on the current stream; the host waits for pages that were put
        just before.

        Args:
            page_ids: n ints as for `put`, repeats allowed.
            out: [n, page_tokens, *token_shape] on the device, contiguous; None: a new tensor.

        Returns:
            The pages, bit for bit.

        Raises:
            KeyError: there is no such page.
            ValueError: `out` does not fit.
        """
        numbers = _as_numbers(page_ids)
        out = prepare_out(out, (len(numbers), *self.page_shape), self.dtype, self.device)
        self._read(numbers, out)
        return out

    def get_tokens(self, ids: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        """Any tokens, each by itself: on a GPU their slots are read in place, from page-locked memory.

        Args:
            ids: [n] int32 or int64, page number * page_tokens + token, repeats allowed, in CPU memory or on the device.
            out: [n, *token_shape] on the device, contiguous; None: a new tensor.

        Returns:
            The tokens, bit for bit. On a GPU enqueued on the current stream; the host waits for pages that were put
            just before, and, if codecs were fitted anew, for ids on the GPU.

        Raises:
            KeyError: there is no such page. Ids on a GPU are not checked: bad ones give zeros, and a later call may
                raise IndexError.
            ValueError: `out` does not fit.
        """
        wanted = as_ids(ids)
        if wanted.is_cuda and wanted.device != self.device:
            raise ValueError(f"ids: want them in CPU memory or on {self.device}, got ids on {wanted.device}")
        out = prepare_out(out, (len(wanted), *self.token_shape), self.dtype, self.device)
        with self._turn:
            self._check_open()
            rows, of_arena = self._table.find_tokens(wanted)
            if not wanted.is_cuda and bool((rows < 0).any()):
                missing = int(wanted[rows < 0][0]) // self.page_tokens
                raise KeyError(f"ids: want tokens of pages that were put, got one of page {missing}")
            if len(wanted) == 0 or not self._arenas:
                return out
            if len(self._arenas) == 1:
                self._read_in_place(0, rows, out)
                return out
            out.zero_()
            for number in range(len(self._arenas)):
                chosen = torch.nonzero(of_arena == number).flatten()
                if len(chosen) == 0:
                    continue
                part = torch.empty(len(chosen), *self.token_shape, dtype=self.dtype, device=self.device)
                self._read_in_place(number, rows[chosen], part)
                out[chosen.to(self.device)] = part
        return out

    def drop(self, page_ids: Any) -> None:
        """Forgets pages; their memory is used for others.

        Args:
            page_ids: ints as for `put`.

        Raises:
            KeyError: there is no such page; then none is dropped.
        """
        numbers = list(dict.fromkeys(_as_numbers(page_ids)))
        with self._turn:
            self.places_of(numbers)
            self._drop(numbers)

    def prefetch(self, page_ids: Any) -> None:
        """Starts to bring pages to the GPU, for the next `get` of the same ones. On a CPU there is nothing to do.

        Args:
            page_ids: ints as for `put`.

        Raises:
            KeyError: there is no such page.
        """
        numbers = _as_numbers(page_ids)
        with self._turn:
            self.places_of(numbers)
            self._start(numbers)

    def start_read(self, numbers: list[int]) -> None:
        """`prefetch` of a list that is known to be good."""
        with self._turn:
            self._start(numbers)

    def _start(self, numbers: list[int]) -> None:
        if self.landing is not None and numbers:
            selection = self._select(numbers)
            if self.landing.holds is not selection:
                self.landing.start(selection)

    def read(self, numbers: list[int]) -> torch.Tensor:
        """`get` of a list that is known to be good."""
        out = torch.empty(len(numbers), *self.page_shape, dtype=self.dtype, device=self.device)
        self._read(numbers, out)
        return out

    def _read(self, numbers: list[int], out: torch.Tensor) -> None:
        with self._turn:
            self._check_open()
            if not numbers:
                return
            rows = out.view(len(numbers) * self.page_tokens, -1)
            if self.landing is None:
                self._decode_on_cpu(self.places_of(numbers), rows)
                return
            self._start(numbers)
            self.landing.decode(rows)

    def _select(self, numbers: list[int]) -> PageSelection:
        """The last one, if it is of the same pages and no page has changed since."""
        if self._selected is None or self._selected[0] != numbers:
            self._selected = list(numbers), PageSelection(self.places_of(numbers), self.device)
        return self._selected[1]

    def places_of(self, numbers: Sequence[int]) -> list[tuple[PageArena, int]]:
        """Where pages lie. Raises KeyError."""
        self._check_open()
        return [(self._arenas[arena], place) for arena, place in map(self._table.__getitem__, numbers)]

    def report(self) -> PageReport:
        """What is held at present. Does not wait.

        Returns:
            The report.
        """
        token_bytes = math.prod(self.token_shape) * self.dtype.itemsize
        held = sum(arena.num_pages * (arena.page_bytes + self.page_tokens // 8) for arena in self._arenas)
        return PageReport(
            pages=len(self._table),
            raw_bytes=len(self._table) * self.page_tokens * token_bytes,
            compressed_bytes=held + sum(arena.overflow_bytes() for arena in self._arenas),
            locked_bytes=sum(arena.slots.nbytes + arena.overflow.nbytes for arena in self._arenas),
            fits=len(self._arenas),
        )

    def close(self) -> None:
        """Frees all memory once what was enqueued has run. Idempotent."""
        with self._turn:
            self._closed = True
            self._selected = None
            self._table.clear()
            self._in_place.clear()
            for arena in self._arenas:
                arena.close()
            self._arenas, self._recent = [], []

    def __enter__(self) -> CompressedPages:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("pages: want an open store, got one that was closed")

    def _arena_for(self, tokens: torch.Tensor) -> PageArena:
        """The latest, or a new one if the latest pages save too little with it."""
        if self._arenas and not self._saves_little():
            return self._arenas[-1]
        self._recent = []
        self._arenas.append(PageArena(tokens, self.page_tokens, self._budget, self._copies))
        return self._arenas[-1]

    def _saves_little(self) -> bool:
        latest = self._arenas[-1]
        latest.settle()
        if len(self._recent) < _REFIT_PAGES:
            return False
        # A token that does not fit takes its slot and a raw row.
        return latest.overflow_share([place for of, place in self._recent if of is latest]) > self._refit_drop

    def _drop(self, numbers: Sequence[int]) -> None:
        self._selected = None
        for number in numbers:
            at, place = self._table.pop(number)
            arena = self._arenas[at]
            self._recent = [page for page in self._recent if page != (arena, place)]
            arena.free([place])

    def _decode_on_cpu(self, pages: list[tuple[PageArena, int]], out: torch.Tensor) -> None:
        for arena in {id(arena): arena for arena, _ in pages}.values():
            chosen = [at for at, (of, _) in enumerate(pages) if of is arena]
            ids = token_ids([pages[at][1] for at in chosen], self.page_tokens, self.device)
            rows = (
                out if len(chosen) == len(pages) else torch.empty(len(ids), out.shape[1], dtype=out.dtype, device="cpu")
            )
            dispatch.decode_on_cpu(arena.codec.form, arena.rows(), ids, to_bytes(rows))
            if rows is not out:
                out.view(len(pages), -1)[chosen] = rows.view(len(chosen), -1)

    def _read_in_place(self, number: int, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Tokens of an arena by their rows there."""
        arena = self._arenas[number]
        arena.settle_all()
        if self.device.type == "cpu":
            dispatch.decode_on_cpu(arena.codec.form, arena.rows(), rows, to_bytes(out.view(len(rows), -1)))
            return
        gather = self._in_place.get(number)
        if gather is None:
            gather = GpuGather(arena.codec.form, self.device, arena.mapped(), lead_bytes=arena.slot_bytes)
            self._in_place[number] = gather
        gather.gather(ids_on_gpu(rows, self.device), out)


def _as_numbers(page_ids: Any) -> list[int]:
    """Page numbers as a list. Raises TypeError, ValueError."""
    numbers = as_ids(page_ids, "page_ids").tolist() if isinstance(page_ids, torch.Tensor) else list(page_ids)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"page_ids: want ints, got {number!r}")
        if not 0 <= number < MOST_PAGES:
            raise ValueError(f"page_ids: want numbers of at least 0, below {MOST_PAGES}, got {number}")
    return numbers
