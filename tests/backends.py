"""The implementations of a codec that a test can ask for, and the oracle's answers to compare theirs with."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ibp_gnn import _native

# Codec "dict" has code for AVX-512. The fixture `backend` of conftest.py leaves it out: for codec "ibp" it is AVX2.
DICT_BACKENDS = ["scalar", "avx2", "avx512", pytest.param("cuda", marks=pytest.mark.cuda)]


def use_backend(name: str, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """name: "scalar", "avx2", "avx512" or "cuda". The device to put rows on; skips where there is no such thing."""
    if name == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        if not _native.cuda_is_built():
            pytest.skip("the CUDA extension is not built")
        return torch.device("cuda", torch.cuda.current_device())
    skip_without(name)
    monkeypatch.setattr(_native, "cpu_path", name)
    return torch.device("cpu")


@pytest.fixture(params=DICT_BACKENDS)
def dict_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """For a module to call `backend`, where it tests codec "dict"."""
    return use_backend(request.param, monkeypatch)


def skip_without(path: str) -> None:
    nothing, zero = np.zeros((0, 1), np.uint8), np.zeros(1, np.uint8)
    try:
        codec = _native.cpu.codec("ibp", mask=zero, bitval=zero, chunk_bits=8)
        _native.cpu.measure(codec, nothing, np.zeros(0, np.int32), 1, path)
    except ValueError as error:
        pytest.skip(str(error))


_agreed: dict[bytes, bytes] = {}


def ask_oracle_once(question: Any, answer: Any, compare: Callable[[], None]) -> None:
    """Calls `compare`, which has the oracle answer the question and fails where the answer is another. But for an
    answer that it found right before, of another backend: the oracle is slow."""
    asked, answered = _digest(question), _digest(answer)
    if _agreed.get(asked) != answered:
        compare()
        _agreed[asked] = answered


def _digest(parts: Any) -> bytes:
    """parts: anything that can be pickled; tensors on any device."""
    parts = [part.cpu().numpy() if isinstance(part, torch.Tensor) else part for part in parts]
    return hashlib.sha256(pickle.dumps(parts)).digest()
