"""What users give as bags, checked as torch.nn.EmbeddingBag does, with its classes of errors."""

from __future__ import annotations

from typing import Any

import torch

from ..codec.pool import MODES, Bags
from ..codec.values import check_ids_on_cpu


def check_mode(mode: Any) -> None:
    """Raises ValueError."""
    if mode not in MODES:
        raise ValueError(f"mode: want one of {', '.join(MODES)}, got {mode!r}")


def padding_id(padding_idx: int | None, num_embeddings: int) -> int:
    """padding_idx: as torch.nn.EmbeddingBag takes it, from the end if negative. Returns the id, -1 for None. Raises
    AssertionError, as torch does."""
    if padding_idx is None:
        return -1
    if isinstance(padding_idx, bool) or not isinstance(padding_idx, int):
        raise TypeError(f"padding_idx: want an int or None, got {type(padding_idx).__name__}")
    if not -num_embeddings <= padding_idx < num_embeddings:
        raise AssertionError(f"padding_idx: want {-num_embeddings} to {num_embeddings - 1}, got {padding_idx}")
    return padding_idx % num_embeddings


def as_bags(
    input: Any,
    offsets: Any,
    per_sample_weights: Any,
    *,
    mode: str,
    dtype: torch.dtype,
    include_last_offset: bool = False,
    num_rows: int,
) -> Bags:
    """The arguments of torch.nn.EmbeddingBag.forward.

    Args:
        input: int32/int64 [n] with offsets, or [num_bags, ids of a bag] without.
        offsets: int32/int64 [num_bags], one more with include_last_offset; starts with 0. Values on a GPU are not
            looked at.
        per_sample_weights: of the table's dtype and the shape of input; with mode "sum" only.
        mode: "sum", "mean" or "max".
        dtype: of the table.
        include_last_offset: whether the last offset is where the last bag ends.
        num_rows: of the table.

    Returns:
        The bags, on the device of input.

    Raises:
        ValueError, RuntimeError, NotImplementedError: where torch.nn.EmbeddingBag raises these.
        IndexError: an id in CPU memory is none of the table.
        TypeError: something that is no tensor.
    """
    ids = _integers(input, "input")
    if ids.ndim not in (1, 2):
        raise ValueError(f"input: want 1 or 2 dimensions, got {ids.ndim}")
    weights = None
    if per_sample_weights is not None:
        weights = _weights(per_sample_weights, ids, mode, dtype)
    if ids.ndim == 2:
        if offsets is not None:
            raise ValueError(f"offsets: want None for an input of 2 dimensions, got {type(offsets).__name__}")
        num_bags, bag_ids = ids.shape
        bags = Bags(ids.reshape(-1).contiguous(), None, bag_ids, num_bags, weights)
    else:
        if offsets is None:
            raise ValueError("offsets: want a 1D tensor for an input of 1 dimension, got None")
        starts = _integers(offsets, "offsets")
        if starts.ndim != 1:
            raise ValueError(f"offsets: want 1 dimension, got {starts.ndim}")
        if starts.device != ids.device:
            raise RuntimeError(f"offsets: want them on {ids.device}, where input is, got {starts.device}")
        if include_last_offset and len(starts) == 0:
            raise RuntimeError("offsets: want at least 1 with include_last_offset, got none")
        _check_offsets(starts, len(ids))
        num_bags = len(starts) - include_last_offset
        bags = Bags(ids.contiguous(), starts.contiguous(), 0, num_bags, weights)
    check_ids_on_cpu(bags.ids, num_rows)
    return bags


def _integers(tensor: Any, name: str) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: want a tensor, got {type(tensor).__name__}")
    if tensor.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"{name}: want int32 or int64, got {tensor.dtype}")
    return tensor


def _weights(weights: Any, ids: torch.Tensor, mode: str, dtype: torch.dtype) -> torch.Tensor:
    """float32 [n]"""
    if not isinstance(weights, torch.Tensor):
        raise TypeError(f"per_sample_weights: want a tensor, got {type(weights).__name__}")
    if weights.shape != ids.shape:
        raise ValueError(f"per_sample_weights: want the shape of input, {list(ids.shape)}, got {list(weights.shape)}")
    if mode != "sum":
        raise NotImplementedError(f"per_sample_weights: want mode='sum' with them, got mode={mode!r}")
    if weights.dtype not in (dtype, torch.float32) or weights.dtype == torch.float64:
        raise RuntimeError(f"per_sample_weights: want {dtype} like the table, got {weights.dtype}")
    if weights.device != ids.device:
        raise RuntimeError(f"per_sample_weights: want them on {ids.device}, where input is, got {weights.device}")
    if weights.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("per_sample_weights: want weights without gradient, got requires_grad=True; detach() them")
    return weights.detach().resolve_neg().reshape(-1).to(torch.float32).contiguous()


def _check_offsets(offsets: torch.Tensor, num_ids: int) -> None:
    """Of CPU memory. Raises RuntimeError."""
    if offsets.is_cuda or len(offsets) == 0:
        return
    if int(offsets[0]) != 0:
        raise RuntimeError(f"offsets[0]: want 0, got {int(offsets[0])}")
    if int(offsets[-1]) > num_ids:
        raise RuntimeError(f"offsets[-1]: want at most the input's length, {num_ids}, got {int(offsets[-1])}")
    falls = torch.nonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        at = int(falls[0])
        raise RuntimeError(f"offsets: want them not to fall, got {int(offsets[at])} before {int(offsets[at + 1])}")
