"""Checkpoints with compressed weights: safetensors files and an index in JSON.

    ibp_weights.index.json              format, and of each tensor: its file, shape, dtype, and how it was compressed
    ibp_weights-00001-of-00003.safetensors
                                        NAME for a raw tensor; NAME::data, NAME::TABLE for a compressed one

The index is written last, so that a checkpoint is whole or not there. Files are memory-mapped when they are read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from .._native import FormatError
from ..codec.codec import Codec
from ..codec.registry import FORMS
from ..codec.values import dtype_from_name, num_values
from ..gpu.capacity import parse_bytes
from .model import Offload, offload_weights
from .modules import FoundWeight, check_model, find_weights
from .offloaded_weight import OffloadedWeight
from .weight import CompressedWeight, RowLayout, compress_weight

_FORMAT = 1
INDEX_NAME = "ibp_weights.index.json"
Stored = CompressedWeight | torch.Tensor


def save_checkpoint(
    model: nn.Module, folder: str | Path, *, max_shard: int | str = "5GB", progress: bool = True
) -> None:
    """Writes a model's parameters and persistent buffers, its Linear and Embedding weights compressed.

    Args:
        model: offloaded or not.
        folder: where to; made if it is missing. Older checkpoints there are replaced.
        max_shard: bytes of a file, "5GB". A tensor that is longer has a file of its own.
        progress: whether to show a bar.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: meta tensors, or a bad max_shard.

    Example:
        >>> model = torch.nn.Linear(256, 256, dtype=torch.bfloat16)
        >>> ibp_gnn.offload.save_checkpoint(model, "linear", progress=False)
    """
    from safetensors.torch import save_file

    limit = parse_bytes("max_shard", max_shard)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stored, aliases = _tensors_of(model)
    entries: dict[str, dict[str, Any]] = {}
    shards: list[Path] = []
    shard: dict[str, torch.Tensor] = {}

    def flush() -> None:
        if shard:
            path = folder / f".ibp_weights-{len(shards) + 1:05}.partial"
            save_file(shard, path)
            shards.append(path)
            shard.clear()

    try:
        for name, tensor in tqdm(stored.items(), desc="saving weights", unit="tensor", disable=not progress):
            entry, parts = _described(name, _compressed(tensor, name, model))
            if sum(part.nbytes for part in (*shard.values(), *parts.values())) > limit:
                flush()
            shard |= parts
            entries[name] = entry | {"file": len(shards)}
        flush()
        names = [f"ibp_weights-{at:05}-of-{len(shards):05}.safetensors" for at in range(1, len(shards) + 1)]
        for entry in entries.values():
            entry["file"] = names[entry["file"]]
        for path, name in zip(shards, names, strict=True):
            path.replace(folder / name)
    except BaseException:
        for path in folder.glob(".ibp_weights-*.partial"):
            path.unlink()
        raise
    index = {"format": _FORMAT, "tensors": entries, "aliases": aliases}
    partial = folder / (INDEX_NAME + ".partial")
    partial.write_text(json.dumps(index, indent=1), encoding="utf-8")
    partial.replace(folder / INDEX_NAME)
    for old in set(folder.glob("ibp_weights-*.safetensors")) - {folder / name for name in names}:
        old.unlink()


def load_checkpoint(
    model: nn.Module,
    folder: str | Path,
    *,
    device: torch.device | str | None = None,
    gpu_budget: int | float | str = "auto",
    prefetch: int = 2,
    keep: tuple[str, ...] = (),
    progress: bool = True,
) -> Offload:
    """Fills a model with a checkpoint's weights, which stay compressed: as `offload`, without raw weights in between.

    Args:
        model: in eval mode, changed in place. Its parameters may be meta tensors, as those that accelerate's
            `init_empty_weights(include_buffers=False)` makes; its buffers may not.
        folder: what `save_checkpoint` wrote.
        device: as for `offload`, as are the next ones.
        gpu_budget: GPU memory for the model and its buffers.
        prefetch: how many weights are on their way while one is read.
        keep: patterns of weight names that stay on the GPU before others do.
        progress: whether to show a bar.

    Returns:
        The handle of the offload.

    Raises:
        FileNotFoundError: there is no checkpoint.
        FormatError: it is damaged.
        ValueError: it is of another model, or the model cannot be offloaded.

    Example:
        >>> model = torch.nn.Linear(256, 256, dtype=torch.bfloat16).eval()
        >>> ibp_gnn.offload.save_checkpoint(model, "linear", progress=False)
        >>> ibp_gnn.offload.load_checkpoint(model, "linear", device="cpu", progress=False).report().places
        {'compressed': 1}
    """
    check_model(model, meta_parameters=True)
    reader = CheckpointReader(folder)
    wanted = {name: tensor for name, tensor in _names_of(model)}
    if missing := sorted(wanted.keys() - set(reader)):
        raise ValueError(f"{folder}: want a checkpoint with all tensors of the model, got none of {missing[0]!r}")
    if unknown := sorted(set(reader) - wanted.keys()):
        raise ValueError(f"{folder}: want a checkpoint of this model, got one with {unknown[0]!r}")
    for name, tensor in wanted.items():
        shape, dtype = reader.describe(name)
        if shape != tuple(tensor.shape) or dtype != tensor.dtype:
            raise ValueError(f"{name}: want {list(tensor.shape)} {tensor.dtype}, got {list(shape)} {dtype} in {folder}")
    found = find_weights(model)
    offloaded = {id(one.parameter) for one in found}
    filled: dict[int, nn.Parameter] = {}
    for name, tensor in wanted.items():
        if id(tensor) in offloaded:
            continue
        owner, _, key = name.rpartition(".")
        module = model.get_submodule(owner)
        if isinstance(tensor, nn.Parameter):
            if id(tensor) not in filled:
                filled[id(tensor)] = nn.Parameter(reader.raw(name), requires_grad=tensor.requires_grad)
            module._parameters[key] = filled[id(tensor)]
        else:
            module._buffers[key] = reader.raw(name)

    def read(one: FoundWeight, on: torch.device) -> CompressedWeight:
        stored = reader.read(one.name)
        if isinstance(stored, CompressedWeight) and (not one.by_row or stored.blocks_per_row is not None):
            return stored
        raw = stored.decompress() if isinstance(stored, CompressedWeight) else stored
        return compress_weight(raw, by_row=one.by_row, device=on)

    return offload_weights(model, found, read, device, gpu_budget, prefetch, keep, progress)


class CheckpointReader:
    """The tensors of a checkpoint, by name."""

    def __init__(self, folder: str | Path) -> None:
        """Raises FileNotFoundError, FormatError, and ImportError without safetensors."""
        self._folder = Path(folder)
        path = self._folder / INDEX_NAME
        if not path.is_file():
            raise FileNotFoundError(f"{folder}: want a folder with {INDEX_NAME}, got none there")
        try:
            index = json.loads(path.read_text(encoding="utf-8"))
            version, self._entries, self._aliases = index["format"], index["tensors"], index["aliases"]
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{path}: not the index of a checkpoint: {error!r}") from error
        if version != _FORMAT:
            raise FormatError(f"{path}: want format {_FORMAT}, got {version!r}")
        self._files: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        yield from self._entries
        yield from self._aliases

    def describe(self, name: str) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and dtype."""
        entry = self._entry(name)
        try:
            return tuple(int(size) for size in entry["shape"]), dtype_from_name(entry["dtype"])
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{self._folder}: the entry of {name!r} is damaged: {error!r}") from error

    def raw(self, name: str) -> torch.Tensor:
        """The tensor in CPU memory of its own."""
        stored = self.read(name)
        return stored.decompress() if isinstance(stored, CompressedWeight) else stored.clone()

    def read(self, name: str) -> Stored:
        """The tensor as it is stored; its memory is that of the file."""
        name = self._aliases.get(name, name)
        entry, (shape, dtype) = self._entry(name), self.describe(name)
        if "codec" not in entry:
            return self._part(entry, name)
        try:
            layout = RowLayout(**entry["layout"])
            form_class = FORMS[entry["codec"]]
            tables = {table: self._part(entry, f"{name}::{table}").numpy() for table in entry["tables"]}
            form = form_class(**entry["parameters"], **tables)
            codec = Codec(dtype, (entry["block"],), form)
            buffer = self._part(entry, f"{name}::data")
            weight = CompressedWeight(shape, codec, layout, buffer)
            fits = buffer.numel() == layout.nbytes and layout.row_bytes == codec.row_bytes
            if not fits or weight.padded_nbytes < weight.raw_nbytes or num_values(shape) < 1:
                raise ValueError(f"want {layout.nbytes} bytes for {list(shape)}, got {buffer.numel()}")
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{self._folder}: {name!r} is damaged: {error!r}") from error
        return weight

    def _entry(self, name: str) -> dict[str, Any]:
        entry = self._entries.get(self._aliases.get(name, name))
        if not isinstance(entry, dict):
            raise FormatError(f"{self._folder}: want an entry of {name!r} in the index, got {entry!r}")
        return entry

    def _part(self, entry: dict[str, Any], name: str) -> torch.Tensor:
        from safetensors import SafetensorError, safe_open

        file = str(entry.get("file"))
        if Path(file).name != file:
            raise FormatError(f"{self._folder}: want a file in the folder, got {file!r}")
        try:
            if file not in self._files:
                self._files[file] = safe_open(self._folder / file, framework="pt")
            part: torch.Tensor = self._files[file].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise FormatError(f"{self._folder / file}: cannot read {name!r}: {error}") from error
        return part


