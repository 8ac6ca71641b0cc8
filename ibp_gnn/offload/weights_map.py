"""Compressed weights by name, as a Mapping: a drop-in for accelerate's `weights_map`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from ..codec.values import resolve_device
from .host_memory import HostArena
from .modules import FLOATS, MIN_BYTES
from .weight import CompressedWeight, compress_weight


class CompressedWeights(Mapping[str, torch.Tensor]):
    """Tensors by name, compressed in CPU memory. Each look-up decodes one, in new memory.

    accelerate takes it where it takes a state dict:

        weights = CompressedWeights(model.state_dict(), device="cuda")
        attach_align_device_hook(model, execution_device="cuda", offload=True, weights_map=weights)

    With a GPU as device a tensor crosses the link compressed, from page-locked memory, and is decoded there. accelerate
    waits for each, so `offload` is faster.

    Example:
        >>> state = {"up.weight": torch.randn(256, 256).bfloat16(), "up.bias": torch.zeros(256)}
        >>> weights = ibp_gnn.offload.CompressedWeights(state, device="cpu", progress=False)
        >>> weights.nbytes < 0.8 * 256 * 256 * 2, torch.equal(weights["up.weight"], state["up.weight"])
        (True, True)
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor] | nn.Module,
        *,
        device: torch.device | str = "cpu",
        progress: bool = True,
    ) -> None:
        """Compresses what is a float tensor of at least 64 KiB and two dimensions; keeps the rest.

        Args:
            tensors: by name; or a module, whose state_dict they are.
            device: where tensors are decoded and returned.
            progress: whether to show a bar.

        Raises:
            ValueError: a meta tensor.
            PinError: the system does not page-lock so much memory.
        """
        self._device = resolve_device(device, torch.device("cpu"))
        self._arena = HostArena(pin=self._device.type == "cuda")
        self._held: dict[str, CompressedWeight | torch.Tensor] = {}
        known: dict[tuple[Any, ...], CompressedWeight | torch.Tensor] = {}  # tied ones once
        state = tensors.state_dict() if isinstance(tensors, nn.Module) else tensors
        for name, tensor in tqdm(state.items(), desc="compressing weights", unit="weight", disable=not progress):
            if tensor.is_meta:
                raise ValueError(f"{name}: want values, got a meta tensor")
            key = tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
            if key not in known or tensor.numel() == 0:
                known[key] = self._hold(tensor)
            self._held[name] = known[key]
        self._arena.lock(self._device)

    def _hold(self, tensor: torch.Tensor) -> CompressedWeight | torch.Tensor:
        if tensor.dtype not in FLOATS or tensor.ndim < 2 or tensor.nbytes < MIN_BYTES:
            return tensor.detach().cpu().clone()
        on = self._device if self._device.type == "cuda" else tensor.device
        weight = compress_weight(tensor, by_row=False, device=on)
        return weight.moved_to(self._arena.take(weight.layout.nbytes))

    def __getitem__(self, name: str) -> torch.Tensor:
        """The tensor on the device, in memory of its own. Raises KeyError."""
        held = self._held[name]
        if isinstance(held, CompressedWeight):
            return held.decompress(self._device)
        return held.to(self._device, copy=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes held in CPU memory."""
        return sum(held.nbytes for held in {id(held): held for held in self._held.values()}.values())

    def close(self) -> None:
        """Unlocks the memory. The mapping is empty then."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._held.clear()
        self._arena.close()
