"""The baseline for a compressed KV cache: the same blocks, prefetch and page-locked memory, and raw bytes."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer


class RawOffloadedCache(Cache):
    """As CompressedOffloadedCache, for a number of tokens that is known before."""

    def __init__(self, num_layers: int, block_tokens: int, most_tokens: int, recent_tokens: int = 64) -> None:
        shared = _Shared(block_tokens, recent_tokens, most_tokens)
        super().__init__(layers=[_RawLayer(shared, at % 2) for at in range(num_layers)])
        self._shared = shared

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        this, following = self.layers[layer_idx], self.layers[(layer_idx + 1) % len(self.layers)]
        this.fetch()
        if following.slot != this.slot:
            following.fetch()
        updated: tuple[torch.Tensor, torch.Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        following.fetch()  # of an odd number of layers, the last and the first have the same landing
        return updated

    @property
    def moved_bytes(self) -> int:
        return self._shared.moved_bytes


class _Shared:
    def __init__(self, block_tokens: int, recent_tokens: int, most_tokens: int) -> None:
        self.block_tokens, self.recent_tokens, self.most_tokens = block_tokens, recent_tokens, most_tokens
        self.copies = torch.cuda.Stream()
        self.landings: list[torch.Tensor | None] = [None, None]
        self.owners: list[object] = [None, None]
        self.filled = [torch.cuda.Event() for _ in range(2)]
        self.free = [torch.cuda.Event() for _ in range(2)]
        self.moved_bytes = 0


class _RawLayer(DynamicLayer):
    """Sealed keys and values lie in page-locked memory: [2, batch, heads, most_tokens, size]."""

    def __init__(self, shared: _Shared, slot: int) -> None:
        super().__init__()
        self._shared, self.slot, self._sealed = shared, slot, 0
        self._host: torch.Tensor | None = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]
        self.keys = torch.cat([self.keys, key_states], -2)
        self.values = torch.cat([self.values, value_states], -2)
        keys, values = self.keys, self.values
        if self._sealed:
            slot, stream = self.slot, torch.cuda.current_stream()
            stream.wait_event(self._shared.filled[slot])
            sealed = self._landed()
            keys, values = torch.cat([sealed[0], keys], -2), torch.cat([sealed[1], values], -2)
            self._shared.free[slot].record(stream)
            self._shared.owners[slot] = None
        self._seal()
        return keys, values

    def _landed(self) -> torch.Tensor:
        assert self._host is not None  # there are sealed blocks
        size = (*self._host.shape[:3], self._sealed, self._host.shape[-1])
        landing = self._shared.landings[self.slot]
        if landing is None or landing.numel() < self._host.numel():
            landing = torch.empty(self._host.numel(), dtype=self._host.dtype, device=self.keys.device)
            self._shared.landings[self.slot] = landing
            self._shared.copies.wait_stream(torch.cuda.current_stream())
        return landing[: torch.Size(size).numel()].view(size)

    def fetch(self) -> None:
        shared, slot = self._shared, self.slot
        if not self._sealed or shared.owners[slot] is self:
            return
        assert self._host is not None  # there are sealed blocks
        landed = self._landed()
        with torch.cuda.stream(shared.copies):
            shared.copies.wait_event(shared.free[slot])
            for to, of in zip(landed.flatten(0, 2), self._host.flatten(0, 2), strict=True):
                to.copy_(of[: self._sealed], non_blocking=True)  # heads: each a piece of page-locked memory
            shared.filled[slot].record(shared.copies)
        shared.owners[slot] = self
        shared.moved_bytes += landed.nbytes

    def _seal(self) -> None:
        shared = self._shared
        end = (self.keys.shape[-2] - shared.recent_tokens) // shared.block_tokens * shared.block_tokens
        if end <= 0:
            return
        if self._host is None:
            batch, heads, _, size = self.keys.shape
            self._host = torch.empty(2, batch, heads, shared.most_tokens, size, dtype=self.keys.dtype, pin_memory=True)
        shared.copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(shared.copies):
            for kind, states in enumerate((self.keys, self.values)):
                moved = states[..., :end, :].contiguous()
                moved.record_stream(shared.copies)
                self._host[kind, :, :, self._sealed : self._sealed + end].copy_(moved, non_blocking=True)
        self._sealed += end
        self.keys, self.values = self.keys[..., end:, :].clone(), self.values[..., end:, :].clone()

    def get_seq_length(self, *_: Any) -> int:
        return self._sealed + (0 if self.keys is None else self.keys.shape[-2])
