#!/usr/bin/env python
"""Offload of LLMs: weights and KV caches in CPU memory, compressed and raw, and everything on the GPU.

link: what one large weight takes to come to the GPU, raw and compressed, and how much a train of matrix products beside
it slows down.
weights: prefill and decode of Llama-shaped models, for each batch size: ours, the same overlap and budget with raw
page-locked weights, accelerate's cpu_offload, and the whole model on the GPU.
kv: decode steps with a long context: ours, the same blocks raw, transformers' offloaded cache, and transformers' cache
on the GPU; and how fast blocks are encoded and fetched.

Models have the shapes that the config says and random weights, normal with a deviation of 0.02, whose exponents have
about the entropy of trained ones (2.6 bits). All methods give the same logits, which is checked before anything is
timed.

python scripts/bench_llm.py --config configs/bench_llm.yaml --json out.json --plot out.png
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from bench import frame, llm_report
from bench.llm_kv import KvConfig, measure_kv
from bench.llm_link import LinkConfig, measure_link
from bench.llm_models import Shape
from bench.llm_weights import WeightsConfig, measure_weights

from ibp_gnn import _native


@dataclasses.dataclass(frozen=True)
class Config:
    """link, kv: null leaves the part out; so does a list of no models."""

    models: tuple[Shape, ...] = ()
    weights: WeightsConfig = dataclasses.field(default_factory=WeightsConfig)
    link: LinkConfig | None = dataclasses.field(default_factory=LinkConfig)
    kv: KvConfig | None = dataclasses.field(default_factory=KvConfig)
    seed: int = 0


def main(arguments: list[str] | None = None) -> None:
    frame.main(frame.Benchmark("llm", __doc__ or "", Config, prepare, measure, llm_report), arguments)


def prepare(config: Config) -> torch.device:
    if not torch.cuda.is_available():
        raise frame.CannotRun("this benchmark needs a CUDA device")
    _native.cuda()  # says now, not later, if it is missing
    try:
        import accelerate  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise frame.CannotRun(f"this benchmark needs transformers and accelerate: {error}") from error
    return torch.device("cuda", torch.cuda.current_device())


def measure(config: Config, record: frame.Record, save: Callable[[], None]) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    record |= {"link": None, "models": [], "kv": None}
    torch.manual_seed(config.seed)
    if config.link:
        record["link"] = measure_link(config.link, device)
        save()
    if config.kv:
        record["kv"] = measure_kv(config.kv, device, config.seed)
        save()
    for shape in config.models:
        record["models"].append(measure_weights(shape, config.weights, device, config.seed))
        save()


if __name__ == "__main__":
    main()
