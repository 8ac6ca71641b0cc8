"""Bags of several features as users give them: torchrec's KeyedJaggedTensor, or plain tensors by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..codec.pool import Bags


class KeyedBags(NamedTuple):
    """Bags of features, in the order of `keys`."""

    keys: tuple[str, ...]
    bags: Bags
    given: Any
    """What they were made from."""


def is_keyed_jagged(features: Any) -> bool:
    """Whether it has the methods of torchrec's KeyedJaggedTensor that are used here."""
    names = ("keys", "values", "offsets", "lengths", "weights_or_none")
    return not isinstance(features, Mapping) and all(callable(getattr(features, name, None)) for name in names)


def as_keyed_bags(features: Any) -> KeyedBags:
    """features: a KeyedJaggedTensor, or by name [num_bags, ids of a bag] tensors or (ids [n], offsets [num_bags]), with
    weights [n] as a third if all have them. All on one device, of equally many bags. Raises TypeError and ValueError
    saying what was wanted and got."""
    if is_keyed_jagged(features):
        keys, offsets = tuple(features.keys()), features.offsets()
        num_bags = (len(offsets) - 1) // len(keys) if keys else 0
        weights = features.weights_or_none()
        if weights is not None:
            weights = weights.detach().to(torch.float32).contiguous()
        bags = Bags(_ids(features.values(), "values"), _ids(offsets, "offsets"), 0, num_bags, weights)
        if keys and len(offsets) != num_bags * len(keys) + 1:
            raise ValueError(f"features: want as many bags of each key, got {len(offsets) - 1} for {len(keys)} keys")
        return KeyedBags(keys, bags, features)
    if not isinstance(features, Mapping):
        wanted = "a KeyedJaggedTensor, or a mapping of names to bags"
        raise TypeError(f"features: want {wanted}, got {type(features).__name__}")
    if not features:
        raise ValueError("features: want at least 1, got none")
    parts = [_part(name, given) for name, given in features.items()]
    counts = {name: part.num_bags for name, part in zip(features, parts, strict=True)}
    if len(set(counts.values())) > 1:
        raise ValueError(f"features: want equally many bags of each, got {counts}")
    devices = {str(part.ids.device) for part in parts}
    if len(devices) > 1:
        raise ValueError(f"features: want them on one device, got {sorted(devices)}")
    weighted = [part.weights for part in parts if part.weights is not None]
    if weighted and len(weighted) < len(parts):
        raise ValueError(f"features: want weights of all or none, got those of {len(weighted)} of {len(parts)}")
    return KeyedBags(tuple(features), _joined(parts, weighted), features)


def keyed_tensor(like: Any, keys: Sequence[str], widths: Sequence[int], values: torch.Tensor) -> Any:
    """values: [num_bags, sum of widths]. Returns a KeyedTensor of the library that `like`, a KeyedJaggedTensor, is of;
    else views of the values by name."""
    for kind in type(like).__mro__:
        keyed = getattr(sys.modules.get(kind.__module__), "KeyedTensor", None)
        if keyed is not None:
            return keyed(keys=list(keys), length_per_key=list(widths), values=values)
    return dict(zip(keys, values.split(list(widths), dim=1), strict=True))


def _part(name: str, given: Any) -> Bags:
    parts = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not 1 <= len(parts) <= 3 or not all(isinstance(part, torch.Tensor) for part in parts):
        raise TypeError(f"features[{name!r}]: want ids, (ids, offsets) or (ids, offsets, weights), got {given!r:.100}")
    ids = _ids(parts[0], f"features[{name!r}]")
    if len(parts) == 1:
        if ids.ndim != 2:
            raise ValueError(f"features[{name!r}]: want offsets for ids that are not 2D, got ids of {list(ids.shape)}")
        return Bags(ids.reshape(-1), None, ids.shape[1], ids.shape[0])
    offsets = _ids(parts[1], f"offsets of features[{name!r}]")
    if ids.ndim != 1 or offsets.ndim != 1:
        raise ValueError(f"features[{name!r}]: want 1D ids and offsets, got {list(ids.shape)}, {list(offsets.shape)}")
    if not offsets.is_cuda and len(offsets):
        last = int(offsets[-1])
        if int(offsets[0]) != 0 or last > len(ids) or bool((offsets[1:] < offsets[:-1]).any()):
            raise ValueError(f"offsets of features[{name!r}]: want 0 to {len(ids)}, not falling, got {offsets!r:.100}")
    weights = None
    if len(parts) == 3:
        if parts[2].shape != ids.shape:
            shapes = f"{list(ids.shape)}, got {list(parts[2].shape)}"
            raise ValueError(f"weights of features[{name!r}]: want the shape of the ids, {shapes}")
        weights = parts[2].detach().to(torch.float32)
    return Bags(ids, offsets, 0, len(offsets), weights)


def _joined(parts: list[Bags], weighted: list[torch.Tensor]) -> Bags:
    ids = torch.cat([part.ids for part in parts])
    weights = torch.cat(weighted) if weighted else None
    bag_ids = {part.bag_ids for part in parts if part.offsets is None}
    if len(bag_ids) == 1 and all(part.offsets is None for part in parts):
        return Bags(ids, None, bag_ids.pop(), parts[0].num_bags, weights)
    offsets, first = [], 0
    for part in parts:
        offsets.append(part.bounds()[:-1] + first)
        first += len(part.ids)
    return Bags(ids, torch.cat(offsets), 0, parts[0].num_bags, weights)


def _ids(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if tensor.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: want int32 or int64, got {tensor.dtype}")
    return tensor.contiguous()
