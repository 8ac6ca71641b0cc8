"""A KV cache for transformers' `generate` that lies in CPU memory, losslessly compressed."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
import transformers
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from ..gpu.capacity import parse_bytes
from .locked_region import Budget
from .page_landing import PageLanding
from .pages import CompressedPages, PageReport

_CROPS_TO_LENGTH = int(transformers.__version__.split(".")[0]) < 5


class CompressedOffloadedCache(Cache):
    """Keys and values of a model, for `generate(past_key_values=...)` and `forward`.

    The recent tokens of each layer stay as they are, on the device. Older ones are sealed: block by block they are
    compressed, and go to CPU memory, page-locked for a GPU. They come back for each forward pass, the next layer's
    while this one computes. Only new blocks ever go down. Results are those of transformers' DynamicCache, bit for bit.
    Layers of other kinds than full attention (sliding windows for one) are transformers' own.

    A context manager; `close` frees the memory.

    Example:
        >>> cache = ibp_gnn.offload.CompressedOffloadedCache(budget="1GB", block_tokens=32, recent_tokens=8)
        >>> kv = torch.randn(1, 2, 100, 64, dtype=torch.bfloat16)
        >>> keys, values = cache.update(kv, kv, layer_idx=0)
        >>> keys.shape, cache.report().pages, cache.get_seq_length()
        (torch.Size([1, 2, 100, 64]), 2, 100)
    """

    def __init__(
        self,
        config: Any = None,
        *,
        budget: int | str = "50%",
        block_tokens: int = 64,
        recent_tokens: int = 64,
        refit_drop: float = 0.05,
    ) -> None:
        """Makes an empty cache.

        Args:
            config: of the model: says which layers have a sliding window. None: no layer has.
            budget: CPU memory for all layers: bytes, "20GB", or a share of the machine's memory.
            block_tokens: tokens that are sealed together, a multiple of 32.
            recent_tokens: how many of the last tokens are not sealed, at least.
            refit_drop: see CompressedPages.

        Raises:
            ValueError: bad arguments.
        """
        if isinstance(block_tokens, bool) or not isinstance(block_tokens, int) or block_tokens < 1 or block_tokens % 32:
            raise ValueError(f"block_tokens: want a multiple of 32, got {block_tokens!r}")
        if isinstance(recent_tokens, bool) or not isinstance(recent_tokens, int) or recent_tokens < 0:
            raise ValueError(f"recent_tokens: want 0 or more, got {recent_tokens!r}")
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._shared = _Shared(
            Budget(parse_bytes("budget", budget, whole=machine)), block_tokens, recent_tokens, refit_drop
        )
        if config is None:
            make: Any = functools.partial(CompressedLayer, self._shared)
            super().__init__(layer_class_to_replicate=make)
            return
        layers = DynamicCache(config=config).layers
        super().__init__(
            layers=[CompressedLayer(self._shared) if type(layer) is DynamicLayer else layer for layer in layers]
        )

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds the keys and values of new tokens to a layer; starts to fetch the next layer's.

        Args:
            key_states: [batch, heads, tokens, head size].
            value_states: the same of values.
            layer_idx: which layer.
            args: transformers' business, as kwargs are.
            kwargs: the same.

        Returns:
            Keys and values of all tokens, on the device of the new ones.
        """
        layers: list[Any] = list(self.layers)
        this = layers[layer_idx] if layer_idx < len(layers) else None
        if not isinstance(this, CompressedLayer):  # of another kind, or made by this call
            return self._update(key_states, value_states, layer_idx, *args, **kwargs)
        # The next layer whose blocks are fetched; after the last one, the first.
        others = [*layers[layer_idx + 1 :], *layers[: layer_idx + 1]]
        following = next(layer for layer in others if isinstance(layer, CompressedLayer))
        this.fetch()
        # Of an odd number of layers, the last and the first one have the same landing.
        at_once = following.landing is not this.landing
        if at_once:
            following.fetch()
        updated = self._update(key_states, value_states, layer_idx, *args, **kwargs)
        if not at_once:
            following.fetch()
        return updated

    def _update(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        updated: tuple[torch.Tensor, torch.Tensor] = super().update(*args, **kwargs)
        return updated

    def report(self) -> PageReport:
        """What the sealed blocks of all layers hold.

        Returns:
            The sums over the layers.
        """
        reports = [layer.pages.report() for layer in self.layers if isinstance(layer, CompressedLayer) and layer.pages]
        names = ("pages", "raw_bytes", "compressed_bytes", "locked_bytes", "fits")
        return PageReport(**{name: sum(getattr(report, name) for report in reports) for name in names})

    @property
    def moved_bytes(self) -> int:
        """Compressed bytes that came to the GPU so far."""
        return sum(landing.moved_bytes for landing in self._shared.landings)

    def close(self) -> None:
        """Empties the cache and frees its memory."""
        for layer in self.layers:
            if isinstance(layer, CompressedLayer):
                layer.close()

    def __enter__(self) -> CompressedOffloadedCache:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Shared:
    """What the layers of a cache have in common. landings: two, which layers take in turns; made on first use."""

    def __init__(self, budget: Budget, block_tokens: int, recent_tokens: int, refit_drop: float) -> None:
        self.budget, self.refit_drop = budget, refit_drop
        self.block_tokens, self.recent_tokens = block_tokens, recent_tokens
        self.copies: dict[torch.device, torch.cuda.Stream] = {}
        self._landings: dict[torch.device, list[PageLanding]] = {}
        self._layers = 0

    @property
    def landings(self) -> list[PageLanding]:
        return [landing for of_device in self._landings.values() for landing in of_device]

    def make_pages(self, row_values: int, dtype: torch.dtype, device: torch.device) -> CompressedPages:
        """A store for the next layer."""
        landing = None
        if device.type == "cuda":
            copies = self.copies.setdefault(device, torch.cuda.Stream(device))
            landings = self._landings.setdefault(device, [PageLanding(device, copies) for _ in range(2)])
            landing = landings[self._layers % 2]
            self._layers += 1
        return CompressedPages(
            self.block_tokens,
            (row_values,),
            dtype,
            budget=self.budget,
            device=device,
            refit_drop=self.refit_drop,
            landing=landing,
            copies=self.copies.get(device),
        )


class CompressedLayer(DynamicLayer):
    """A layer of full attention. A page is a block of tokens of one sequence; a token is all its heads' keys, then all
    their values. `keys` and `values` have the tokens that are not sealed. Sequences share pages after beams have split.
    """

    keys: Any
    values: Any

    def __init__(self, shared: _Shared) -> None:
        super().__init__()
        self._shared = shared
        self.pages: CompressedPages | None = None
        self._tables: list[list[int]] = []  # of each sequence: its blocks' pages
        self._next_page = 0

    def lazy_initialization(self, key_states: torch.Tensor, *args: Any) -> None:
        """Takes what the new tokens are like. args: the values' states; transformers 4 has none."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self._tables = [[] for _ in range(key_states.shape[0])]
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As DynamicLayer's."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.keys is None:
            self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]
        tail = torch.cat([self.keys, key_states], dim=-2), torch.cat([self.values, value_states], dim=-2)
        sealed = self._sealed()
        keys, values = tail if sealed is None else [torch.cat(both, dim=-2) for both in zip(sealed, tail, strict=True)]
        self.keys, self.values = tail
        self._seal()
        return keys, values

    @property
    def landing(self) -> PageLanding | None:
        """Where its blocks come to; None on a CPU, and as long as there are none."""
        return None if self.pages is None else self.pages.landing

    def fetch(self) -> None:
        """Starts to bring the sealed blocks to the GPU, unless they are under way."""
        if self.pages is None or self.pages.landing is None or not self._tables or not self._tables[0]:
            return
        self.pages.start_read(self._numbers())

    def get_seq_length(self, *args: Any) -> int:
        """Tokens so far."""
        if not self.is_initialized or self.keys is None:
            return 0
        return self._sealed_tokens() + int(self.keys.shape[-2])

    def reset(self) -> None:
        """Forgets all tokens."""
        self._set_tables([])
        self.keys = self.values = None
        self.is_initialized = False

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last tokens. tokens_to_remove: a negative number of them; in transformers 4 a positive one is the
        length to keep."""
        if tokens_to_remove == 0 or not self.is_initialized or self.keys is None:
            return
        length = self.get_seq_length()
        if tokens_to_remove > 0 and not _CROPS_TO_LENGTH:
            raise ValueError(f"crop: want a negative number of tokens to remove, got {tokens_to_remove}")
        kept = tokens_to_remove if tokens_to_remove > 0 else max(0, length + tokens_to_remove)
        if kept >= length:
            return
        sealed = self._sealed_tokens()
        if kept >= sealed:
            self.keys, self.values = self.keys[..., : kept - sealed, :], self.values[..., : kept - sealed, :]
            return
        blocks, left = divmod(kept, self._shared.block_tokens)
        keys, values = self._states_of([table[blocks : blocks + 1] for table in self._tables])
        self.keys, self.values = keys[..., :left, :].clone(), values[..., :left, :].clone()
        self._set_tables([table[:blocks] for table in self._tables])

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Sequence i becomes what sequence beam_idx[i] was. Sealed blocks are shared, not copied."""
        self._take_sequences(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each sequence `repeats` times."""
        self._take_sequences(torch.arange(len(self._tables), device="cpu").repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Only these sequences: numbers, or a bool for each."""
        self._take_sequences(torch.arange(len(self._tables), device="cpu")[indices.cpu()])

    def close(self) -> None:
        """Forgets all tokens and frees the pages."""
        self.reset()
        if self.pages is not None:
            self.pages.close()
            self.pages = None

    # --- sealed blocks ------------------------------------------------------------------------------------------------

    def _sealed_tokens(self) -> int:
        return len(self._tables[0]) * self._shared.block_tokens if self._tables else 0

    def _numbers(self) -> list[int]:
        return [number for table in self._tables for number in table]

    def _sealed(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        return self._states_of(self._tables) if self._sealed_tokens() else None

    def _states_of(self, tables: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of blocks, as many of each sequence: [batch, heads, tokens, head size], not contiguous."""
        assert self.pages is not None and self.keys is not None and self.values is not None  # there are sealed blocks
        tokens = self.pages.read([number for table in tables for number in table])
        tokens = tokens.view(len(tables), -1, tokens.shape[-1])
        (_, heads, _, size), (_, value_heads, _, value_size) = self.keys.shape, self.values.shape
        keys, values = tokens.split([heads * size, value_heads * value_size], dim=-1)
        return keys.unflatten(-1, (heads, size)).transpose(1, 2), values.unflatten(
            -1, (value_heads, value_size)
        ).transpose(1, 2)

    def _seal(self) -> None:
        """Whole blocks of the tokens that are not recent."""
        assert self.keys is not None and self.values is not None  # there are tokens
        block = self._shared.block_tokens
        blocks = (int(self.keys.shape[-2]) - self._shared.recent_tokens) // block
        if blocks < 1:
            return
        end, batch = blocks * block, len(self._tables)
        states = [states[..., :end, :].transpose(1, 2).flatten(2) for states in (self.keys, self.values)]
        tokens = torch.cat(states, dim=-1)  # [batch, tokens, values]
        if self.pages is None:
            self.pages = self._shared.make_pages(tokens.shape[-1], tokens.dtype, tokens.device)
        numbers = list(range(self._next_page, self._next_page + batch * blocks))
        self.pages.put(numbers, tokens.view(batch * blocks, block, -1))
        self._next_page += len(numbers)
        for at, table in enumerate(self._tables):
            table += numbers[at * blocks : (at + 1) * blocks]
        self.keys, self.values = self.keys[..., end:, :].clone(), self.values[..., end:, :].clone()

    def _take_sequences(self, numbers: torch.Tensor) -> None:
        if not self.is_initialized or self.keys is None:
            return
        self._set_tables([list(self._tables[number]) for number in numbers.tolist()])
        chosen = numbers.to(self.keys.device)
        self.keys, self.values = self.keys.index_select(0, chosen), self.values.index_select(0, chosen)

    def _set_tables(self, tables: list[list[int]]) -> None:
        """Drops the pages that no sequence has any more."""
        dropped = set(self._numbers()) - {number for table in tables for number in table}
        self._tables = tables
        if dropped and self.pages is not None:
            self.pages.drop(sorted(dropped))