def _names_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and persistent buffers, tied ones by each of their names."""
    yield from model.named_parameters(remove_duplicate=False)
    for prefix, module in model.named_modules(remove_duplicate=False):
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in module._non_persistent_buffers_set:
                yield f"{prefix}.{key}" if prefix else key, buffer


def _tensors_of(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors by name, and the further names of tied ones."""
    stored: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, tensor in _names_of(model):
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
            continue
        if tensor.is_meta:
            raise ValueError(f"{name}: want values, got a meta tensor")
        first[id(tensor)] = name
        stored[name] = tensor
    return stored, aliases


def _compressed(tensor: torch.Tensor, name: str, model: nn.Module) -> Stored:
    if isinstance(tensor, OffloadedWeight):
        return tensor.compressed()
    for one in find_weights(model):
        if one.parameter is tensor:
            return compress_weight(tensor, by_row=one.by_row, device=tensor.device)
    return tensor.detach().cpu().contiguous()


def _described(name: str, stored: Stored) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Its entry in the index, and what goes to the file."""
    entry: dict[str, Any] = {"shape": list(stored.shape), "dtype": str(stored.dtype).removeprefix("torch.")}
    if not isinstance(stored, CompressedWeight):
        return entry, {name: stored}
    form = stored.codec.form
    entry |= {
        "codec": form.kind,
        "block": stored.codec.row_shape[0],
        "parameters": form.parameters(),
        "tables": sorted(form.tables()),
        "layout": dataclasses.asdict(stored.layout),
    }
    parts = {f"{name}::{table}": torch.from_numpy(values.copy()) for table, values in form.tables().items()}
    return entry, parts | {f"{name}::data": stored.buffer.cpu().contiguous()}
