from __future__ import annotations

from typing import Any

import pytest
import torch
from offload_models import make_decoder
from torch import nn

from ibp_gnn.offload.model import offload
from ibp_gnn.offload.modules import check_model, find_weights


def test_linears_and_embeddings_are_found_in_order() -> None:
    found = find_weights(make_decoder(layers=2))
    assert [one.name for one in found] == [
        "embed.weight", "ups.0.weight", "ups.1.weight", "downs.0.weight", "downs.1.weight", "head.weight"
    ]  # fmt: skip
    assert [(one.by_row, one.whole) for one in found] == [(True, False)] + [(False, True)] * 5


def test_tied_weights_are_found_once() -> None:
    model = make_decoder(tied=True)
    found = {one.name: one for one in find_weights(model)}
    one = found["embed.weight"]
    assert "head.weight" not in found and one.by_row and one.whole
    assert [module for module, _ in one.owners] == [model.embed, model.head]


def test_a_parameter_that_another_module_shares_is_read_there_too() -> None:
    model = make_decoder()
    model.extra = nn.Module()
    model.extra.shared = model.head.weight
    (one,) = [one for one in find_weights(model) if one.name == "head.weight"]
    assert one.owners == [(model.head, "weight"), (model.extra, "shared")]


def test_small_weights_and_fused_modules_stay() -> None:
    model = nn.Sequential(
        nn.Linear(8, 8),
        nn.TransformerEncoderLayer(256, 4, dim_feedforward=512),
        nn.MultiheadAttention(256, 4),
        nn.Linear(256, 256),
    )
    assert [one.name for one in find_weights(model)] == ["3.weight"]


class Hooked(nn.Linear):
    _hf_hook = object()


def cases() -> dict[str, tuple[Any, str]]:
    quantised = make_decoder()
    quantised.head.weight = nn.Parameter(torch.zeros(1000, 256, dtype=torch.int8), requires_grad=False)
    part = make_decoder()
    part.ups[1].train()
    with torch.device("meta"):
        meta = nn.Linear(256, 256).eval()
    buffer = make_decoder()
    buffer.scale = torch.empty(1, device="meta")
    renormed = nn.Embedding(1000, 256, max_norm=1.0).eval()
    return {
        "no module": ([1], "want a torch.nn.Module, got list"),
        "training": (make_decoder().train(), "want eval mode, got training mode"),
        "a part in training": (part, r"model.ups.1: want eval mode"),
        "another's hooks": (nn.Sequential(Hooked(256, 256)).eval(), "model.0: want no hooks of another offloader"),
        "integers": (quantised, "model.head.weight: want a float dtype, got torch.int8"),
        "meta": (meta, "model.weight: want values, got a meta tensor; offload.load_checkpoint"),
        "a meta buffer": (buffer, "model.scale: want values"),
        "max_norm": (renormed, "want an Embedding without max_norm"),
    }


@pytest.mark.parametrize("name", cases())
def test_what_cannot_be_offloaded(name: str) -> None:
    model, message = cases()[name]
    with pytest.raises((TypeError, ValueError), match=message):
        check_model(model)
    with pytest.raises((TypeError, ValueError), match=message):
        offload(model, device="cpu", progress=False)


def test_twice_is_an_error() -> None:
    model = make_decoder()
    with offload(model, device="cpu", progress=False):
        with pytest.raises(ValueError, match="want a weight that is not offloaded"):
            offload(model, device="cpu")


def test_meta_parameters_where_they_are_filled() -> None:
    with torch.device("meta"):
        model = nn.Linear(256, 256).eval()
    check_model(model, meta_parameters=True)
