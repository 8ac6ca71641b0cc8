"""Sampling on the GPU with WholeGraph: right neighbours, the same for the same seed, features with all their bits."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ibp_gnn import CompressedFeatureStore, CompressedGPUCache
from ibp_gnn.config import ConfigError, load
from ibp_gnn.integrations.wholegraph_graph import renumber
from ibp_gnn.testing import assert_bitwise_equal, special_rows
from ibp_gnn.training.config import TrainingConfig
from ibp_gnn.training.loop import run
from ibp_gnn.wholegraph import Graph, NeighborLoader

REPOSITORY = Path(__file__).resolve().parents[2]
NODES, EDGES = 2000, 20_000
HAS_WHOLEGRAPH = importlib.util.find_spec("pylibwholegraph") is not None
needs_wholegraph = [
    pytest.mark.cuda,
    pytest.mark.skipif(not HAS_WHOLEGRAPH, reason="WholeGraph is not installed"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def edges() -> tuple[torch.Tensor, torch.Tensor]:
    """Node 0 has many in-edges, the last ones have none; some edges are there twice."""
    draw = torch.Generator().manual_seed(0)
    src = torch.randint(0, NODES, (EDGES,), generator=draw)
    dst = (torch.rand(EDGES, generator=draw) ** 3 * (NODES - 50)).long()
    return src, dst


@pytest.fixture(scope="module")
def graph() -> Iterator[Graph]:
    with Graph.from_edges(*edges(), NODES) as made:
        yield made


@pytest.mark.skipif(HAS_WHOLEGRAPH, reason="WholeGraph is installed")
def test_without_wholegraph_the_error_says_how_to_get_it() -> None:
    with pytest.raises(ImportError, match="pip install pylibwholegraph-cu1"):
        Graph.from_edges(*edges(), NODES)


def test_renumber_sorts_what_is_new() -> None:
    found = torch.tensor([9, 4, 30, 2, 17], dtype=torch.int32)
    positions = torch.tensor([2, 0, 3, 4, 1, 2], dtype=torch.int32)
    nodes, moved = renumber(2, found, positions)
    assert nodes.tolist() == [9, 4, 2, 17, 30] and nodes.dtype == torch.int32
    assert torch.equal(nodes[moved.long()], found[positions.long()])
    nodes, moved = renumber(5, found, positions)
    assert torch.equal(nodes, found) and torch.equal(moved, positions)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_loop_wants_a_gpu() -> None:
    config = load(
        TrainingConfig, REPOSITORY / "configs" / "wordnet_sage.yaml", ["loop=wholegraph", "dataset.features=bow"]
    )
    with pytest.raises(ConfigError, match="loop: want another one than wholegraph on cpu"):
        run(config)


class TestOnGpu:
    pytestmark = needs_wholegraph

    @pytest.mark.parametrize("location", ["cuda", "cpu"])
    @pytest.mark.parametrize("fanouts", [[3], [2, 5], [-1, 4, 3]], ids=str)
    def test_sampled_neighbors_are_right(self, location: Any, fanouts: list[int]) -> None:
        src, dst = edges()
        neighbors = [Counter[int]() for _ in range(NODES)]
        for source, destination in zip(src.tolist(), dst.tolist(), strict=True):
            neighbors[destination][source] += 1
        seeds = torch.tensor([0, NODES - 1, 17, 3])
        with Graph.from_edges(src, dst, NODES, location=location) as graph:
            nodes, blocks = graph.sample(seeds, fanouts)
        ids = nodes.tolist()
        assert len(set(ids)) == len(ids) and ids[: len(seeds)] == seeds.tolist()
        assert len(blocks) == len(fanouts) and blocks[-1].num_dst == len(seeds)
        # The sources of each block are the destinations of the one before it.
        for block, num_src in zip(blocks, [len(ids), *(block.num_dst for block in blocks)], strict=False):
            assert block.num_dst <= num_src and int(block.indices.max()) < num_src
        for block, fanout in zip(blocks, fanouts, strict=True):
            indptr, indices = block.indptr.tolist(), block.indices.tolist()
            for at in range(block.num_dst):
                took = Counter(ids[index] for index in indices[indptr[at] : indptr[at + 1]])
                of_node = neighbors[ids[at]]
                assert not took - of_node  # each edge at most once
                want = of_node.total() if fanout == -1 else min(fanout, of_node.total())
                assert took.total() == want
        reached = {ids[index] for index in blocks[0].indices.tolist()} | set(ids[: blocks[0].num_dst])
        assert reached == set(ids)

    def test_the_same_seed_gives_the_same_sample(self, graph: Graph) -> None:
        samples = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            samples.append(graph.sample(torch.arange(300), [5, 5]))
        for one, same in zip(samples[0].blocks, samples[1].blocks, strict=True):
            assert torch.equal(one.indptr, same.indptr) and torch.equal(one.indices, same.indices)
        assert torch.equal(samples[0].input_nodes, samples[1].input_nodes)
        assert not torch.equal(samples[0].input_nodes, samples[2].input_nodes)

    def test_every_edge_is_as_likely(self, graph: Graph) -> None:
        src, dst = edges()
        of_node = Counter(src[dst == 0].tolist())
        counts, draws, fanout = Counter[int](), 400, 10
        for seed in range(draws):
            torch.manual_seed(seed)
            nodes, (block,) = graph.sample(torch.tensor([0]), [fanout])
            counts.update(nodes[block.indices.long()].tolist())
        expected = draws * fanout / of_node.total()
        chi_square = sum(
            (counts[node] - expected * copies) ** 2 / (expected * copies) for node, copies in of_node.items()
        )
        assert chi_square < 1.5 * len(of_node)

    def test_what_is_no_graph(self, graph: Graph) -> None:
        for indptr, indices, says in (
            ([0, 2], [0], "indptr: want numbers that rise from 0 to 1"),
            ([0, 1, 0, 1], [0], "indptr: want numbers that rise"),
            ([0, 1], [1], "indices: want nodes from 0 to 0, got 1 to 1"),
            ([0], [], "indptr: want"),
        ):
            with pytest.raises(ValueError, match=says):
                Graph(torch.tensor(indptr), torch.tensor(indices, dtype=torch.int64))
        with pytest.raises(IndexError, match="want 0 <= id < 2000, got 2000"):
            graph.sample(torch.tensor([2000]), [3])
        with pytest.raises(ValueError, match="distinct ids, got 1 repeats"):
            graph.sample(torch.tensor([4, 4]), [3])
        with pytest.raises(ValueError, match="fanouts: want whole numbers"):
            graph.sample(torch.tensor([4]), [0])
        with pytest.raises(ValueError, match="location: want cuda or cpu, got 'disk'"):
            Graph.from_edges(*edges(), NODES, location="disk")  # type: ignore[arg-type]

    def test_closed(self) -> None:
        with Graph.from_edges(*edges(), NODES) as graph:
            pass
        graph.close()
        assert repr(graph) == "Graph(closed)"
        with pytest.raises(ValueError, match="closed"):
            graph.sample(torch.tensor([1]), [2])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_loader_has_the_features_of_its_nodes(self, graph: Graph, dtype: torch.dtype) -> None:
        rows = special_rows(dtype, 24, "outliers", NODES)
        ids = torch.randperm(NODES, generator=torch.Generator().manual_seed(1))[:700]
        with CompressedFeatureStore.build(rows, progress=False) as store:
            cache = CompressedGPUCache(store, "300 rows")
            loader = NeighborLoader(graph, ids, [4, 6], batch_size=128, features=cache)
            seen = []
            for batch in loader:
                torch.cuda._sleep(3_000_000)  # training that takes longer than the next batch
                assert batch.x is not None
                assert_bitwise_equal(batch.x.cpu(), rows[batch.input_nodes.long().cpu()])
                assert torch.equal(batch.input_nodes[: len(batch.output_nodes)], batch.output_nodes)
                seen.append(batch.output_nodes.long().cpu())
            assert len(loader) == len(seen) == 6 and torch.equal(torch.cat(seen), ids)

    def test_shuffled_and_without_the_rest(self, graph: Graph) -> None:
        ids = torch.arange(100, 233)
        loader = NeighborLoader(graph, ids, [2], batch_size=32, shuffle=True, drop_last=True)
        passes = []
        for seed in (5, 5, 6):
            torch.manual_seed(seed)
            passes.append(torch.cat([batch.output_nodes.cpu() for batch in loader]))
        assert len(loader) == 4 and len(passes[0]) == 128
        assert torch.equal(passes[0], passes[1]) and not torch.equal(passes[0], passes[2])
        assert set(passes[2].tolist()) < set(ids.tolist())
        assert all(batch.x is None for batch in loader)

    def test_what_a_loader_refuses(self, graph: Graph) -> None:
        ids = torch.arange(10)
        with pytest.raises(ValueError, match="batch_size: want a whole number"):
            NeighborLoader(graph, ids, [2], batch_size=0)
        with pytest.raises(TypeError, match="features: want a RowSource"):
            NeighborLoader(graph, ids, [2], batch_size=2, features=torch.zeros(NODES, 2))  # type: ignore[arg-type]
        with CompressedFeatureStore.build(torch.zeros(5, 4), progress=False) as store:
            with pytest.raises(ValueError, match="features: want 2000 rows, one a node, got 5"):
                NeighborLoader(graph, ids, [2], batch_size=2, features=store)
        with pytest.raises(IndexError, match="got 2000"):
            NeighborLoader(graph, torch.tensor([2000]), [2], batch_size=2)

    def test_training_has_the_same_losses_with_compressed_features(self, tmp_path: Path) -> None:
        losses = {}
        for features in ("raw", "compressed"):
            config = load(
                TrainingConfig,
                REPOSITORY / "configs" / "wordnet_sage.yaml",
                [
                    "loop=wholegraph",
                    "dataset.features=bow",
                    f"features={features}",
                    "cache.capacity=0.2",
                    "cache.hotness=presample",
                    "train.epochs=1",
                    "train.deterministic=true",
                    "train.fanouts=[5, 5, 5]",
                    "train.batch_size=4096",
                    "model.hidden=32",
                    f"log.json={tmp_path / features}.json",
                ],
            )
            run(config, log=lambda line: None)
            losses[features] = json.loads((tmp_path / f"{features}.json").read_text())
        assert losses["raw"]["step_losses_hex"] == losses["compressed"]["step_losses_hex"]
        assert losses["raw"]["test_accuracy"] == losses["compressed"]["test_accuracy"]
        assert losses["compressed"]["epochs"][0]["hits"] > 0
