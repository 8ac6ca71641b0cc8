from __future__ import annotations

import pytest
import torch
from offload_models import DEVICES, make_decoder, on_device, some_ids

from ibp_gnn.offload.weights_map import CompressedWeights
from ibp_gnn.testing import assert_bitwise_equal


@pytest.mark.parametrize("device", DEVICES)
def test_it_is_a_mapping_of_the_same_bits(device: str) -> None:
    model = make_decoder(tied=True)
    state = model.state_dict()
    weights = CompressedWeights(model, device=device, progress=False)
    assert list(weights) == list(state) and len(weights) == len(state) and "no" not in weights
    for name, tensor in weights.items():
        assert tensor.device.type == device
        assert_bitwise_equal(tensor.cpu(), state[name])
    raw = sum(parameter.nbytes for parameter in model.parameters())
    assert weights.nbytes < 0.75 * raw, "tied ones count once"
    with pytest.raises(KeyError):
        weights["no"]
    weights.close()


def test_meta_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="w: want values, got a meta tensor"):
        CompressedWeights({"w": torch.empty(3, device="meta")}, progress=False)


@pytest.mark.parametrize("device", DEVICES)
def test_accelerate_takes_it(device: str) -> None:
    hooks = pytest.importorskip("accelerate.big_modeling")
    model, ids = make_decoder(), some_ids(device)
    with torch.inference_mode():
        want = on_device(model, device)(ids)
    weights = CompressedWeights(model, device=device, progress=False)
    hooks.attach_align_device_hook(
        model, execution_device=device, offload=True, weights_map=weights, offload_buffers=True
    )
    with torch.inference_mode():
        assert_bitwise_equal(model(ids), want)
        assert model.head.weight.is_meta
    weights.close()
