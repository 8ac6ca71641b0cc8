"""Generated data sets: the statistics that they promise, the same bits from the same seed, and their label."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from ibp_gnn import Codec
from ibp_gnn.datasets import DatasetError, NodeDataset, load_dataset, load_synthetic
from ibp_gnn.datasets.synthetic import SHAPES, features_like, power_law_edges

WIDTHS = {torch.float32: (torch.int32, 23), torch.float16: (torch.int16, 10), torch.bfloat16: (torch.int16, 7)}


def real(num_rows: int = 4000, width: int = 50) -> torch.Tensor:
    """Columns of other scales, signs and shares of zeros."""
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(num_rows, width, generator=generator) * torch.logspace(-2, 1, width) + 0.1
    return columns.relu_() if width < 20 else columns


def exponents(rows: torch.Tensor) -> torch.Tensor:
    words, mantissa_bits = WIDTHS[rows.dtype]
    return rows.view(words) >> mantissa_bits  # with the sign


def sha256(dataset: NodeDataset) -> str:
    tensors = (dataset.src, dataset.dst, dataset.labels, dataset.train_ids, dataset.val_ids, dataset.test_ids)
    digest = hashlib.sha256(dataset.features.view(torch.uint8).numpy().tobytes())
    for tensor in tensors:
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
def test_exponents_follow_the_real_matrix(dtype: torch.dtype) -> None:
    matrix = real().to(dtype)
    made = features_like(matrix, 40_000, 100, seed=1)
    assert made.shape == (40_000, 100) and made.dtype == dtype
    for column in (0, 30, 49, 50, 99):
        wanted = torch.bincount(exponents(matrix)[:, column % 50].int() & 0xFFFF) / len(matrix)
        found = torch.bincount(exponents(made)[:, column].int() & 0xFFFF, minlength=len(wanted)) / len(made)
        assert len(found) == len(wanted), "an exponent that is not in the real column"
        assert (found - wanted).abs().max() < 0.02
    assert len({row.tobytes() for row in made.view(WIDTHS[dtype][0]).numpy()}) == len(made), "two rows are equal"


@pytest.mark.parametrize("dtype", WIDTHS, ids=str)
def test_savings_follow_the_real_matrix(dtype: torch.dtype) -> None:
    matrix = real(8000).to(dtype)
    made = features_like(matrix, 8000, 50, seed=1)
    saved = [Codec.fit(rows, codec="dict").report(rows).bits_per_value for rows in (matrix, made)]
    assert saved[0] == pytest.approx(saved[1], abs=0.05)


def test_values_that_stay() -> None:
    matrix = torch.tensor([[0.0, -0.0, float("inf"), float("nan"), 1.5000001, -2.0, 1e-40, -1.9999999]])
    made = features_like(matrix, 100, 8, seed=0)
    assert torch.equal(made[:, :4].view(torch.int32), matrix[:, :4].view(torch.int32).expand(100, 4))
    assert (made[:, 4] >= 1.5).all() and (made[:, 4] < 1.625).all() and len(made[:, 4].unique()) > 90
    assert (made[:, 5] <= -2.0).all() and (made[:, 6] > 0).all()


def test_bits_that_no_real_value_has_stay_zero() -> None:
    whole = torch.randint(-9, 9, (50, 4), generator=torch.Generator().manual_seed(0)).float()
    made = features_like(whole.bfloat16().float() * 1.0, 100, 4, seed=0)
    used = np.bitwise_or.reduce(whole.view(torch.int32).numpy(), axis=None)
    assert not (made.view(torch.int32).numpy() & ~used & 0x007FFFFF).any()


def test_rows_do_not_depend_on_how_many_there_are() -> None:
    matrix = real()
    few, many = (features_like(matrix, count, 100, seed=3) for count in (1 << 16, (1 << 16) + 500))
    assert torch.equal(few, many[: 1 << 16])
    out = torch.empty(1 << 16, 100)
    assert features_like(matrix, 1 << 16, 100, seed=3, out=out) is out and torch.equal(out, few)


def test_degrees_follow_a_power_law() -> None:
    src, dst = power_law_edges(100_000, 1_000_000, exponent=0.5, undirected=True, seed=0)
    assert src.dtype == torch.int64 and src.shape == dst.shape == (2_000_000,)
    assert not (src == dst).any() and int(src.min()) >= 0 and int(src.max()) < 100_000
    assert torch.equal(src[:1_000_000], dst[1_000_000:]) and torch.equal(dst[:1_000_000], src[1_000_000:])
    degrees = torch.bincount(src, minlength=100_000).sort(descending=True).values.double()
    # Expected: mean / 2 * (rank / num_nodes) ** -0.5. The slope over three decades of ranks:
    ranks = torch.logspace(1, 4, 30).long()
    slope = np.polyfit(np.log(ranks.numpy()), np.log(degrees[ranks].numpy()), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.03)
    assert degrees[1000] == pytest.approx(20 / 2 * (1000 / 100_000) ** -0.5, rel=0.1)
    hottest = torch.bincount(src).argsort(descending=True)[:1000].double()
    assert 40_000 < hottest.mean() < 60_000, "ids tell the degree"


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str) -> None:
    scale = 0.002 if shape == "products" else 0.0001
    dataset = load_synthetic(shape, real(), scale=scale, dtype="float16", seed=5)
    sizes = SHAPES[shape]
    assert dataset.synthetic and dataset.name == f"synthetic-{shape}-{scale:g}x"
    assert dataset.num_nodes == pytest.approx(sizes.num_nodes * scale, rel=0.001)
    assert dataset.num_edges == pytest.approx(sizes.num_edges * scale * (1 + sizes.undirected), rel=0.001)
    assert dataset.features.shape[1] == sizes.width and dataset.features.dtype == torch.float16
    assert dataset.num_classes == sizes.num_classes
    ids = torch.cat([dataset.train_ids, dataset.val_ids, dataset.test_ids])
    assert len(torch.unique(ids)) == len(ids)
    assert sha256(dataset) == sha256(load_synthetic(shape, real(), scale=scale, dtype="float16", seed=5))
    assert sha256(dataset) != sha256(load_synthetic(shape, real(), scale=scale, dtype="float16", seed=6))


def test_by_name(tmp_path) -> None:
    np.save(tmp_path / "real.npy", real().numpy())
    dataset = load_dataset("synthetic-products", str(tmp_path / "real.npy"), scale=0.001, dtype="bfloat16", seed=1)
    assert sha256(dataset) == sha256(load_synthetic("products", real(), scale=0.001, dtype="bfloat16", seed=1))
    glove = load_dataset("synthetic-papers", scale=0.00001)
    assert glove.name == "synthetic-papers-1e-05x" and glove.features.dtype == torch.float32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(scale=0.0), r"synthetic scale: want a number in \(0, 1\], got 0.0"),
        (dict(dtype="int8"), r"synthetic dtype: want one of \['bfloat16', 'float16', 'float32'\], got 'int8'"),
        (dict(features="none.npy"), r"want one of \['bow', 'glove'\] or a file with a real matrix: none.npy"),
    ],
)
def test_bad_settings(settings: dict, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        load_dataset("synthetic-products", **{"features": "glove", **settings})


def test_bad_matrices() -> None:
    with pytest.raises(DatasetError, match="synthetic shape: want one of .*, got 'arxiv'"):
        load_synthetic("arxiv", real())
    with pytest.raises(DatasetError, match="real matrix: want floating point values, got torch.int64"):
        load_synthetic("products", torch.ones(3, 3, dtype=torch.int64))
    with pytest.raises(DatasetError, match=r"real matrix: want \[rows, columns\] of .*got \[0, 3\]"):
        features_like(torch.empty(0, 3), 5, 3, seed=0)
    with pytest.raises(DatasetError, match=r"out: want \[5, 3\] torch.float32, got \[4, 3\]"):
        features_like(torch.ones(2, 3), 5, 3, seed=0, out=torch.empty(4, 3))
