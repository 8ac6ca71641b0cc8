"""Compressed features in DGL's GraphBolt: one Feature, and a feature store made of such Features.

    features = ibp_gnn.GraphBoltFeatureStore(dataset.feature)           # instead of gb.BasicFeatureStore(...)
    pipe = gb.ItemSampler(items, batch_size=1024, shuffle=True)
    pipe = pipe.sample_neighbor(graph, [10, 10]).fetch_feature(features, node_feature_keys=["feat"])
    for batch in gb.DataLoader(pipe, num_workers=2):
        x = batch.node_features["feat"]                                 # the same bits

Both work with the calls of GraphBolt 2.1 (`read`, `size`, `update`, `metadata`) and of 2.4 (also `count`,
`read_async`, `read_async_num_stages`, and store[key]). GraphBolt reads features in the main process, whatever the
number of workers.

The Features need the Python part of GraphBolt alone; its samplers need its native library, which DGL 2.1.0 has for
torch 2.0.0 to 2.2.1: `require_native` says so where it is missing.
"""

from __future__ import annotations

import copy
import functools
import os
import re
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, cast

import torch

from .._install import install_command
from ..codec.codec import Codec
from ..codec.values import check_gpu, resolve_device
from ..gpu.cache import CompressedGPUCache
from ..store.feature_store import CompressedFeatureStore, Layout
from ..store.row_source import RowSource, is_row_source
from ..store.tensor_source import TensorSource
from .dgl_compat import graphbolt_is_native, import_dgl
from .sources import (
    as_tensor,
    can_compress,
    compress,
    is_array,
    is_empty,
    replace_rows,
    store_of,
    write_rows,
)

dgl = import_dgl()
from dgl import graphbolt as gb  # noqa: E402

__all__ = ["CompressedFeature", "GraphBoltFeatureStore", "require_native"]

FeatureKey = tuple[str, str | None, str]
"""(domain, type, name): domain is "node" or "edge"; type is None in a homogeneous graph, else the node type or, for
edges, "source:relation:destination"."""

_DOMAINS = ("node", "edge", "graph")


