"""What bench_llm.py measured: Markdown tables and a picture."""

from __future__ import annotations

from typing import Any

from . import picture
from .frame import Record
from .table import markdown

LABELS = {
    "on_gpu": "all on the GPU",
    "accelerate": "accelerate cpu_offload",
    "raw": "raw, same overlap and budget",
    "compressed": "compressed (ours)",
    "transformers": "transformers' offloaded cache",
}


def text(record: Record) -> str:
    parts = [_link(record["link"])] if record["link"] else []
    parts += [_kv(record["kv"])] if record["kv"] else []
    return "\n\n".join(parts + [_model(model) for model in record["models"]])


def _link(link: dict[str, Any]) -> str:
    ms = link["ms"]
    beside = ", ".join(f"{name} {value:.2f}x" for name, value in link["slowdown_beside"].items())
    return "\n".join(
        [
            f"a weight of {link['raw_bytes'] / 1e9:.2f} GB: compressed to {link['ratio']:.3f}",
            f"to the GPU: raw {ms['raw_dma']:.2f} ms, compressed and decoded {ms['streamed_and_decoded']:.2f} ms: "
            f"{link['speedup_of_transfer']:.2f}x",
            f"decoding from GPU memory: {link['decode_gb_s']:.0f} GB/s",
            f"matrix products beside it: {beside}",
        ]
    )


def _kv(kv: dict[str, Any]) -> str:
    pages = kv["pages"]
    lines = [
        f"pages of {kv['states']} states, {pages['row_values']} values a token: compressed to {pages['ratio']:.3f}",
        f"encoding {pages['encode_gb_s']:.0f} GB/s; fetching {pages['fetch_speedup']:.2f}x raw, "
        f"a tenth of the tokens {pages['fetch_tokens_speedup']:.2f}x",
    ]
    rows = [
        (
            of["context"],
            LABELS[one["method"]],
            f"{one['tokens_s']:.1f}",
            f"{one['moved_bytes_a_step'] / 1e9:.2f}",
            f"{one['peak_gpu_bytes'] / 1e9:.1f}",
        )
        for of in kv["contexts"]
        for one in of["methods"]
    ]
    table = markdown(("context", "cache", "tokens/s", "GB moved a step", "GB on the GPU at most"), rows)
    return "\n".join([*lines, "", table, "", *_ratio_lines(kv["contexts"], "context")])


def _model(model: dict[str, Any]) -> str:
    rows = [
        (
            LABELS[one["method"]],
            "-" if one["budget"] is None else f"{one['budget']:.0%}",
            one["batch"],
            f"{one['prefill_tokens_s']:.0f}",
            f"{one['decode_tokens_s']:.2f}",
            f"{one['moved_bytes_a_pass'] / 1e9:.2f}",
            f"{one['held_bytes'] / 1e9:.1f}",
            f"{one['peak_gpu_bytes'] / 1e9:.1f}",
        )
        for one in model["methods"]
    ]
    names = ("weights", "budget", "batch", "prefill tokens/s", "decode tokens/s", "GB moved a pass")
    table = markdown((*names, "GB held on the GPU", "GB at most"), rows)
    head = f"{model['name']}, {model['raw_bytes'] / 1e9:.1f} GB, {model['compressed_bytes'] / 1e9:.1f} compressed"
    return "\n".join([head, "", table, "", *_ratio_lines([model], "name")])


def _ratio_lines(parts: list[dict[str, Any]], key: str) -> list[str]:
    lines = []
    for part in parts:
        found = ", ".join(f"{name} {value:.2f}x" for name, value in part["ratios"].items())
        lines.append(f"{part[key]}: {found}")
        lines += [f"{part[key]}: loses: {name} {value:.2f}x" for name, value in part["ratios"].items() if value < 1]
    return lines


def draw(record: Record) -> Any:
    """Decode tokens/s by raw offload with the same overlap, for each model and long context."""
    names, ours, theirs = [], [], []
    for model in record["models"]:
        for key, value in model["ratios"].items():
            if key.startswith("decode_vs_raw_") and key.endswith("_batch_1"):
                budget = float(key.split("_")[4])
                names.append(f"{model['name']}, {budget:.0%} on the GPU")
                ours.append(value)
                theirs.append(model["ratios"].get(f"decode_vs_accelerate_budget_{budget}_batch_1"))
    for of in record["kv"]["contexts"] if record["kv"] else []:
        names.append(f"KV cache, {of['context']} tokens")
        ours.append(of["ratios"]["vs_raw"])
        theirs.append(of["ratios"].get("vs_transformers"))
    figure = picture.make_figure(1.6 + 0.5 * len(names), "Decode tokens/s of a compressed offload, batch 1")
    columns = {
        "against raw blocks, same overlap": {picture.OURS: ours},
        "against accelerate or transformers": {picture.OURS_LIGHT: theirs},
    }
    picture.ratio_panels(figure, names, columns, one="as fast")
    picture.caption(figure, record, "bf16; random weights with the exponents of trained ones")
    return figure
