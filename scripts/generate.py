#!/usr/bin/env python3
"""Generate text with a local transformers checkpoint whose weights, KV cache or both lie compressed in CPU memory.

python scripts/generate.py --set model=/models/llama prompt="Once upon a time" gpu_budget=20GB
python scripts/generate.py --set model=/models/llama weights=raw kv_cache=compressed new_tokens=200

model is a folder of `save_pretrained`, or one that --set save=FOLDER has written, whose weights are compressed. The
last line of standard output is one JSON object with the text and tokens/s.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any, Literal

import torch
from tqdm import tqdm

from ibp_gnn import PinError, offload
from ibp_gnn.config import ConfigError, setting
from ibp_gnn.offload.compressed_checkpoint import INDEX_NAME
from ibp_gnn.training import record
from ibp_gnn.training.script import run_script

SUMMARY = ("text", "prompt_tokens", "new_tokens", "first_token_s", "tokens_s", "device", "weights", "kv_cache")


@dataclasses.dataclass(frozen=True)
class Log:
    """json: where to write the record."""

    json: str | None = None


@dataclasses.dataclass(frozen=True)
class GenerateConfig:
    """model: a folder. device: "auto" is the GPU if there is one. weights, kv_cache: "compressed" or "raw"; raw weights
    have to fit the device. gpu_budget, prefetch: as for ibp_gnn.offload.offload. kv_budget: CPU memory for the cache.
    save: where to write the weights compressed, for the next run."""

    model: str
    prompt: str = "Once upon a time"
    new_tokens: int = setting(64, ge=1)
    sample: bool = False
    seed: int = 0
    device: str = "auto"
    weights: Literal["compressed", "raw"] = "compressed"
    kv_cache: Literal["compressed", "raw"] = "compressed"
    gpu_budget: str = "auto"
    prefetch: int = setting(2, ge=1)
    kv_budget: str = "50%"
    save: str | None = None
    progress: bool = True
    log: Log = dataclasses.field(default_factory=Log)


class Bar:
    """A streamer of transformers: counts tokens, shows them, and remembers when the first came."""

    def __init__(self, total: int, show: bool) -> None:
        self._bar = tqdm(total=total, desc="generating", unit="token", disable=not show)
        self._prompt = True
        self.begin = time.perf_counter()
        self.times: list[float] = []

    def put(self, _: torch.Tensor) -> None:
        if self._prompt:  # comes first
            self._prompt = False
            return
        self.times.append(time.perf_counter() - self.begin)
        self._bar.update()

    def end(self) -> None:
        self._bar.close()


def run(config: GenerateConfig, *, commit: str | None) -> dict[str, Any]:
    """Returns the record. Raises ConfigError, ImportError."""
    from transformers import AutoTokenizer

    path = record.prepare(config.log.json) if config.log.json else None
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(auto if config.device == "auto" else config.device)
    folder = Path(config.model)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model: want a folder with config.json, got {config.model!r}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    try:
        model, handle = _load(config, folder, device)
    except (ValueError, OSError, PinError) as error:
        raise ConfigError(f"cannot load {folder}: {error}") from error
    if config.save:
        model.config.save_pretrained(config.save)
        tokenizer.save_pretrained(config.save)
        offload.save_checkpoint(model, config.save, progress=config.progress)
    inputs = tokenizer(config.prompt, return_tensors="pt").to(device)
    cache = None
    if config.kv_cache == "compressed":
        cache = offload.CompressedOffloadedCache(model.config, budget=config.kv_budget)
    bar = Bar(config.new_tokens, config.progress)
    torch.manual_seed(config.seed)
    with torch.inference_mode():
        ids = model.generate(
            **inputs,
            max_new_tokens=config.new_tokens,
            do_sample=config.sample,
            past_key_values=cache,
            streamer=bar,
        )
    steps = len(bar.times) - 1
    result = {
        "model": config.model,
        "text": tokenizer.decode(ids[0], skip_special_tokens=True),
        "prompt_tokens": inputs["input_ids"].shape[1],
        "new_tokens": len(bar.times),
        "first_token_s": bar.times[0],
        "tokens_s": steps / (bar.times[-1] - bar.times[0]) if steps else None,
        "device": str(device),
        "weights": dataclasses.asdict(handle.report()) if handle else "raw",
        "kv_cache": dataclasses.asdict(cache.report()) if cache else "raw",
        "hardware": record.hardware(device),
        "versions": record.versions(),
        "commit": commit,
    }
    if cache:
        cache.close()
    if path:
        record.write(path, result)
    return result


def _load(config: GenerateConfig, folder: Path, device: torch.device) -> tuple[Any, offload.Offload | None]:
    from transformers import AutoConfig, AutoModelForCausalLM

    options: dict[str, Any] = {"device": device, "prefetch": config.prefetch, "progress": config.progress}
    if device.type == "cuda":
        options["gpu_budget"] = config.gpu_budget
    if (folder / INDEX_NAME).is_file():
        if config.weights == "raw":
            raise ConfigError(f"weights: want 'compressed' for {folder}, which has compressed weights, got 'raw'")
        from accelerate import init_empty_weights

        settings = AutoConfig.from_pretrained(folder)
        with init_empty_weights(include_buffers=False):
            model = AutoModelForCausalLM.from_config(settings, dtype=settings.dtype).eval()
        return model, offload.load_checkpoint(model, folder, **options)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    if config.weights == "raw":
        return model.to(device), None
    return model, offload.offload(model, **options)


def main() -> int:
    return run_script(
        __file__,
        "Generate text with compressed weights and a compressed KV cache.",
        "model=FOLDER gpu_budget=20GB",
        GenerateConfig,
        run,
        lambda _, result: {key: result[key] for key in SUMMARY},
    )


if __name__ == "__main__":
    sys.exit(main())