class CompressedFeature(gb.Feature):
    """A `gb.Feature` whose rows are in a RowSource: a CompressedFeatureStore, a CompressedGPUCache, or your own.

    Example:
        >>> feature = ibp_gnn.graphbolt.CompressedFeature(store)
        >>> ids = torch.tensor([4, 1])
        >>> feature.size(), bool((feature.read(ids) == features[ids]).all())
        (torch.Size([16]), True)
    """

    def __init__(
        self, source: RowSource, metadata: Mapping[str, Any] | None = None, *, device: torch.device | str | None = None
    ) -> None:
        """Reads nothing yet.

        Args:
            source: [n, *row_shape]; changed by `update` alone.
            metadata: entries for `metadata()`.
            device: where `read` puts rows. None: where the ids are, as GraphBolt's own features do. "cuda" decodes on
                the GPU even though a CPU-only GraphBolt samples on the CPU.

        Raises:
            TypeError: a source that is no RowSource, a tensor among them.
        """
        super().__init__()
        if not is_row_source(source):
            hint = "; compress it first: CompressedFeatureStore.build(tensor)" if is_array(source) else ""
            raise TypeError(f"source: want a RowSource, got {type(source).__name__}{hint}")
        self.source = source
        self._metadata = dict(metadata or {})
        self._build: dict[str, Any] | None = None  # how its rows were compressed, if a GraphBoltFeatureStore did that
        self._device = None if device is None else torch.device(device)
        if self._device is not None:
            check_gpu(self._device)

    def read(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Rows by id. To a GPU the work is enqueued on its current stream.

        Args:
            ids: [n] int32/int64, repeats and n == 0 allowed; None: all rows, decoded.

        Returns:
            [n, *row_shape].

        Raises:
            IndexError: for the stores of ibp_gnn, names the first id out of range (ids on a GPU: in a later call).
            TypeError: for the stores of ibp_gnn, ids of another dtype. Other sources raise what their `gather` does.
        """
        if ids is None:
            ids = torch.arange(self.count(), device="cpu")
        return self.source.gather(ids, device=self._device)

    def read_async(self, ids: torch.Tensor) -> Iterator[_Pending]:
        """Starts a read. Rows for the CPU are decoded by a thread; rows for a GPU on a stream of their own, which first
        waits for the caller's, and `wait` makes the caller's wait for it.

        Args:
            ids: [n] int32/int64, repeats and n == 0 allowed.

        Returns:
            A generator that starts the read and yields once: an object whose `wait()` returns what `read` would. Call
                `wait()` once. It raises what `read` would.
        """
        # With its index: streams are kept by device.
        device = resolve_device(self._device, ids.device)
        if device.type == "cuda":
            yield _PendingOnStream(self.source, ids, device)
        else:
            yield _PendingInThread(_decoder().submit(self.source.gather, ids, device=device))

    def read_async_num_stages(self, ids_device: torch.device) -> int:
        """How often `read_async` yields. (With 0, gb.GPUCachedFeature 2.4 fails.)

        Args:
            ids_device: where the ids are.

        Returns:
            1, wherever the ids are.
        """
        return 1

    def size(self) -> torch.Size:
        """Shape of a row.

        Returns:
            row_shape.
        """
        return torch.Size(self.source.shape[1:])

    def count(self) -> int:
        """Number of rows.

        Returns:
            n.
        """
        return int(self.source.shape[0])

    def update(self, value: torch.Tensor, ids: torch.Tensor | None = None) -> None:
        """Writes rows, or puts others in the place of all. If it raises, nothing has changed. GraphBolt's own caches in
        front of this feature keep what they have.

        Args:
            value: [n, *row_shape], on any device: the new rows of ids, or of all nodes or edges.
            ids: [n] int32/int64, distinct: these rows are written into the store, whoever else reads it.
                None: `value` takes the place of all rows, of any number, shape and dtype, as in GraphBolt's own
                features. A new store is fitted and built with the options of the old one, and a GPU cache of it made
                with those of the old cache. Both are in memory until nobody has the old ones, which keep their rows:
                `source` is another one then.

        Raises:
            NotImplementedError: a source that is no store of ibp_gnn, nor a GPU cache of one.
            IndexError, TypeError, ValueError, RuntimeError: as CompressedFeatureStore's `update` and `build`.
        """
        store = store_of(self.source)
        if store is None and not isinstance(self.source, TensorSource):
            raise NotImplementedError(
                f"want a feature over a CompressedFeatureStore to update it, got {self.source!r}; make a new one: "
                "features[key] = CompressedFeature(source)"
            )
        if ids is not None:
            self.source = write_rows(self.source, ids, value, "value")
            return
        build = self._build or _options_of(store)
        self.source = replace_rows(self.source, value, "value", **build)
        self._build = build

    def metadata(self) -> dict[str, Any]:
        """What the feature was made with.

        Returns:
            Its metadata, and, for stores of ibp_gnn, layout, nbytes, raw_nbytes and savings.
        """
        store = store_of(self.source)
        if store is None:
            return dict(self._metadata)
        facts = {name: getattr(store, name) for name in ("layout", "nbytes", "raw_nbytes", "savings")}
        return {**self._metadata, **facts}

    def pin_memory_(self) -> CompressedFeature:
        """Page-locks the rows of a CompressedFeatureStore now, rather than at the first read to a GPU.

        Returns:
            self.
        """
        store = store_of(self.source)
        if store is not None:
            store.page_lock()
        return self

    def is_pinned(self) -> bool:
        """Whether GPUs read the rows in place by now.

        Returns:
            True if they are page-locked.
        """
        if isinstance(self.source, TensorSource):
            return self.source.tensor.is_pinned()
        store = store_of(self.source)
        return store is not None and store.is_pinned()

    def to(self, device: torch.device | str) -> CompressedFeature:
        """This feature with all of its rows in the memory of a device, compressed.

        Args:
            device: "cpu" and "pinned" return self.

        Returns:
            The feature.

        Raises:
            TypeError: a GPU, and a source that is no CompressedFeatureStore.
        """
        if str(device) == "pinned" or torch.device(device).type == "cpu":
            return self
        store = store_of(self.source)
        if store is None:
            raise TypeError(f"to({device!r}): want a feature over a CompressedFeatureStore, got {self.source!r}")
        cache = CompressedGPUCache(store, f"{len(store)} rows", device=device)
        moved = CompressedFeature(cache, self._metadata, device=self._device)
        moved._build = self._build
        return moved

    def __repr__(self) -> str:
        return f"CompressedFeature({self.source!r})"


class GraphBoltFeatureStore(gb.BasicFeatureStore):
    """Features by (domain, type, name), compressed: takes the place of `gb.BasicFeatureStore`.

    The tensors that it was made from are not kept. An OnDiskDataset with `in_memory: false` never holds them either.

    Example:
        >>> held = ibp_gnn.GraphBoltFeatureStore({("node", None, "feat"): features}, progress=False)
        >>> ids = torch.tensor([4, 1])
        >>> bool((held.read("node", None, "feat", ids) == features[ids]).all())
        True
    """

    # No __iter__: torch takes what has it, __len__ and __contains__ for a Collection, and pickles the Collections that
    # data pipes hold, rows included, each time that it walks the pipes.

    def __init__(
        self,
        features: Any,
        *,
        keys: Collection[FeatureKey] | None = None,
        codec: str | Codec = "auto",
        layout: Layout | Literal["auto"] = "compact",
        pin: bool | str = "auto",
        device: torch.device | str | None = None,
        progress: bool | None = None,
    ) -> None:
        """Compresses features.

        Args:
            features: one of
                - a dict {(domain, type, name): value}, value a gb.Feature, a tensor, a NumPy array or a RowSource;
                - a feature store of GraphBolt's, as `gb.OnDiskDataset(path).load().feature` is;
                - a DGLGraph, whose node and edge features are taken; those attached to it keep their source.
            keys: which to compress. The others stay as they are, for example because they are often updated. None: all
                tensors that can be compressed, labels and masks among them, but for features that GraphBolt holds
                already and that would not become smaller.
            codec: of CompressedFeatureStore.build, like the next two.
            layout: see there.
            pin: see there.
            device: of CompressedFeature.
            progress: of CompressedFeatureStore.build.

        Raises:
            TypeError: other features and values.
            ValueError: keys that are malformed or absent.
        """
        super().__init__({})
        given = _collect(features)
        _check_keys(given, keys)
        build = {"codec": codec, "layout": layout, "pin": pin, "progress": progress}
        for key, value in given.items():
            self._features[key] = _make_feature(key, value, keys, device, build)

    def __getitem__(self, key: FeatureKey) -> gb.Feature:
        if key not in self._features:
            raise KeyError(f"no feature {key!r}; there are: {self.keys()}")
        return self._features[key]

    def __setitem__(self, key: FeatureKey, feature: gb.Feature) -> None:
        if not isinstance(feature, gb.Feature):
            raise TypeError(f"{key!r}: want a gb.Feature, got {type(feature).__name__}")
        _check_key(key)
        self._features[key] = feature

    def __contains__(self, key: object) -> bool:
        return key in self._features

    def read(
        self, domain: str, type_name: str | None, feature_name: str, ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The rows of one feature; see CompressedFeature.read.

        Args:
            domain: "node", "edge" or "graph".
            type_name: of nodes or edges; None in a homogeneous graph.
            feature_name: its name.
            ids: [n] int32/int64; None: all rows.

        Returns:
            [n, *row_shape].

        Raises:
            KeyError: a feature that is not here.
        """
        return self[domain, type_name, feature_name].read(ids)

    def size(self, domain: str, type_name: str | None, feature_name: str) -> torch.Size:
        """Shape of a row of one feature.

        Args:
            domain: "node", "edge" or "graph".
            type_name: of nodes or edges; None in a homogeneous graph.
            feature_name: its name.

        Returns:
            row_shape.

        Raises:
            KeyError: a feature that is not here.
        """
        return self[domain, type_name, feature_name].size()

    def count(self, domain: str, type_name: str | None, feature_name: str) -> int:
        """Number of rows of one feature.

        Args:
            domain: "node", "edge" or "graph".
            type_name: of nodes or edges; None in a homogeneous graph.
            feature_name: its name.

        Returns:
            n.

        Raises:
            KeyError: a feature that is not here.
        """
        feature = self[domain, type_name, feature_name]
        # GraphBolt's own features have count() since 2.4.
        return feature.count() if hasattr(feature, "count") else len(feature.read())

    def metadata(self, domain: str, type_name: str | None, feature_name: str) -> dict[str, Any]:
        """See CompressedFeature.metadata.

        Args:
            domain: "node", "edge" or "graph".
            type_name: of nodes or edges; None in a homogeneous graph.
            feature_name: its name.

        Returns:
            What is known of the feature.

        Raises:
            KeyError: a feature that is not here.
        """
        return self[domain, type_name, feature_name].metadata()

    def update(
        self,
        domain: str,
        type_name: str | None,
        feature_name: str,
        value: torch.Tensor,
        ids: torch.Tensor | None = None,
    ) -> None:
        """Writes rows of one feature; see CompressedFeature.update.

        Args:
            domain: "node", "edge" or "graph".
            type_name: of nodes or edges; None in a homogeneous graph.
            feature_name: its name.
            value: [n, *row_shape], on any device: the new rows.
            ids: [n] int32/int64, distinct; None: `value` takes the place of all rows.

        Raises:
            KeyError: a feature that is not here. Else as CompressedFeature.update.
        """
        self[domain, type_name, feature_name].update(value, ids)

    def pin_memory_(self) -> GraphBoltFeatureStore:
        """Page-locks the features that can be, in place, as gb.TorchBasedFeatureStore does.

        Returns:
            self.
        """
        for feature in self._features.values():
            if hasattr(feature, "pin_memory_"):
                feature.pin_memory_()
        return self

    def is_pinned(self) -> bool:
        """Whether all features are page-locked by now.

        Returns:
            False if one is not, or cannot be.
        """
        return all(hasattr(feature, "is_pinned") and feature.is_pinned() for feature in self._features.values())

    def to(self, device: torch.device | str) -> GraphBoltFeatureStore:
        """A store with these features in the memory of a device; what is compressed stays so.

        Args:
            device: a device, or "pinned".

        Returns:
            The store.
        """
        moved = copy.copy(self)
        moved._features = {
            key: feature.to(device) if hasattr(feature, "to") else feature for key, feature in self._features.items()
        }
        return moved

    def __repr__(self) -> str:
        lines = ["GraphBoltFeatureStore("]
        for key, feature in self._features.items():
            # GraphBolt's own features print their rows.
            what = repr(feature) if isinstance(feature, CompressedFeature) else type(feature).__name__
            lines.append(f"    {key}: {what},")
        return "\n".join([*lines, ")"])


def require_native() -> None:
    """Checks that GraphBolt's samplers work with this torch.

    Raises:
        ImportError: they do not; says what to install.

    Example:
        >>> try: ibp_gnn.graphbolt.require_native()
        ... except ImportError as error: print("[graphbolt]" in str(error))
        ... else: print(True)
        True
    """
    if graphbolt_is_native():
        return
    folder = Path(gb.__file__).parent
    found = [re.fullmatch(r"libgraphbolt_pytorch_([\d.]+)\.so", path.name) for path in folder.iterdir()]
    versions = sorted((match[1] for match in found if match), key=lambda v: [int(part) for part in v.split(".")])
    raise ImportError(
        f"GraphBolt's samplers need its native library, which DGL {dgl.__version__} has for torch "
        f"{', '.join(versions) or '(none)'}; this is torch {torch.__version__}. In a new environment, run: "
        f"{install_command('graphbolt')}",
        name="dgl.graphbolt",
    )


class _Pending:
    """A read that has been started."""

    def wait(self) -> torch.Tensor:
        """The rows; call it once."""
        raise NotImplementedError


class _PendingInThread(_Pending):
    def __init__(self, future: Future[torch.Tensor]) -> None:
        self._future = future

    def wait(self) -> torch.Tensor:
        return self._future.result()


class _PendingOnStream(_Pending):
    def __init__(self, source: RowSource, ids: torch.Tensor, device: torch.device) -> None:
        self._stream = _read_stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))  # which may still be making the ids
        with torch.cuda.stream(self._stream):
            self._rows = source.gather(ids, device=device)
            self._done = self._stream.record_event()
        if ids.is_cuda:
            ids.record_stream(self._stream)

    def wait(self) -> torch.Tensor:
        current = torch.cuda.current_stream(self._rows.device)
        current.wait_event(self._done)
        self._rows.record_stream(current)
        return self._rows


