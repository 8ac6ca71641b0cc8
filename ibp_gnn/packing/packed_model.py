"""Modules with packed weights, for inference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import nn
from tqdm import tqdm

from .linear import check_weight, packed_gemv
from .pack import pack_fp8, pack_fp16
from .packed_tensor import First, PackedTensor

Format = Literal["fp16", "e4m3", "e5m2"]
# They hand their weights to fused kernels.
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


class PackedLinear(nn.Module):
    """nn.Linear with a packed weight, LOSSY, for inference. Sums are float32. Its weight is in buffers, so state_dict,
    `to` and pickle take it along; `to(dtype)` changes the bias alone.

    Example:
        >>> linear = torch.nn.Linear(64, 8).eval()
        >>> packed = ibp_gnn.packing.PackedLinear.from_linear(linear, "e4m3")
        >>> packed(torch.ones(3, 64)).shape, packed
        (torch.Size([3, 8]), PackedLinear(in_features=64, out_features=8, bias=True, format=e4m3, LOSSY))
    """

    words: torch.Tensor
    scale_bits: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(self, weight: PackedTensor, bias: torch.Tensor | None = None) -> None:
        """Use `from_linear` for a module that is there.

        Args:
            weight: [out_features, in_features].
            bias: [out_features] of the dtype that inputs will have. None: none.

        Raises:
            TypeError: no packed weight.
            ValueError: a weight or bias that does not fit.
        """
        super().__init__()
        check_weight(weight)
        self.out_features, self.in_features = weight.shape
        if bias is not None and (tuple(bias.shape) != (self.out_features,) or bias.device != weight.device):
            got = f"{list(bias.shape)} on {bias.device}"
            raise ValueError(f"bias: want [{self.out_features}] on {weight.device}, got {got}")
        self.format, self.first = weight.format, weight.first
        self.register_buffer("words", weight.words)
        # As integers: modules are cast to float dtypes, which would round the scale.
        self.register_buffer("scale_bits", None if weight.scale is None else weight.scale.view(torch.int32))
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, format: Format = "e4m3", *, scale: Literal["row", "column"] | None = "row"
    ) -> PackedLinear:
        """Packs the weight of a module, which stays as it is.

        Args:
            linear: the module.
            format: "fp16", "e4m3" or "e5m2".
            scale: of formats of 8 bits: as for `pack_fp8`.

        Returns:
            The packed one, on the same device, in eval mode.

        Raises:
            TypeError: another kind of module.
            ValueError: another format or scale.
        """
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear: want a torch.nn.Linear, got {type(linear).__name__}")
        weight = linear.weight.detach()
        packed = pack_fp16(weight) if format == "fp16" else pack_fp8(weight, format, scale=scale)
        return cls(packed, linear.bias).eval()

    @property
    def weight(self) -> PackedTensor:
        """The packed weight, sharing memory."""
        scale = None if self.scale_bits is None else self.scale_bits.view(torch.float32)
        first: First = self.first
        return PackedTensor(self.words, (self.out_features, self.in_features), self.format, scale, first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Applies it.

        Args:
            x: [..., in_features], as for `packed_gemv`.

        Returns:
            [..., out_features] of x's dtype.
        """
        return packed_gemv(self.weight, x, self.bias)

    def extra_repr(self) -> str:
        """As of nn.Linear.

        Returns:
            The text between the brackets.
        """
        size = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{size}, bias={self.bias is not None}, format={self.format}, LOSSY"


def pack_model(
    model: nn.Module,
    format: Format = "e4m3",
    *,
    scale: Literal["row", "column"] | None = "row",
    skip: tuple[str, ...] = (),
    progress: bool = True,
) -> nn.Module:
    """Replaces the nn.Linear modules of a model by PackedLinear, in place. LOSSY; for inference. Modules that hand
    their weights to fused kernels (nn.MultiheadAttention, nn.TransformerEncoderLayer) stay as they are.

    Args:
        model: in eval mode.
        format: as for `PackedLinear.from_linear`.
        scale: the same.
        skip: names of modules to leave out, as in `named_modules`, "lm_head" for one.
        progress: whether to show a progress bar.

    Returns:
        The model; for a bare nn.Linear its replacement.

    Raises:
        TypeError: no module.
        ValueError: a model in training mode, a name in `skip` that is none of its nn.Linear modules, another format or
            scale.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)).eval()
        >>> print(ibp_gnn.packing.pack_model(model, "e5m2", skip=("2",), progress=False)[0])
        PackedLinear(in_features=64, out_features=64, bias=True, format=e5m2, LOSSY)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: want a torch.nn.Module, got {type(model).__name__}")
    training = [name or "model" for name, module in model.named_modules() if module.training]
    if training:
        raise ValueError(f"model: want eval mode, got {training[0]} in training mode; call model.eval()")
    found = dict(_linears(model))
    unknown = sorted(set(skip) - set(found))
    if unknown:
        raise ValueError(f"skip: want names of nn.Linear modules of the model, got {unknown[0]!r}")
    packed = {}  # before anything is replaced: an error leaves the model as it was
    for name in tqdm([name for name in found if name not in skip], desc="packing", disable=not progress):
        linear = found[name]
        if linear not in packed:
            packed[linear] = PackedLinear.from_linear(linear, format, scale=scale)
    if isinstance(model, nn.Linear):
        return packed.get(model, model)
    for name, linear in found.items():
        if name not in skip:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, packed[linear])
    return model


def _linears(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Linear]]:
    """Exactly nn.Linear: what derives from it does something else. By all of their names."""
    if type(module) is nn.Linear:
        yield prefix, module
    elif not isinstance(module, _FUSED):
        for name, child in module.named_children():
            yield from _linears(child, f"{prefix}.{name}" if prefix else name)
