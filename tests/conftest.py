"""Fixtures that several test files share."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import signal
from pathlib import Path
from types import ModuleType

import hypothesis
import numpy as np
import pytest
import torch
from backends import skip_without, use_backend
from matrices import EXHAUSTIVE
from page_locking import Registers

from ibp_gnn import Codec, _native
from ibp_gnn.codec.ibp import IbpForm
from ibp_gnn.codec.values import dtype_from_name

# What a shell starts in the background ignores Ctrl-C, which some tests send.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

GOLDEN_FOLDER = Path(__file__).parent / "golden"

# The same examples in every run; HYPOTHESIS_PROFILE=thorough looks for new ones.
hypothesis.settings.register_profile(
    "repeatable", deadline=None, max_examples=300 if EXHAUSTIVE else 100, derandomize=True, database=None
)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=5000, database=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@dataclasses.dataclass(frozen=True, eq=False)
class Golden:
    """One file of tests/golden. rows, payload_bytes and the buffers are what its codec has to make."""

    name: str
    format_version: int
    codec: Codec
    slot_bytes: int
    rows: np.ndarray
    payload_bytes: np.ndarray
    slots: np.ndarray
    bitmask: np.ndarray
    overflow: np.ndarray

    @classmethod
    def load(cls, path: Path) -> Golden:
        with np.load(path, allow_pickle=False) as npz:
            part = dict(npz)
        words = int(part["word_bits"]), int(part["words_per_chunk"])
        form = IbpForm(part["mask"], part["bitval"], *words, float(part["threshold"]))
        codec = Codec(dtype_from_name(str(part["dtype"])), (int(part["width"]),), form)
        arrays = {name: part[name] for name in ("rows", "payload_bytes", "slots", "bitmask", "overflow")}
        return cls(path.stem, int(part["format_version"]), codec, int(part["slot_bytes"]), **arrays)

    def tensor(self, device: torch.device) -> torch.Tensor:
        return torch.from_numpy(self.rows).view(self.codec.dtype).to(device)


@pytest.fixture(params=["scalar", "avx2", pytest.param("cuda", marks=pytest.mark.cuda)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device to put rows on, once for each implementation that can be asked for there."""
    return use_backend(request.param, monkeypatch)


@pytest.fixture(params=["scalar", "avx2"])
def cpu_path(request: pytest.FixtureRequest) -> str:
    """For raw calls of the CPU extension: the name of a code path that this CPU has."""
    skip_without(request.param)
    return request.param


@pytest.fixture
def registers(monkeypatch: pytest.MonkeyPatch) -> Registers:
    """What is page-locked, on any machine."""
    cuda = Registers()
    monkeypatch.setattr(_native, "cuda", lambda: cuda)
    return cuda


@pytest.fixture(params=sorted(GOLDEN_FOLDER.glob("*.npz")), ids=lambda path: path.stem)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden.load(request.param)


@pytest.fixture
def all_golden() -> list[Golden]:
    return [Golden.load(path) for path in sorted(GOLDEN_FOLDER.glob("*.npz"))]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() and _native.cuda_is_built():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device, or the CUDA extension is not built"))


@pytest.fixture(scope="session")
def make_golden() -> ModuleType:
    """scripts/make_golden.py."""
    path = Path(__file__).resolve().parents[1] / "scripts" / "make_golden.py"
    spec = importlib.util.spec_from_file_location("make_golden", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
