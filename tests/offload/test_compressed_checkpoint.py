from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from offload_models import DEVICES, Decoder, budget_for, make_decoder, on_device, some_ids

from ibp_gnn._native import FormatError
from ibp_gnn.testing import assert_bitwise_equal

pytest.importorskip("safetensors")

from ibp_gnn.offload.compressed_checkpoint import CheckpointReader, load_checkpoint, save_checkpoint  # noqa: E402
from ibp_gnn.offload.model import offload  # noqa: E402


def empty(**options: Any) -> Decoder:
    """The model with parameters that are meta tensors."""
    model = make_decoder(**options)
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = torch.nn.Parameter(parameter.to("meta"), requires_grad=False)
    if options.get("tied"):
        model.head.weight = model.embed.weight
    model.scale.zero_()
    return model


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("offloaded", [False, True])
def test_a_checkpoint_gives_the_same_results(tmp_path: Path, device: str, tied: bool, offloaded: bool) -> None:
    model, ids = make_decoder(tied=tied), some_ids(device)
    with torch.inference_mode():
        want = on_device(model, device)(ids)
    budget = "auto" if device == "cpu" else budget_for(model, 0.4)
    if offloaded:
        offload(model, device=device, gpu_budget=budget, progress=False)
    save_checkpoint(model, tmp_path, max_shard="400KB", progress=False)
    raw = sum(parameter.nbytes for parameter in model.parameters())
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2 and sum(file.stat().st_size for file in files) < 0.75 * raw
    for start in (empty(tied=tied), make_decoder(tied=tied)):
        with torch.no_grad():
            start.scale.zero_()
        with load_checkpoint(start, tmp_path, device=device, gpu_budget=budget, progress=False) as handle:
            with torch.inference_mode():
                assert_bitwise_equal(start(ids), want)
            assert handle.report().compressed_bytes < 0.75 * handle.report().raw_bytes
        for name, tensor in start.state_dict().items():
            assert_bitwise_equal(tensor, make_decoder(tied=tied).state_dict()[name])


def test_saving_again_replaces_the_old_one(tmp_path: Path) -> None:
    save_checkpoint(make_decoder(layers=4), tmp_path, max_shard=300_000, progress=False)
    save_checkpoint(make_decoder(layers=2), tmp_path, progress=False)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "ibp_weights-00001-of-00001.safetensors",
        "ibp_weights.index.json",
    ]
    load_checkpoint(empty(layers=2), tmp_path, device="cpu", progress=False)


def test_other_models_are_refused(tmp_path: Path) -> None:
    save_checkpoint(make_decoder(), tmp_path, progress=False)
    for other, message in (
        (empty(layers=4), "got none of 'downs.3.weight'"),
        (empty(layers=2), "got one with 'downs.2.weight'"),
        (empty(width=128), r"embed.weight: want \[1000, 128\]"),
        (empty(dtype=torch.float16), "torch.float16, got .* torch.bfloat16"),
    ):
        with pytest.raises(ValueError, match=message):
            load_checkpoint(other, tmp_path, device="cpu", progress=False)
        assert all(parameter.is_meta for parameter in other.parameters())
    with pytest.raises(FileNotFoundError, match="ibp_weights.index.json"):
        load_checkpoint(empty(), tmp_path / "no", device="cpu")
    with pytest.raises(ValueError, match="max_shard"):
        save_checkpoint(make_decoder(), tmp_path, max_shard="3 rows")
    with pytest.raises(ValueError, match="meta tensor"):
        save_checkpoint(empty(), tmp_path / "meta", progress=False)


def test_damage_is_found(tmp_path: Path) -> None:
    save_checkpoint(make_decoder(layers=1), tmp_path, progress=False)
    path = tmp_path / "ibp_weights.index.json"
    whole = json.loads(path.read_text())

    def damaged(change: Any) -> None:
        index = json.loads(json.dumps(whole))
        change(index)
        path.write_text(json.dumps(index))
        with pytest.raises((FormatError, ValueError)):
            load_checkpoint(empty(layers=1), tmp_path, device="cpu", progress=False)

    one = "ups.0.weight"
    damaged(lambda index: index.update(format=2))
    damaged(lambda index: index.pop("aliases"))
    damaged(lambda index: index["tensors"][one].update(file="../secret"))
    damaged(lambda index: index["tensors"][one].update(file="no.safetensors"))
    damaged(lambda index: index["tensors"][one].update(codec="no"))
    damaged(lambda index: index["tensors"][one].update(block=700))
    damaged(lambda index: index["tensors"][one]["layout"].update(num_rows=3))
    damaged(lambda index: index["tensors"][one]["layout"].update(num_rows=10**12))
    damaged(lambda index: index["tensors"][one]["parameters"].update(code_bits=9))
    damaged(lambda index: index["tensors"][one].pop("tables"))
    damaged(lambda index: index["tensors"].update({one: 3}))
    path.write_text("[1")
    with pytest.raises(FormatError, match="not the index"):
        CheckpointReader(tmp_path)
    path.write_text(json.dumps(whole))
    file = tmp_path / "ibp_weights-00001-of-00001.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(FormatError, match="cannot read"):
        load_checkpoint(empty(layers=1), tmp_path, device="cpu", progress=False)
    file.write_bytes(data)
    load_checkpoint(empty(layers=1), tmp_path, device="cpu", progress=False)


def test_files_are_mapped_not_read(tmp_path: Path) -> None:
    save_checkpoint(make_decoder(), tmp_path, progress=False)
    weight = CheckpointReader(tmp_path).read("head.weight")
    assert "ibp_weights" in Path("/proc/self/maps").read_text()
    assert_bitwise_equal(weight.decompress(), make_decoder().head.weight.data)  # type: ignore[union-attr]
