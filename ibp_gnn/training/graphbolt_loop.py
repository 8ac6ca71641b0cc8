"""`loop: graphbolt`: GraphBolt's data pipes, from item sampler to feature fetcher."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..datasets import NodeDataset
from ..graphbolt import CompressedFeature, GraphBoltFeatureStore, require_native
from .config import TrainConfig
from .dgl_loop import to_device
from .features import CompressedFeatures, RawFeatures
from .sage import Aggregation, copy_async
from .step import Mark, Step

require_native()
from dgl import graphbolt as gb  # noqa: E402

KEY = "feat"


class GraphBoltLoop:
    """Features are read by the pipe's feature fetcher, from GraphBolt's own store or from ours."""

    def __init__(
        self,
        data: NodeDataset,
        features: RawFeatures | CompressedFeatures,
        config: TrainConfig,
        device: torch.device,
        aggregation: Aggregation,
    ) -> None:
        self._labels, self._features, self._config = data.labels, features, config
        self._device, self._aggregation = device, aggregation
        self._graph = gb.from_dglgraph(data.to_dgl(), is_homogeneous=True)
        key = ("node", None, KEY)
        if isinstance(features, RawFeatures):
            self._store: Any = gb.BasicFeatureStore({key: gb.TorchBasedFeature(features.rows)})
        else:
            self._store = GraphBoltFeatureStore({key: CompressedFeature(features.source, device=device)})

    def steps(self, ids: torch.Tensor, *, mark: Mark) -> Iterator[Step]:
        config, threads = self._config, _Threads()
        items = gb.ItemSet((ids, self._labels[ids]), names=("seed_nodes", "labels"))
        pipe = gb.ItemSampler(items, batch_size=config.batch_size)
        pipe = pipe.transform(threads.use_one).sample_neighbor(self._graph, list(config.fanouts))
        pipe = pipe.transform(threads.use_all)
        pipe = pipe.fetch_feature(_CountedStore(self._store, self._features, mark), node_feature_keys=[KEY])
        # Fetching ahead would blur what the marks measure.
        for batch in gb.DataLoader(pipe, num_workers=config.workers, overlap_feature_fetch=False):
            x = copy_async(batch.node_features[KEY], self._device)
            labels = copy_async(batch.labels, self._device)
            blocks = to_device(batch.blocks, self._device, self._aggregation)
            mark("fetch")
            yield Step(x, labels, blocks)


class _Threads:
    """Lets GraphBolt sample on one thread: its threads race for parts of the seed nodes, each with a random generator
    of its own, so that runs with the same seed would differ (seen with DGL 2.1.0). Workers have one thread anyway."""

    def __init__(self) -> None:
        self._threads = torch.get_num_threads()

    def use_one(self, batch: Any) -> Any:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        return batch

    def use_all(self, batch: Any) -> Any:
        torch.set_num_threads(self._threads)
        return batch


class _CountedStore(gb.FeatureStore):
    """Reads from another store, and says when it starts and how much it reads."""

    def __init__(self, store: Any, features: RawFeatures | CompressedFeatures, mark: Mark) -> None:
        super().__init__()
        self._store, self._features, self._mark = store, features, mark

    def read(
        self, domain: str, type_name: str | None, feature_name: str, ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        self._mark("sample")
        rows = self._store.read(domain, type_name, feature_name, ids)
        self._features.count(len(rows))
        return rows
