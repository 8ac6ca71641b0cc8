"""What stands in a module where an offloaded weight was: a parameter without memory, which operations of torch read
through a decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from .decoder import Decoder
from .weight import CompressedWeight

# Launched with a weight in memory that the next one overwrites: what they return shares none with it.
_COMPUTES = {F.linear, F.embedding, torch.matmul, torch.mm, torch.addmm, torch.Tensor.matmul, torch.Tensor.__matmul__}
_COMPUTES |= {torch.Tensor.__rmatmul__, torch.Tensor.mm, torch.Tensor.addmm}
# Of these the values do not matter.
_ATTRIBUTES = (
    "dtype grad grad_fn is_cpu is_cuda is_leaf is_meta is_mkldnn is_mps is_nested is_quantized is_sparse is_sparse_csr "
    "itemsize layout names nbytes ndim output_nr requires_grad retains_grad shape volatile _backward_hooks _base "
    "_version"
).split()
_METHODS = (
    "__hash__ __len__ dim element_size get_device has_names is_complex is_contiguous is_floating_point is_inference "
    "is_signed ndimension nelement numel requires_grad_ retain_grad size storage_offset stride"
).split()
_DESCRIBES = {getattr(torch.Tensor, name).__get__ for name in _ATTRIBUTES if hasattr(torch.Tensor, name)}
_DESCRIBES |= {getattr(torch.Tensor, name) for name in _METHODS if hasattr(torch.Tensor, name)}
_DESCRIBES |= {torch.is_floating_point, torch.is_complex, torch.numel}


class OffloadedWeight(torch.nn.Parameter):
    """A parameter whose values are compressed elsewhere. Shape, dtype and device are those of the weight; it takes no
    memory. Operations get the decoded values; to write to it is an error.
    """

    _decoder: Decoder
    _number: int
    _name: str
    _by_row: bool

    def __new__(
        cls, *, decoder: Decoder, number: int, name: str, shape: Sequence[int], dtype: torch.dtype, by_row: bool
    ) -> Any:
        """number: of the weight, to its decoder. name: in the model, for messages. by_row: whether the decoder can read
        rows of it."""
        with torch.inference_mode(False):
            empty = torch.empty(tuple(shape), dtype=dtype, device="meta")
        weight = torch.Tensor._make_subclass(cls, empty, False)
        weight._decoder, weight._number, weight._name, weight._by_row = decoder, number, name, by_row
        return weight

    def __init__(self, **_: Any) -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._decoder.device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return self._decoder.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return self._decoder.device.type == "cpu"

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    def detach(self) -> OffloadedWeight:
        """Itself: it has no gradient."""
        return self

    def decoded(self, device: torch.device | None = None) -> torch.Tensor:
        """The weight in memory of its own. device: None: its own device."""
        return self._decoder.copy(self._number, device)

    def compressed(self) -> CompressedWeight:
        """As it is held."""
        return self._decoder.compressed(self._number)

    def read_from(self, decoder: Decoder, number: int) -> None:
        """From now on. number: of the weight there."""
        self._decoder, self._number = decoder, number

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OffloadedWeight({self._name!r}, shape={list(self.shape)}, {self.dtype}, {self._decoder.device})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.decoded().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> torch.nn.Parameter:
        """A plain parameter."""
        copy = torch.nn.Parameter(self.decoded(), requires_grad=False)
        memo[id(self)] = copy
        return copy

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DESCRIBES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        weights = [value for value in _flat((args, kwargs)) if isinstance(value, OffloadedWeight)]
        _check_reads(func, weights[0], args, kwargs)
        if len(weights) == 1 and func in _COMPUTES:
            return weights[0]._compute(func, args, kwargs)
        raw = {id(weight): weight.decoded() for weight in weights}
        return func(*_replaced(args, raw), **_replaced(kwargs, raw))

    def _compute(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        if func is F.embedding and self._by_row:
            return self._decoder.read_rows(self._number, _ids_of_embedding(*args, **kwargs))
        with self._decoder.lend(self._number) as raw:
            lent = {id(self): raw}
            return func(*_replaced(args, lent), **_replaced(kwargs, lent))


def _ids_of_embedding(
    input: torch.Tensor, weight: Any, padding_idx: Any = None, max_norm: Any = None, *_: Any, **__: Any
) -> torch.Tensor:
    """Takes the arguments of F.embedding."""
    if max_norm is not None:
        raise RuntimeError("embedding: want no max_norm, which writes to the weight, got one for an offloaded weight")
    return input


def _check_reads(func: Callable[..., Any], weight: OffloadedWeight, args: Any, kwargs: dict[str, Any]) -> None:
    """Raises RuntimeError if the function writes to a weight, or if a backward pass would need it."""
    name = getattr(func, "__name__", str(func))
    in_place = (name.endswith("_") and not name.endswith("__")) or name in ("__setitem__", "__set__")
    in_place |= name.startswith("__i") and name not in ("__index__", "__int__", "__invert__")
    if isinstance(kwargs.get("out"), OffloadedWeight) or (in_place and args and isinstance(args[0], OffloadedWeight)):
        raise RuntimeError(
            f"{weight._name}: want an operation that reads the weight, got {name}: offloaded weights are read only; "
            "close the offload first"
        )
    needs_grad = (isinstance(value, torch.Tensor) and value.requires_grad for value in _flat((args, kwargs)))
    if torch.is_grad_enabled() and any(needs_grad):
        raise RuntimeError(
            f"{weight._name}: want inference, under torch.no_grad() or torch.inference_mode(), got an input that "
            "requires grad: offloaded weights cannot be trained"
        )


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in _flat(item)]
    return [value]


def _replaced(value: Any, raw: dict[int, torch.Tensor]) -> Any:
    """`value` with decoded weights in the place of offloaded ones."""
    if isinstance(value, OffloadedWeight):
        return raw[id(value)]
    if isinstance(value, dict):
        return {name: _replaced(item, raw) for name, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_replaced(item, raw) for item in value)
    return value