@functools.cache
def _read_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@functools.cache
def _decoder() -> ThreadPoolExecutor:
    # One thread: each decode is parallel inside.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="ibp_gnn.read_async")


# A forked process has the object but not its thread, and would wait for ever.
os.register_at_fork(after_in_child=_decoder.cache_clear)


def _options_of(store: CompressedFeatureStore | None) -> dict[str, Any]:
    """How to build another store like this one; None: like any."""
    build: dict[str, Any] = {"codec": "auto", "layout": "compact", "pin": "auto", "progress": False}
    return build if store is None else {**build, "layout": store.layout, "pin": store._pin}


def _collect(features: Any) -> dict[FeatureKey, Any]:
    """What was given, by key."""
    if isinstance(features, Mapping):
        return dict(features)
    if isinstance(features, dgl.DGLGraph):
        return _of_graph(features)
    if isinstance(features, gb.FeatureStore):
        # Single features can be taken out of a store since GraphBolt 2.4.
        by_key = features if hasattr(features, "__getitem__") else getattr(features, "_features", None)
        if by_key is not None:
            return {key: by_key[key] for key in features.keys()}  # noqa: SIM118
    raise TypeError(
        "features: want a dict {(domain, type, name): feature}, a feature store of GraphBolt's or a DGLGraph, got "
        f"{type(features).__name__}"
    )


