"""Offloading a model: compress its weights, put each in its place, and let the modules read them through decoders."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from ..codec.values import resolve_device
from ..gpu.capacity import free_bytes, parse_bytes
from .decoder import CpuDecoder, Decoder
from .gpu_decoder import GpuDecoder
from .host_memory import HostArena, return_freed_memory
from .modules import FoundWeight, check_model, find_weights
from .offloaded_weight import OffloadedWeight
from .placement import Place, Placed, Size, choose_places
from .weight import CompressedWeight, compress_weight

_MOST_PREFETCH = 64


@dataclasses.dataclass(frozen=True)
class OffloadReport:
    """What an offload holds, in bytes.

    raw_bytes: the offloaded weights uncompressed. compressed_bytes: the same compressed. device_bytes: on the GPU, or
    in CPU memory for a model that runs there: weights and buffers. host_bytes: page-locked. streamed_bytes: that have
    crossed the link so far, compressed. places: how many weights are where.

    Example:
        >>> model = torch.nn.Linear(256, 256, dtype=torch.bfloat16).eval()
        >>> report = ibp_gnn.offload.offload(model, device="cpu", progress=False).report()
        >>> report.raw_bytes, report.compressed_bytes < 100_000, report.places
        (131072, True, {'compressed': 1})
    """

    raw_bytes: int
    compressed_bytes: int
    device_bytes: int
    host_bytes: int
    streamed_bytes: int
    places: dict[str, int]


class Offload:
    """What `offload` has done to a model; a context manager, which undoes it. The model can be used without it.

    Example:
        >>> model = torch.nn.Linear(256, 256, dtype=torch.bfloat16).eval()
        >>> with ibp_gnn.offload.offload(model, device="cpu", progress=False):
        ...     print(type(model.weight).__name__)
        OffloadedWeight
    """

    def __init__(self, model: nn.Module) -> None:
        """Use `offload`.

        Args:
            model: the module.
        """
        self.model = model
        self._swaps: list[tuple[nn.Module, str, OffloadedWeight]] = []
        self._before: dict[int, tuple[torch.device, bool]] = {}  # by id of the placeholder: device, requires_grad
        self._hooks: list[Any] = []
        self._decoders: list[Decoder] = []
        self._moved: list[tuple[nn.Module, str, torch.device]] = []
        self._frozen: list[nn.Parameter] = []
        self._sizes = (0, 0)
        self._places: dict[str, int] = {}
        self._closed = False

    def report(self) -> OffloadReport:
        """What is held at present. Does not wait.

        Returns:
            The report.
        """
        gpu = [decoder for decoder in self._decoders if isinstance(decoder, GpuDecoder)]
        return OffloadReport(
            raw_bytes=self._sizes[0],
            compressed_bytes=self._sizes[1],
            device_bytes=sum(decoder.device_nbytes for decoder in self._decoders),
            host_bytes=sum(decoder.host_nbytes for decoder in gpu),
            streamed_bytes=sum(decoder.streamed_bytes for decoder in gpu),
            places=dict(self._places),
        )

    def close(self) -> None:
        """The model gets its raw weights back, on the devices where they were; page-locked memory is freed.

        Idempotent. Takes memory for all raw weights.
        """
        if self._closed:
            return
        raw: dict[int, nn.Parameter] = {}
        for _, _, weight in self._swaps:  # all of them before anything is changed
            if id(weight) not in raw:
                device, requires_grad = self._before[id(weight)]
                raw[id(weight)] = nn.Parameter(weight.decoded(device), requires_grad=requires_grad)
        self._closed = True
        for module, key, weight in self._swaps:
            module._parameters[key] = raw[id(weight)]
        for hook in self._hooks:
            hook.remove()
        for module, key, device in self._moved:
            _move(module, key, device)
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        for decoder in self._decoders:
            decoder.close()
        self._swaps, self._moved, self._frozen, self._hooks = [], [], [], []

    def __enter__(self) -> Offload:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _swap(self, found: FoundWeight, decoder: Decoder) -> OffloadedWeight:
        parameter = found.parameter
        weight: OffloadedWeight = OffloadedWeight(
            decoder=decoder,
            number=0,
            name=found.name,
            shape=parameter.shape,
            dtype=parameter.dtype,
            by_row=found.by_row,
        )
        device = torch.device("cpu") if parameter.is_meta else parameter.device
        self._before[id(weight)] = device, parameter.requires_grad
        for module, key in found.owners:
            self._swaps.append((module, key, weight))
            module._parameters[key] = weight
        return weight

    def _move_rest(self, device_of: Callable[[torch.Tensor], torch.device]) -> None:
        """All that is not offloaded, to where it is used."""
        for module in self.model.modules():
            for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is None or isinstance(tensor, OffloadedWeight):
                    continue
                if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                    tensor.requires_grad_(False)
                    self._frozen.append(tensor)
                if tensor.device != device_of(tensor):
                    self._moved.append((module, key, tensor.device))
                    _move(module, key, device_of(tensor))

    def _hook_state_dict(self) -> None:
        for module in {id(module): module for module, _, _ in self._swaps}.values():
            # Public since torch 2.5.
            register = getattr(module, "register_state_dict_post_hook", module._register_state_dict_hook)
            self._hooks.append(register(_fill_state_dict))


def offload(
    model: nn.Module,
    *,
    device: torch.device | str | None = None,
    gpu_budget: int | float | str = "auto",
    prefetch: int = 2,
    keep: Sequence[str] = (),
    progress: bool = True,
) -> Offload:
    """Compresses the Linear and Embedding weights of a model, losslessly, and keeps on the GPU what fits.

    The model then runs on `device` as before, with results that are the same to the bit: under torch.no_grad or
    torch.inference_mode, with transformers' generate, on any stream. Weights that do not fit come over the link
    compressed, while earlier layers compute. `state_dict()` gives raw tensors, in CPU memory. Weights of
    nn.MultiheadAttention and nn.TransformerEncoderLayer stay raw.

    Args:
        model: in eval mode, on the CPU or on GPUs. It is changed in place, or not at all if this raises.
        device: where it is to run. None: each weight where it is, those on the CPU on the current GPU, or on the CPU
            where there is no GPU. On a CPU all weights stay compressed, and are decoded before each use.
        gpu_budget: GPU memory for the model and its buffers, on each GPU: bytes, "20GB", a share of the raw weights
            ("50%", 0.5), or "auto": what is free, less 4 GiB (a quarter of the GPU if that is less).
        prefetch: how many weights are on their way while one is read, 1 or more. Each takes a buffer.
        keep: patterns of weight names ("*.lm_head.weight", "model.layers.0.*") that stay on the GPU before others do.
        progress: whether to show a bar.

    Returns:
        The handle, which can report and undo it.

    Raises:
        TypeError: model is no module.
        ValueError: it cannot be offloaded, or the budget is too small for the buffers.
        PinError: the system does not page-lock so much memory.

    Example:
        >>> model = torch.nn.Linear(256, 256, dtype=torch.bfloat16).eval()
        >>> x = torch.ones(1, 256, dtype=torch.bfloat16); want = model(x)
        >>> with ibp_gnn.offload.offload(model, device="cpu", progress=False): torch.equal(model(x), want)
        True
    """
    check_model(model)
    found = find_weights(model)

    def compress(one: FoundWeight, on: torch.device) -> CompressedWeight:
        return compress_weight(one.parameter, by_row=one.by_row, device=on)

    return offload_weights(model, found, compress, device, gpu_budget, prefetch, keep, progress)


def offload_weights(
    model: nn.Module,
    found: Sequence[FoundWeight],
    compress: Callable[[FoundWeight, torch.device], CompressedWeight],
    device: torch.device | str | None,
    gpu_budget: int | float | str,
    prefetch: int,
    keep: Sequence[str],
    progress: bool,
) -> Offload:
    """As `offload`, of these weights. compress: gives each one compressed; the device is where it will be read."""
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or not 1 <= prefetch <= _MOST_PREFETCH:
        raise ValueError(f"prefetch: want 1 to {_MOST_PREFETCH}, got {prefetch!r}")
    if isinstance(keep, str):
        raise ValueError(f"keep: want a list of patterns, got the string {keep!r}")
    for pattern in keep:
        if not any(fnmatch.fnmatchcase(one.name, pattern) for one in found):
            raise ValueError(f"keep: want patterns of weights that are offloaded, got {pattern!r}, which fits none")
    chosen = None if device is None else resolve_device(device, torch.device("cpu"))
    default = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    def device_of(tensor: torch.Tensor) -> torch.device:
        if chosen is not None:
            return chosen
        return tensor.device if tensor.is_cuda else default

    devices = {one.name: device_of(one.parameter) for one in found}
    on_cpu = all(of.type == "cpu" for of in devices.values())
    if on_cpu and gpu_budget != "auto":
        raise ValueError(f"gpu_budget: want 'auto' for a model that runs on the CPU, got {gpu_budget!r}")
    handle = Offload(model)
    try:
        group: dict[torch.device, list[tuple[FoundWeight, OffloadedWeight]]] = {}
        arena = HostArena(pin=False)
        raw_bytes = compressed_bytes = 0
        for one in tqdm(found, desc="compressing weights", unit="weight", disable=not progress):
            weight = compress(one, devices[one.name])
            if devices[one.name].type == "cpu":
                weight = weight.moved_to(arena.take(weight.layout.nbytes))
            # Until all are compressed they can be read on the CPU: that is how an error is undone.
            placeholder = handle._swap(one, CpuDecoder([weight]))
            one.parameter = placeholder  # lets go of the raw one
            group.setdefault(devices[one.name], []).append((one, placeholder))
            raw_bytes, compressed_bytes = raw_bytes + weight.raw_nbytes, compressed_bytes + weight.nbytes
            del weight
            return_freed_memory()
        handle._sizes = raw_bytes, compressed_bytes
        handle._move_rest(device_of)
        for of_device, entries in group.items():
            _place(handle, entries, of_device, gpu_budget, prefetch, keep)
        handle._hook_state_dict()
    except BaseException:
        handle.close()
        raise
    return_freed_memory()
    return handle


def _place(
    handle: Offload,
    entries: list[tuple[FoundWeight, OffloadedWeight]],
    device: torch.device,
    gpu_budget: int | float | str,
    prefetch: int,
    keep: Sequence[str],
) -> None:
    """Makes the decoder of a device's weights."""
    weights = [placeholder.compressed() for _, placeholder in entries]
    if device.type == "cpu":
        places: list[Place] = ["compressed"] * len(entries)
        decoder: Decoder = CpuDecoder(weights)
    else:
        raw_bytes = sum(weight.raw_nbytes for weight in weights)
        if gpu_budget == "auto":
            budget = free_bytes(device)
        else:
            budget = parse_bytes("gpu_budget", gpu_budget, whole=raw_bytes)
            budget -= sum(tensor.nbytes for tensor in _rest(handle.model) if tensor.device == device)
        sizes = [
            Size(weight.padded_nbytes, weight.layout.nbytes, one.whole, _fits_one(one.name, keep))
            for (one, _), weight in zip(entries, weights, strict=True)
        ]
        places = choose_places(sizes, budget, prefetch)
        decoder = GpuDecoder(
            [
                Placed(weight, place, one.by_row, one.whole)
                for (one, _), weight, place in zip(entries, weights, places, strict=True)
            ],
            device,
            prefetch,
        )
    handle._decoders.append(decoder)
    for number, (_, placeholder) in enumerate(entries):
        placeholder.read_from(decoder, number)
    for place in places:
        handle._places[place] = handle._places.get(place, 0) + 1
    weights.clear()
    if isinstance(decoder, GpuDecoder):
        decoder.fill()


def _fits_one(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _rest(model: nn.Module) -> list[torch.Tensor]:
    tensors = [*model.parameters(), *model.buffers()]
    return [tensor for tensor in tensors if not isinstance(tensor, OffloadedWeight)]


def _move(module: nn.Module, key: str, device: torch.device) -> None:
    with torch.no_grad(), torch.inference_mode(False):
        parameter = module._parameters.get(key)
        if parameter is not None:
            parameter.data = parameter.data.to(device)
            return
        buffer = module._buffers[key]
        assert buffer is not None  # it was moved before
        module._buffers[key] = buffer.to(device)


def _fill_state_dict(module: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
    """Raw tensors, in CPU memory, in the place of offloaded weights."""
    for key in module._parameters:
        value = state_dict.get(prefix + key)
        if isinstance(value, OffloadedWeight):
            state_dict[prefix + key] = value.decoded(torch.device("cpu"))
