"""Which weights of a model are offloaded, and which models cannot be."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import nn

from ..codec.values import SUPPORTED_DTYPES
from .offloaded_weight import OffloadedWeight

# Smaller ones stay as they are: a copy of less takes no less time.
MIN_BYTES = 64 << 10
# They hand their weights to fused kernels: through other ones results would differ in the last bits.
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
_PLAIN = (torch.Tensor, nn.Parameter, getattr(nn, "Buffer", torch.Tensor))  # torch has Buffer since 2.5
FLOATS = tuple(dtype for dtype in SUPPORTED_DTYPES if dtype.is_floating_point)


@dataclasses.dataclass(eq=False)
class FoundWeight:
    """A weight and all places that share it. name: of the first one. by_row, whole: as for Placed."""

    name: str
    parameter: nn.Parameter
    owners: list[tuple[nn.Module, str]]
    by_row: bool
    whole: bool


def find_weights(model: nn.Module) -> list[FoundWeight]:
    """The weights of Linear and Embedding modules, in the order of the modules, tied ones once."""
    found: dict[int, FoundWeight] = {}
    for name, module in _modules_outside(model, _FUSED):
        parameter = module._parameters.get("weight")
        if not isinstance(module, (nn.Linear, nn.Embedding)) or parameter is None:
            continue
        if parameter.nbytes < MIN_BYTES:
            continue
        by_row = isinstance(module, nn.Embedding)
        full_name = f"{name}.weight" if name else "weight"
        one = found.setdefault(id(parameter), FoundWeight(full_name, parameter, [], False, False))
        one.owners.append((module, "weight"))
        one.by_row |= by_row
        one.whole |= not by_row
    for one in found.values():  # those of other kinds of modules, too, that share it
        known = {id(module) for module, _ in one.owners}
        for module in model.modules():
            for key, parameter in module._parameters.items():
                if parameter is one.parameter and id(module) not in known:
                    one.owners.append((module, key))
                    one.whole = True
    return list(found.values())


def check_model(model: nn.Module, *, meta_parameters: bool = False) -> None:
    """Raises TypeError and ValueError for what cannot be offloaded. meta_parameters: whether these may be without
    values."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: want a torch.nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        where = f"model.{name}" if name else "model"
        if module.training:
            raise ValueError(f"{where}: want eval mode, got training mode; call model.eval()")
        if hasattr(module, "_hf_hook"):
            raise ValueError(
                f"{where}: want no hooks of another offloader, got one of accelerate's; load the model without "
                "device_map, or call accelerate.hooks.remove_hook_from_module(model, recurse=True)"
            )
        if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.nn.quantized", "bitsandbytes")):
            raise ValueError(f"{where}: want a module that is not quantised, got {type(module).__name__}")
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and not (meta_parameters and tensor.is_meta and key in module._parameters):
                _check_tensor(f"{where}.{key}", tensor, isinstance(module, (nn.Linear, nn.Embedding)))
        if isinstance(module, nn.Embedding) and module.max_norm is not None:
            raise ValueError(f"{where}: want an Embedding without max_norm, which writes to its weight")


def _check_tensor(name: str, tensor: torch.Tensor, is_offloaded: bool) -> None:
    if isinstance(tensor, OffloadedWeight):
        raise ValueError(f"{name}: want a weight that is not offloaded, got one that is")
    if tensor.is_meta:
        raise ValueError(f"{name}: want values, got a meta tensor; offload.load_checkpoint fills such models")
    if type(tensor) not in _PLAIN:
        raise ValueError(
            f"{name}: want a plain tensor, got {type(tensor).__name__}; quantised ones cannot be offloaded"
        )
    if is_offloaded and isinstance(tensor, nn.Parameter) and tensor.dtype not in FLOATS:
        raise ValueError(f"{name}: want a float dtype, got {tensor.dtype}: quantised weights cannot be offloaded")


def _modules_outside(model: nn.Module, kinds: tuple[type, ...]) -> Iterator[tuple[str, nn.Module]]:
    """As named_modules, without modules of these kinds and what is in them."""
    outside = {""}
    for name, module in model.named_modules():
        parent = name.rpartition(".")[0]
        if (name == "" or parent in outside) and not isinstance(module, kinds):
            outside.add(name)
            yield name, module
