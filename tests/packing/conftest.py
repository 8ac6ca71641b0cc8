"""Fixtures of the tests of packing."""

from __future__ import annotations

import pytest
import torch

if not hasattr(torch, "uint32"):
    collect_ignore_glob = ["test_pack*.py", "test_linear.py"]  # words are torch.uint32; test_narrow.py takes any torch


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """A device of each kind."""
    return torch.device("cuda", 0) if request.param == "cuda" else torch.device("cpu")
