"""`plan --measure`: on the CPU and on a GPU; bits are compared before anything is timed."""

from __future__ import annotations

import pytest
import torch

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.command.plan import measured_gathers
from ibp_gnn.command.plan.measured_gathers import measure_gathers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
def test_on_the_cpu(dtype, monkeypatch):
    monkeypatch.setattr(measured_gathers, "_IDS", 500)
    rows = (torch.randn(300, 4, 3) * 20).to(dtype)
    found = measure_gathers(rows, torch.device("cpu"))
    assert (found.device, found.rows, found.ids, found.plain_loop_gb_per_s) == ("cpu", 300, 500, None)
    assert found.raw_gb_per_s > 0 and found.compressed_gb_per_s > 0


def test_no_more_rows_than_needed(monkeypatch):
    monkeypatch.setattr(measured_gathers, "_MOST_BYTES", 4 * 8 * 100)
    assert measure_gathers(torch.randn(300, 8), torch.device("cpu")).rows == 100


def test_other_bits_are_not_timed(monkeypatch):
    gather = CompressedFeatureStore.gather

    def wrong(self, ids, *, device=None, out=None):
        gather(self, ids, device=device, out=out)
        out[0, 0] = -out[0, 0]

    monkeypatch.setattr(CompressedFeatureStore, "gather", wrong)
    with pytest.raises(RuntimeError, match="compressed rows: want the bits of the raw rows, got others"):
        measure_gathers(torch.randn(300, 8), torch.device("cpu"))


@pytest.mark.cuda
def test_on_a_gpu_bytes_tell_times():
    """`plan` divides bytes by the link's speed: so compressed misses take what raw ones do, less what is saved."""
    rows = torch.randn(1_000_000, 128)
    found = measure_gathers(rows, torch.device("cuda"))
    assert found.plain_loop_gb_per_s is not None and found.plain_loop_gb_per_s > 0
    saved = 448 / 512  # slots that a GPU fetches, beside rows
    assert found.raw_gb_per_s / found.compressed_gb_per_s == pytest.approx(saved, rel=0.2)