def _of_graph(graph: Any) -> dict[FeatureKey, Any]:
    """The features of a DGLGraph; for one that is attached, its source."""
    from .dgl_classic import SourceColumn

    homogeneous = len(graph.ntypes) == 1 and len(graph.etypes) == 1
    frames = [("node", ntype, frame) for ntype, frame in zip(graph.ntypes, graph._node_frames, strict=True)]
    frames += [("edge", ":".join(t), f) for t, f in zip(graph.canonical_etypes, graph._edge_frames, strict=True)]
    features: dict[FeatureKey, Any] = {}
    for domain, type_name, frame in frames:
        for name, column in frame._columns.items():
            whole = isinstance(column, SourceColumn) and column.index is None and not column.casts
            value = column.handle.live_source() if whole else column.data
            features[domain, None if homogeneous else type_name, name] = value
    return features


def _check_keys(given: Mapping[FeatureKey, Any], keys: Collection[FeatureKey] | None) -> None:
    for key in given:
        _check_key(key)
    missing = [key for key in keys or () if key not in given]
    if missing:
        raise ValueError(f"keys: want some of {list(given)}, got {missing}")


def _check_key(key: Any) -> None:
    types = [type(part) for part in key] if isinstance(key, tuple) else []
    if len(types) != 3 or key[0] not in _DOMAINS or types[1] not in (str, type(None)) or types[2] is not str:
        raise ValueError(f"feature key: want (domain, type or None, name) with a domain in {_DOMAINS}, got {key!r}")


