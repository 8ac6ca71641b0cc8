"""make_tables.py: the documents show what the results say, and --check finds where they do not."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "scripts" / "make_tables.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("make_tables", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def double_store_shares(record: dict[str, Any]) -> None:
    for one in record["sizes"]:
        one["compact_store_share"]["auto_slots"] *= 2


def test_documents_are_up_to_date(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status = script.main(["--check"])
    assert status == 0, capsys.readouterr().err


def test_every_region_is_shown(script: Any) -> None:
    shown = [name for document in script.DOCUMENTS for name in script._BEGIN.findall(document.read_text())]
    assert sorted(shown) == sorted(script.REGIONS)


def test_needs_python_alone() -> None:
    """CI can run it before anything is installed."""
    run = subprocess.run([sys.executable, "-I", "-S", str(SCRIPT), "--check"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("result", "change", "document"),
    [
        ("codec_sizes", lambda record: record["sizes"][0]["savings"].update(auto=0.999), "README.md"),
        ("epoch", lambda record: record["sets"][0].update(sampling_ms=9999.0), "README.md"),
        ("epoch", lambda record: record["sets"][0]["methods"][1].update(epoch_ms=9999.0), "benchmarks.md"),
        ("gather", lambda record: record["cases"][0]["methods"][1].update(ms=9999.0), "benchmarks.md"),
        ("cache_hit", lambda record: record["traces"][0].update(accesses=1), "benchmarks.md"),
        ("codec_cpu", lambda record: record["cpu"][2].update(decode_gb_per_s=9999.0), "benchmarks.md"),
        ("codec_gpu", lambda record: record["hardware"].update(gpu="another"), "benchmarks.md"),
        ("codec_peers", lambda record: record["peers"][0].update(size_to_raw=9.9), "benchmarks.md"),
        ("versions", lambda record: record.update(after="another"), "benchmarks.md"),
        ("cache_tiers", lambda record: record["traces"][1].update(accesses=1), "distributed.md"),
        ("codec_sizes", double_store_shares, "distributed.md"),
        ("dlrm", lambda record: record["cases"][0]["ratios"][0]["ms"].update(ours_vs_cpu=9999.0), "dlrm.md"),
        ("dlrm", lambda record: record["config"].update(data="minilm_embeddings"), "dlrm.md"),
        ("precision", lambda record: record["accuracy"][0].update(mean=0.999), "precision.md"),
        ("precision_sizes", lambda record: record["sizes"][0]["precisions"][1].update(max_error=9.0), "precision.md"),
    ],
)
def test_check_finds_another_result(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], result: str, change: Any, document: str
) -> None:
    results = tmp_path / "results"
    shutil.copytree(script.RESULTS, results, ignore=lambda _, names: [one for one in names if one.endswith(".png")])
    record = json.loads((results / f"{result}.json").read_text())
    change(record)
    (results / f"{result}.json").write_text(json.dumps(record))
    copies = [Path(shutil.copy(one, tmp_path)) for one in script.DOCUMENTS]
    before = [copy.read_text() for copy in copies]
    arguments = ["--results", str(results), *map(str, copies)]
    assert script.main(["--check", *arguments]) == 1
    assert f"{document}: out of date" in capsys.readouterr().err
    assert [copy.read_text() for copy in copies] == before
    assert script.main(arguments) == 0
    assert script.main(["--check", *arguments]) == 0
    assert [copy.read_text() for copy in copies] != before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- generated: nothing -->\n<!-- end -->", "want one of .*, got 'nothing'"),
        ("<!-- generated: versions -->\nno end", "'versions': want a line '<!-- end -->' after it, got none"),
        (
            "<!-- generated: versions -->\n<!-- generated: epoch -->\n<!-- end -->",
            "'versions': want a line '<!-- end -->' after it, got none",
        ),
    ],
)
def test_bad_regions(script: Any, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(script.DocumentError, match=message):
        script.rewritten(text)
    document = tmp_path / "document.md"
    document.write_text(text)
    assert script.main([str(document)]) == 1
    assert document.read_text() == text


def test_text_outside_of_regions_stays(script: Any) -> None:
    text = "# Title\n\nwords\n<!-- generated: versions -->\nold\n<!-- end -->\n\nmore\n"
    made = script.rewritten(text)
    assert made.startswith("# Title\n\nwords\n<!-- generated: versions -->\nThe last comparison")
    assert made.endswith("\n<!-- end -->\n\nmore\n") and "old" not in made
    assert script.rewritten(made) == made


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_sizes_are_those_of_stores_caches_and_graphs(script: Any, gpus: int) -> None:
    torch = pytest.importorskip("torch")
    from ibp_gnn import CompressedFeatureStore
    from ibp_gnn.gpu.cache import fixed_bytes, rows_that_fit
    from ibp_gnn.integrations.wholegraph_cache import choose_split

    nodes, edges, width = 20_000, 90_000, 64
    features = torch.randn(nodes, width, generator=torch.Generator().manual_seed(0))
    with CompressedFeatureStore.build(features, progress=False) as store:
        graph = script.Graph("small", nodes, edges, 4 * width)
        capacity = 1_200_000
        sizes = script.sizes_of(graph, store.nbytes / store.raw_nbytes, gpus, capacity)
        assert sizes.store == pytest.approx(store.nbytes, rel=1e-9)
        fixed = fixed_bytes(store, is_prefix=False)
        assert sizes.tables == pytest.approx(fixed - store.codec.form.device_nbytes, rel=1e-3)
        order = torch.arange(nodes)
        replicated = rows_that_fit(store, order, capacity, capacity, fixed)
        assert sizes.replicated == pytest.approx(replicated / nodes, rel=0.02)
        each = torch.full((nodes,), store.slot_bytes)
        split = choose_split(each, capacity - fixed, gpus, "shard")
        assert 0.1 < sizes.sharded == pytest.approx(sum(split) / nodes, rel=0.05)
        raw_rows = min(nodes, gpus * (capacity - 4 * nodes) // (4 * width))
        assert sizes.sharded_raw == pytest.approx(raw_rows / nodes, rel=1e-3) and sizes.sharded_raw < sizes.sharded
    part = 8 * (nodes + 1) + 4 * edges
    assert sizes.wholegraph_part == part / gpus
    everything = script.sizes_of(graph, 0.5, gpus, 1e9)
    assert (everything.replicated, everything.sharded, everything.sharded_raw) == (1, 1, 1)


def test_the_size_of_a_graph_in_dgl(script: Any) -> None:
    dgl = pytest.importorskip("dgl")
    torch = pytest.importorskip("torch")
    graph = dgl.graph((torch.randint(500, (3000,)), torch.randint(500, (3000,))), num_nodes=500).formats("csc")
    graph.create_formats_()
    wanted = sum(tensor.nbytes for tensor in graph.adj_tensors("csc"))
    assert script.sizes_of(script.Graph("small", 500, 3000, 4), 1.0, 1, 1e9).dgl_graph == wanted
