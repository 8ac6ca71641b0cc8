"""Prefill and decode of a model whose weights are offloaded, in several ways."""

from __future__ import annotations

import copy
import dataclasses
import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ibp_gnn.config import setting
from ibp_gnn.offload import offload
from ibp_gnn.testing import assert_bitwise_equal

from .llm_models import Shape, make_model
from .llm_raw import offload_raw


@dataclasses.dataclass(frozen=True)
class WeightsConfig:
    """budgets: shares of the raw weights that the GPU has room for, buffers included; 0: the head and buffers alone.
    accelerate_tokens: decode steps with accelerate's cpu_offload, which is slow; 0 leaves it out."""

    batch_sizes: tuple[int, ...] = (1, 8, 32)
    budgets: tuple[float, ...] = setting((0.0, 0.5), ge=0, le=1)
    prompt_tokens: int = setting(512, ge=1)
    new_tokens: int = setting(6, ge=1)
    accelerate_tokens: int = setting(2, ge=0)
    prefetch: int = setting(2, ge=1)


def measure_weights(shape: Shape, config: WeightsConfig, device: torch.device, seed: int) -> dict[str, Any]:
    """The record of a model. Raises AssertionError if a method gives other logits."""
    record: dict[str, Any] = {"name": shape.name, "methods": [], "seconds": {}}
    prompts = {
        batch: torch.randint(shape.vocab, (batch, config.prompt_tokens), device=device) for batch in config.batch_sizes
    }
    wanted: dict[int, torch.Tensor] = {}

    def run(
        method: str, budget: float | None, model: nn.Module, tokens: int, moved: Callable[[], int], held: int
    ) -> None:
        for batch, prompt in prompts.items():
            if method == "accelerate" and batch != config.batch_sizes[0]:
                continue
            torch.cuda.reset_peak_memory_stats(device)
            before = moved()
            prefill, step, logits = _generate(model, prompt, tokens)
            if batch in wanted:
                assert_bitwise_equal(logits[: len(wanted[batch])], wanted[batch][: len(logits)])
            else:
                wanted[batch] = logits
            measured = {
                "method": method,
                "budget": budget,
                "batch": batch,
                "prefill_s": prefill,
                "prefill_tokens_s": prompt.numel() / prefill,
                "step_s": step,
                "decode_tokens_s": batch / step,
                "moved_bytes_a_pass": (moved() - before) // (tokens + 1 + _WARM_UP),
                "held_bytes": held,
                "peak_gpu_bytes": torch.cuda.max_memory_allocated(device),
            }
            record["methods"].append(measured)
            print(f"{shape.name} {measured}", flush=True)

    def seconds(what: str) -> None:
        record["seconds"][what] = time.perf_counter() - begin
        print(f"{shape.name}: {what} at {record['seconds'][what]:.1f} s", flush=True)

    begin = time.perf_counter()
    model = make_model(shape, device, seed)
    record["raw_bytes"] = sum(parameter.nbytes for parameter in model.parameters())
    seconds("made")
    if record["raw_bytes"] < 0.8 * torch.cuda.mem_get_info(device)[0]:
        run("on_gpu", None, _copy(model, device), config.new_tokens, lambda: 0, record["raw_bytes"])
        _collect()
    least = _least_budget(model, config.prefetch)
    for budget in config.budgets:
        limit = max(int(budget * record["raw_bytes"]), least)
        ours = _copy(model)
        handle = offload(ours, device=device, gpu_budget=limit, prefetch=config.prefetch, progress=False)
        report = handle.report()
        record["compressed_bytes"], record[f"places_{budget}"] = report.compressed_bytes, report.places
        seconds(f"compressed, budget {budget}")
        moved = lambda handle=handle: handle.report().streamed_bytes  # noqa: E731
        run("compressed", budget, ours, config.new_tokens, moved, report.device_bytes)
        del ours, handle, moved
        _collect()
    for budget in config.budgets:
        limit = max(int(budget * record["raw_bytes"]), least)
        raw = _copy(model)
        decoder = offload_raw(raw, device, limit, config.prefetch)
        seconds(f"raw, budget {budget}")
        moved = lambda decoder=decoder: decoder.streamed_bytes  # noqa: E731
        run("raw", budget, raw, config.new_tokens, moved, decoder.device_nbytes)
        decoder.close()
        del decoder, raw, moved
        _collect()
    if config.accelerate_tokens:
        from accelerate import cpu_offload

        cpu_offload(model, device)  # for good
        run("accelerate", 0.0, model, config.accelerate_tokens, lambda: 0, 0)
        seconds("accelerate")
    record["ratios"] = ratios(record["methods"])
    print(f"{shape.name} {record['ratios']}", flush=True)
    return record


_WARM_UP = 1  # decode steps


@torch.inference_mode()
def _generate(model: nn.Module, prompt: torch.Tensor, tokens: int) -> tuple[float, float, torch.Tensor]:
    """Seconds of a prefill and of a decode step, and the logits of the first steps. Greedy."""
    from transformers import DynamicCache

    with torch.inference_mode():
        model(prompt[:, :8], use_cache=False)  # the first copies, and libraries that load
    cache = DynamicCache(config=model.config)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    logits = model(prompt, past_key_values=cache, logits_to_keep=1).logits[:, -1]
    torch.cuda.synchronize()
    prefill = time.perf_counter() - begin
    kept = [logits]
    for step in range(_WARM_UP + tokens):
        if step == _WARM_UP:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        logits = model(logits.argmax(-1, keepdim=True), past_key_values=cache).logits[:, -1]
        if len(kept) < 3:
            kept.append(logits)
    torch.cuda.synchronize()
    return prefill, (time.perf_counter() - begin) / tokens, torch.stack(kept)


def ratios(methods: list[dict[str, Any]]) -> dict[str, float]:
    """Decode tokens/s of ours by those of others, for each budget and batch."""
    found = {}
    by_key = {(one["method"], one["budget"], one["batch"]): one for one in methods}
    for (method, budget, batch), one in by_key.items():
        if method != "compressed":
            continue
        for other, of_budget in (("raw", budget), ("accelerate", 0.0), ("on_gpu", None)):
            peer = by_key.get((other, of_budget, batch))
            if peer:
                where = f"{other}_budget_{budget}_batch_{batch}"
                found[f"decode_vs_{where}"] = one["decode_tokens_s"] / peer["decode_tokens_s"]
                found[f"prefill_vs_{where}"] = one["prefill_tokens_s"] / peer["prefill_tokens_s"]
    return found


def _least_budget(model: nn.Module, prefetch: int) -> int:
    """What all methods can do with: the head, the buffers of the largest other weight, and what is not offloaded."""
    sizes = sorted(module.weight.nbytes for module in model.modules() if isinstance(module, nn.Linear))
    rest = sum(parameter.nbytes for parameter in model.parameters() if parameter.ndim == 1)
    rest += sum(buffer.nbytes for buffer in model.buffers())
    ours = sizes[-2] + (prefetch + 1) * round(0.72 * sizes[-2])
    return rest + sizes[-1] + max(ours, (prefetch + 1) * sizes[-2]) + (1 << 20)


def _copy(model: nn.Module, device: torch.device | None = None) -> nn.Module:
    """A second model, with parameters of its own, on the device; None: that share their memory with the first one's."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        values = parameter.detach() if device is None else parameter.detach().to(device)
        memo[id(parameter)] = nn.Parameter(values, requires_grad=False)
    copied = copy.deepcopy(model, memo)
    return copied if device is None else copied.to(device)


def _collect() -> None:
    gc.collect()
    torch.cuda.empty_cache()