def _make_feature(
    key: FeatureKey,
    value: Any,
    keys: Collection[FeatureKey] | None,
    device: torch.device | str | None,
    build: dict[str, Any],
) -> gb.Feature:
    """The gb.Feature to serve for what was given: compressed, or as it was."""
    name = f"features[{key!r}]"
    if is_row_source(value):
        return CompressedFeature(value, device=device)
    if isinstance(value, gb.TorchBasedFeature):
        rows, metadata = _tensor_of(value), value.metadata()
    elif is_array(value):
        rows, metadata = value, None
    elif isinstance(value, gb.Feature):
        if keys is not None and key in keys and not isinstance(value, CompressedFeature):
            raise TypeError(f"{name}: want a feature held as a tensor to compress it, got {type(value).__name__}")
        return value
    else:
        raise TypeError(f"{name}: want a gb.Feature, a tensor, an array or a RowSource, got {type(value).__name__}")

    wanted = key in keys if keys is not None else can_compress(rows)
    if wanted and not is_empty(rows):
        store = compress(rows, name, **build)
        if store.savings > 0 or keys is not None or not isinstance(value, gb.Feature):
            return _made_with(build, CompressedFeature(store, metadata, device=device))
    if isinstance(value, gb.Feature) and not (wanted and keys is not None):
        return value
    tensor = as_tensor(rows)
    # GraphBolt's own feature takes no 1-d tensors. What is empty may get rows to compress by an update.
    if tensor.dim() > 1 and not is_empty(tensor):
        return gb.TorchBasedFeature(tensor)
    return _made_with(build, CompressedFeature(TensorSource(tensor), metadata, device=device))


def _made_with(build: dict[str, Any], feature: CompressedFeature) -> CompressedFeature:
    feature._build = build
    return feature


def _tensor_of(feature: gb.TorchBasedFeature) -> torch.Tensor:
    # Not read(): it copies a page-locked tensor to the GPU whole.
    tensor = getattr(feature, "_tensor", None)
    return cast(torch.Tensor, feature.read() if tensor is None else tensor)
