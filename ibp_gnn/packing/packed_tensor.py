"""A tensor of narrow floats in words of 32 bits."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import torch

from .narrow import FORMATS, NarrowFormat, widen

First = Literal["low", "high"]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # that values are unpacked to


@dataclasses.dataclass(frozen=True, eq=False)
class PackedTensor:
    """Values of 16 or 8 bits, LOSSY, as `pack_fp16` and `pack_fp8` make them. Immutable; picklable.

    words: uint32 [*shape[:-1], words of a row]: two values of 16 bits or four of 8 in each; the last one of a row is
        filled up with zeros.
    shape: of the values.
    format: "fp16", "e5m2" or "e4m3".
    scale: float32, of a shape that broadcasts to `shape`, on the same device. A value is what its code stands for,
        times this. None: 1.
    first: whether the first value of a word is in its low or in its high bits.

    Example:
        >>> w = ibp_gnn.packing.pack_fp8(torch.tensor([[1.0, -2.0, 0.1]]), "e4m3")
        >>> w.words, w.unpack()
        (tensor([[1949752]], dtype=torch.uint32), tensor([[ 1.0000, -2.0000,  0.1016]]))
    """

    words: torch.Tensor
    shape: tuple[int, ...]
    format: str
    scale: torch.Tensor | None = None
    first: First = "low"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"format: want one of {list(FORMATS)}, got {self.format!r}")
        if self.first not in ("low", "high"):
            raise ValueError(f"first: want 'low' or 'high', got {self.first!r}")
        object.__setattr__(self, "shape", tuple(self.shape))
        if not self.shape:
            raise ValueError("shape: want at least one dimension, got []")
        wanted = (*self.shape[:-1], -(-self.shape[-1] // self.kind.per_word))
        if self.words.dtype != torch.uint32 or tuple(self.words.shape) != wanted or not self.words.is_contiguous():
            got = f"{list(self.words.shape)} {self.words.dtype}"
            raise ValueError(f"words: want contiguous {list(wanted)} torch.uint32, got {got}")
        if self.scale is not None:
            if self.scale.dtype != torch.float32 or self.scale.device != self.words.device:
                got = f"{self.scale.dtype} on {self.scale.device}"
                raise ValueError(f"scale: want torch.float32 on {self.words.device}, got {got}")
            check_scale_shape(self.scale, self.shape)

    @property
    def kind(self) -> NarrowFormat:
        """The format, in detail."""
        return FORMATS[self.format]

    @property
    def device(self) -> torch.device:
        """Where the words are."""
        return self.words.device

    @property
    def nbytes(self) -> int:
        """Bytes of words and scale."""
        return 4 * self.words.numel() + (0 if self.scale is None else self.scale.nbytes)

    def codes(self) -> torch.Tensor:
        """The codes one after the other.

        Returns:
            uint8 [values * bytes of a code], contiguous, on this device.
        """
        row_bytes = self.shape[-1] * self.kind.nbytes
        in_words = self.words.view(torch.uint8).view(math.prod(self.shape[:-1]), 4 * self.words.shape[-1])
        if self.first == "high":
            in_words = in_words.unflatten(1, (-1, self.kind.per_word, self.kind.nbytes)).flip(2).flatten(1)
        return in_words[:, :row_bytes].contiguous().flatten()

    def unpack(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The values.

        Args:
            dtype: torch.float32, which holds them exactly (but for products with a scale that is no power of two), or
                torch.float16 or torch.bfloat16, to which they are then rounded.

        Returns:
            `shape` of dtype, on the same device. On CUDA enqueued on the current stream.

        Raises:
            ValueError: another dtype.
        """
        if dtype not in DTYPES:
            raise ValueError(f"dtype: want one of {[str(one) for one in DTYPES]}, got {dtype}")
        codes = self.codes()
        if self.scale is None and dtype == self.kind.dtype:
            return codes.view(dtype).view(self.shape)
        values = widen(codes, self.kind).view(self.shape)
        if self.scale is not None:
            values *= self.scale
        return values.to(dtype)

    def to(self, device: torch.device | str) -> PackedTensor:
        """The same values on another device.

        Args:
            device: where to.

        Returns:
            A copy there; itself if it is there already.
        """
        if self.words.device == torch.device(device):
            return self
        scale = None if self.scale is None else self.scale.to(device)
        return dataclasses.replace(self, words=self.words.to(device), scale=scale)

    def __reduce__(self) -> tuple[Any, ...]:  # torch pickles no uint32
        return _of_int32, (self.words.view(torch.int32), self.shape, self.format, self.scale, self.first)

    def __repr__(self) -> str:
        scaled = "" if self.scale is None else f", scale {list(self.scale.shape)}"
        return f"PackedTensor({list(self.shape)} {self.format}, LOSSY, {self.nbytes} bytes on {self.device}{scaled})"


def check_scale_shape(scale: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless it broadcasts to the shape."""
    try:
        scale.expand(shape)
    except RuntimeError as error:
        raise ValueError(f"scale: want a shape that broadcasts to {list(shape)}, got {list(scale.shape)}") from error


def _of_int32(words: torch.Tensor, *others: Any) -> PackedTensor:
    return PackedTensor(words.view(torch.uint32), *others)
