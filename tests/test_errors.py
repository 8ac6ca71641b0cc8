"""FormatError is one class, whoever raises it."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

import ibp_gnn
from ibp_gnn import _native, errors

# Decodes a row whose payload is longer than its slot. The CUDA extension is loaded before, after, or not.
DAMAGED_ROW = """
import sys
import numpy as np
import ibp_gnn
if sys.argv[1] == "cuda first": import ibp_gnn._cuda
from ibp_gnn import _native
modules = [_native.cpu]
if sys.argv[1] != "cpu alone": modules.append(_native.cuda())
zeros = np.zeros(24, np.uint8)
codec = _native.cpu.codec("ibp", mask=zeros, bitval=zeros, chunk_bits=16)
slots, bitmask = np.zeros(16 + 64, np.uint8), np.array([1, 0, 0, 0], np.uint8)
out = np.zeros((1, 24), np.uint8)
try:
    _native.cpu.decode(codec, slots, 16, bitmask, slots[16:], 1, np.array([0]), out, 1)
except ibp_gnn.FormatError as error:
    print(error)
assert all(module.FormatError is ibp_gnn.FormatError for module in modules)
"""


def test_format_error_is_a_value_error():
    assert issubclass(ibp_gnn.FormatError, ValueError)
    assert ibp_gnn.FormatError is errors.FormatError is _native.FormatError is _native.cpu.FormatError


def test_format_error_can_be_pickled():
    """As it is on the way from a DataLoader's worker."""
    zeros = np.zeros(24, np.uint8)
    codec = _native.cpu.codec("ibp", mask=zeros, bitval=zeros, chunk_bits=16)
    buffers = np.zeros(16 + 64, np.uint8), 16, np.array([1, 0, 0, 0], np.uint8), np.zeros(64, np.uint8)
    with pytest.raises(ibp_gnn.FormatError) as raised:
        _native.cpu.decode(codec, *buffers, 1, np.array([0]), np.zeros((1, 24), np.uint8), 1)
    copy = pickle.loads(pickle.dumps(raised.value))
    assert type(copy) is ibp_gnn.FormatError
    assert str(copy) == str(raised.value) == "row 0: want a payload of at most 16 bytes, got a longer one"


@pytest.mark.parametrize("order", ["cpu alone", "cuda first", "cpu first"])
def test_both_extensions_raise_the_same_class(order):
    """In whatever order they are loaded."""
    if order != "cpu alone" and not _native.cuda_is_built():
        pytest.skip("the CUDA extension is not built")
    command = [sys.executable, "-c", DAMAGED_ROW, order]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.stdout == "row 0: want a payload of at most 16 bytes, got a longer one\n", result.stderr
    assert result.returncode == 0, result.stderr
