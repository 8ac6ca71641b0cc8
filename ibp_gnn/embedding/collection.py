"""CompressedEmbeddingBagCollection: many frozen tables, pooled in one launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..codec.gather import GatherStats
from ..codec.pool import Mode
from ..codec.values import check_ids_on_cpu, resolve_device
from ..gpu.budget import share_budget
from ..gpu.side_stream import SideStream
from .bags import check_mode
from .keyed import KeyedBags, as_keyed_bags, is_keyed_jagged, keyed_tensor
from .lookup import Feature, Lookup, Staged
from .table import Capacity, Table, check_frozen, open_store


class _Config(NamedTuple):
    """A table as the user describes it."""

    name: str
    table: Any
    features: tuple[str, ...]
    mode: str


class CompressedEmbeddingBagCollection(torch.nn.Module):
    """Several tables that are not trained, each looked up by one feature or more, as torchrec's EmbeddingBagCollection.
    On a GPU all features are looked up, decoded and pooled in one launch for each kind of rows (dtype, width and form
    of codec), and share one cache budget. The order of summation is that of CompressedEmbeddingBag.

    Example:
        >>> tables = {"user": features, "item": features[:500]}
        >>> bags = ibp_gnn.CompressedEmbeddingBagCollection.from_pretrained(tables, progress=False)
        >>> pooled = bags({"user": torch.tensor([[1, 2]]), "item": (torch.tensor([3]), torch.tensor([0]))})
        >>> bool((pooled["user"] == features[1] + features[2]).all()), list(pooled["item"].shape)
        (True, [1, 16])
    """

    def __init__(
        self,
        tables: Mapping[str, Table],
        features: Mapping[str, Sequence[str]],
        modes: Mapping[str, str],
        device: torch.device | None,
    ) -> None:
        """Use `from_pretrained`.

        Args:
            tables: by name.
            features: of each table, the names of those that look it up.
            modes: of each table.
            device: as for `from_pretrained`.

        Raises:
            ValueError: tables of several dtypes, or an unknown mode.
        """
        super().__init__()
        dtypes = {name: table.dtype for name, table in tables.items()}
        if len(set(dtypes.values())) > 1:
            raise ValueError(f"tables: want one dtype, got {dtypes}")
        for mode in modes.values():
            check_mode(mode)
        self.tables = torch.nn.ModuleDict(dict(tables))
        self.device = device
        self._wanted = [(name, feature, modes[name]) for name in tables for feature in features[name]]
        counts = {feature: sum(one[1] == feature for one in self._wanted) for _, feature, _ in self._wanted}
        # As torchrec names them: with the table where a feature looks up several.
        self.embedding_names = tuple(
            feature if counts[feature] == 1 else f"{feature}@{name}" for name, feature, _ in self._wanted
        )
        self._lookups: dict[tuple[str, ...], Lookup] = {}
        self._prefetched: _Prefetched | None = None
        self._sides: dict[torch.device, SideStream] = {}

    @classmethod
    def from_pretrained(
        cls,
        tables: Any,
        *,
        capacity: Capacity | None = None,
        hotness: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        freeze: bool = True,
        mode: Mode | Mapping[str, Mode] = "sum",
        features: Mapping[str, Sequence[str]] | None = None,
        codec: str = "auto",
        pin: bool | str = "auto",
        progress: bool = True,
    ) -> CompressedEmbeddingBagCollection:
        """Compresses tables.

        Args:
            tables: by name, what CompressedEmbedding.from_pretrained takes; or a frozen EmbeddingBagCollection of
                torchrec, whose features and poolings are taken.
            capacity: GPU memory of all caches together, as for share_budget. None: no caches.
            hotness: of each table [num_embeddings] numbers, how often each row is read, in one unit for all tables:
                the rows with the highest are cached, whatever table they are of.
            device: where the results are put. None: the caches' GPU, without caches where the ids are.
            freeze: True.
            mode: "sum", "mean" or "max", of all tables or by their names.
            features: of each table, the names of those that look it up. None: the table's own name.
            codec: of all tables, as for CompressedFeatureStore.build.
            pin: as for CompressedFeatureStore.build.
            progress: show a progress bar for each table.

        Returns:
            The module. It has no parameters.

        Raises:
            ValueError: a table that is trained, or a bad argument.
            TypeError: a table of another type or dtype.
            RuntimeError: a capacity where there is no GPU, or rows that cannot be page-locked.
        """
        check_frozen(freeze)
        configs = _configs(tables, mode, features)
        if hotness is not None and set(hotness) != {config.name for config in configs}:
            raise ValueError(f"hotness: want the names of tables, {[one.name for one in configs]}, got {list(hotness)}")
        of_table = {} if hotness is None else hotness
        how: dict[str, Any] = {"codec": codec, "pin": pin, "progress": progress}
        stores = {
            name: open_store(table, hotness=of_table.get(name), name=f"tables[{name!r}]", **how)
            for name, table, _, _ in configs
        }
        target = None if device is None else resolve_device(device, torch.device("cpu"))
        sources: Mapping[str, Any] = stores
        if capacity is not None:
            target = resolve_device(device, torch.device("cuda"))
            sources = share_budget(stores, capacity, hotness=hotness, device=target)
        opened = {name: Table(store, sources[name]) for name, store in stores.items()}
        by_name = {config.name: config for config in configs}
        return cls(
            opened,
            {name: config.features for name, config in by_name.items()},
            {name: config.mode for name, config in by_name.items()},
            target,
        )

    def forward(self, features: Any) -> Any:
        """Pools the bags of all features.

        Args:
            features: torchrec's KeyedJaggedTensor, int32/int64, on CPU or CUDA, with weights or without; or by name
                [num_bags, ids of a bag] ids, or (ids [n], offsets [num_bags]), or those and weights [n]. Names that no
                table has are left alone. Offsets on a GPU are not checked, as in CompressedEmbeddingBag.

        Returns:
            Of a KeyedJaggedTensor torchrec's KeyedTensor; else [num_bags, embedding_dim] by `embedding_names`, views of
            one tensor. To a GPU: enqueued on the current stream, no host sync.

        Raises:
            KeyError: a feature is missing.
            IndexError: names the first bad id; where ids are on a GPU, at the next lookup or `check` after the kernel
                ran, a bad id having counted as a row of zeros.
            ValueError, TypeError: other features.
            NotImplementedError: weights with another mode than "sum".
        """
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is not None and prefetched.is_of(features):
            torch.cuda.current_stream(prefetched.device).wait_event(prefetched.done)
            keyed, device, staged = prefetched.keyed, prefetched.device, prefetched.staged
        else:
            keyed, staged = as_keyed_bags(features), None
            device = self._target(keyed)
        lookup = self._lookup_of(keyed)
        values = lookup.pool(keyed.bags, device, staged)
        if is_keyed_jagged(features):
            return keyed_tensor(features, self.embedding_names, lookup.widths, values)
        return dict(zip(self.embedding_names, values.split(lookup.widths, dim=1), strict=True))

    def prefetch(self, features: Any) -> None:
        """Brings the rows of the next batch that are not in GPU memory there, on a stream of its own, while the current
        batch is worked on. Where its ids are on the GPU, it first waits for what the current stream has to do; so call
        it before that is much, or with ids in CPU memory. Results do not depend on it.

        Args:
            features: what `forward` is called with next: the same object, unchanged.

        Raises:
            KeyError, IndexError, ValueError, TypeError: as `forward`.
        """
        keyed = as_keyed_bags(features)
        device, lookup = self._target(keyed), self._lookup_of(keyed)
        if device.type != "cuda":
            return
        side = self._sides.get(device)
        if side is None:
            side = self._sides[device] = SideStream(device)
        side.take([part for part in (keyed.bags.ids, keyed.bags.offsets, keyed.bags.weights) if part is not None])
        with torch.cuda.stream(side.stream):
            bags = lookup.on_gpu(keyed.bags, device)
            staged = lookup.stage(bags, device)
            done = torch.cuda.Event()
            done.record()
        self._prefetched = _Prefetched(keyed._replace(bags=bags), device, staged, done, _state_of(features))

    def update(self, table: str, ids: Any, rows: Any) -> None:
        """Writes new rows over old ones of one table, as CompressedEmbedding.update.

        Args:
            table: its name.
            ids: [n] int32/int64, distinct.
            rows: [n, embedding_dim] of the table's dtype.

        Raises:
            KeyError: no table of that name.
            IndexError: names the first bad id.
            ValueError: repeated ids, another shape or dtype, a store whose rows are in a file.
        """
        self._table(table).store.update(ids, rows)

    def to_dense(self, device: torch.device | str | None = None) -> dict[str, torch.Tensor]:
        """All rows of all tables, as they were given.

        Args:
            device: where they are put; None: in CPU memory.

        Returns:
            [num_embeddings, embedding_dim] of each table, on `device`.
        """
        return {name: self._table(name).to_dense(device) for name in self.tables}

    def stats(self) -> dict[str, GatherStats]:
        """What lookups on the GPU have read of each table since the last reset. Waits for the current stream.

        Returns:
            The counts by table.
        """
        return {name: self._table(name).stats() for name in self.tables}

    def reset_stats(self) -> None:
        for name in self.tables:
            self._table(name).source.reset_stats()

    def check(self) -> None:
        """Waits for the GPU.

        Raises:
            IndexError: a lookup so far met a bad id.
            FormatError: a lookup so far met a damaged row.
        """
        for name in self.tables:
            self._table(name).check()

    def close(self) -> None:
        """Frees the rows when the lookups that were launched have run. Idempotent."""
        self._prefetched = None
        for name in self.tables:
            self._table(name).close()

    def _table(self, name: str) -> Table:
        if name not in self.tables:
            raise KeyError(f"table: want one of {list(self.tables)}, got {name!r}")
        table = self.tables[name]
        assert isinstance(table, Table)  # as the constructor has it
        return table

    def _target(self, keyed: KeyedBags) -> torch.device:
        return resolve_device(self.device, keyed.bags.ids.device)

    def _lookup_of(self, keyed: KeyedBags) -> Lookup:
        """Raises KeyError, IndexError and NotImplementedError."""
        lookup = self._lookups.get(keyed.keys)
        if lookup is None or not lookup.is_current():
            lookup = self._lookups[keyed.keys] = Lookup(self._features(keyed.keys))
        if keyed.bags.weights is not None:
            for feature in lookup.features:
                if feature.mode != "sum":
                    raise NotImplementedError(f"weights: want mode 'sum' with them, got {feature.mode!r}")
        if not keyed.bags.ids.is_cuda:
            for feature in lookup.features:
                own = keyed.bags if len(keyed.keys) == 1 else keyed.bags.of_feature(feature.key)
                check_ids_on_cpu(own.ids, feature.table.num_embeddings)
        return lookup

    def _features(self, keys: tuple[str, ...]) -> list[Feature]:
        features, column = [], 0
        for name, feature, mode in self._wanted:
            if feature not in keys:
                raise KeyError(f"features: want {feature!r} among them, got {list(keys)}")
            features.append(Feature(self._table(name), keys.index(feature), mode, -1, column))
            column = features[-1].end_column
        return features

    def extra_repr(self) -> str:
        return f"{list(self.embedding_names)}, device={self.device}"


class _Prefetched(NamedTuple):
    keyed: KeyedBags
    device: torch.device
    staged: Staged | None
    done: torch.cuda.Event
    state: tuple[Any, ...]

    def is_of(self, features: Any) -> bool:
        """Whether they are the object that it was made from, and its tensors are as they were."""
        return self.keyed.given is features and self.state == _state_of(features)


def _state_of(features: Any) -> tuple[Any, ...]:
    """Differs if a tensor is another one or was written since."""
    parts: list[Any] = []
    if is_keyed_jagged(features):
        parts = [features.values(), features.offsets(), features.weights_or_none()]
    else:
        for given in features.values():
            parts += given if isinstance(given, (tuple, list)) else [given]
    return tuple((id(part), part._version) for part in parts if part is not None)


def _configs(tables: Any, mode: Any, features: Mapping[str, Sequence[str]] | None) -> list[_Config]:
    of_torchrec = getattr(tables, "embedding_bag_configs", None)
    if callable(of_torchrec):
        configs = []
        for config in of_torchrec():
            pooling = str(getattr(config.pooling, "value", config.pooling)).lower()
            bag = tables.embedding_bags[config.name]
            configs.append(_Config(config.name, bag, tuple(config.feature_names), pooling))
        return configs
    if not isinstance(tables, Mapping):
        raise TypeError(f"tables: want a mapping of names, or an EmbeddingBagCollection, got {type(tables).__name__}")
    if not tables:
        raise ValueError("tables: want at least 1, got none")
    for name, given in (("mode", mode if isinstance(mode, Mapping) else None), ("features", features)):
        if given is not None and set(given) != set(tables):
            raise ValueError(f"{name}: want the names of tables, {list(tables)}, got {list(given)}")
    return [
        _Config(
            name,
            table,
            (name,) if features is None else tuple(features[name]),
            mode[name] if isinstance(mode, Mapping) else mode,
        )
        for name, table in tables.items()
    ]
