"""Features that somebody writes to while a store is built of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.codec import dispatch
from ibp_gnn.codec.codec import Codec
from ibp_gnn.store import build as build_module
from ibp_gnn.store.file import building
from ibp_gnn.testing import assert_bitwise_equal
from ibp_gnn.training.store_builder import StoreBuilder

NUM_ROWS, WIDTH, CHUNK = 640, 16, 64
# Every fiftieth row is noise, which overflows. What changes is not in the first chunk.
ROW, NOISY = 251, 250


def features() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_ROWS, WIDTH, generator=generator) * 0.1
    noise = torch.randint(-(2**31), 2**31 - 1, x.shape, dtype=torch.int32, generator=generator).view(torch.float32)
    x[::50] = noise[::50]
    return x


@pytest.fixture
def change_between_passes(monkeypatch):
    """change_between_passes(change): calls `change` when all rows have been measured and none has been compressed."""
    second_pass = build_module.placed_chunks

    def set_change(change) -> None:
        def changed(*args, **options):
            change()
            return second_pass(*args, **options)

        monkeypatch.setattr(build_module, "placed_chunks", changed)

    return set_change


def build(x, codec, tmp_path, to_file):
    if not to_file:
        return CompressedFeatureStore.build(x, codec, chunk_rows=CHUNK, progress=False)
    job = build_module.Job.check(x, codec, "compact", None, CHUNK, False)
    building.build_file(job, tmp_path / "store", {})
    return CompressedFeatureStore.load(tmp_path / "store")


@pytest.mark.parametrize("to_file", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("kind", ["tensor", "memmap"])
@pytest.mark.parametrize(("row", "like"), [(ROW, NOISY), (NOISY, ROW)], ids=["grows", "shrinks"])
def test_a_row_of_another_length_is_named(change_between_passes, tmp_path, row, like, kind, to_file):
    """It has no place in the overflow area, or leaves one to nobody; other rows would be wrong."""
    x = features()
    codec = Codec.fit(x)
    if kind == "memmap":
        mapped = np.memmap(tmp_path / "x.bin", np.float32, "w+", shape=tuple(x.shape))
        mapped[:] = x.numpy()
        x = mapped
    before = x[like].copy() if kind == "memmap" else x[like].clone()

    def change() -> None:
        x[row] = before

    change_between_passes(change)
    with pytest.raises(ValueError, match=rf"\brow {row}\b.* changed"):
        build(x, codec, tmp_path, to_file)


@pytest.mark.parametrize("to_file", [False, True], ids=["memory", "file"])
def test_a_row_of_the_same_length_is_stored_as_it_is_now(change_between_passes, tmp_path, to_file):
    x = features()
    wanted = x.clone()
    wanted[NOISY] = x[NOISY + 50]
    change_between_passes(lambda: x.copy_(wanted))
    store = build(x, Codec.fit(x), tmp_path, to_file)
    assert_bitwise_equal(store.gather(torch.arange(NUM_ROWS)), wanted)


def test_a_store_builder_counts_all_rows(monkeypatch):
    """And not those of the part that was appended."""
    x = features()
    builder = StoreBuilder(NUM_ROWS, x)
    builder.append(x[:CHUNK])
    measure = dispatch.measure

    def measure_then_change(form, rows):
        lengths = measure(form, rows)
        rows[ROW - CHUNK] = rows[NOISY - CHUNK]
        return lengths

    monkeypatch.setattr(dispatch, "measure", measure_then_change)
    with pytest.raises(ValueError, match=f"^row {ROW}: its payload has another length"):
        builder.append(x[CHUNK:])
