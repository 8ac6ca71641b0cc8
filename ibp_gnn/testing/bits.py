"""What tests of lossless code need: equality of bits, and rows that are hard to compress without loss."""

from __future__ import annotations

import numpy as np
import torch

MANTISSA_BITS = {
    torch.float64: 52,
    torch.float32: 23,
    torch.float16: 10,
    torch.bfloat16: 7,
    torch.float8_e4m3fn: 3,
    torch.float8_e5m2: 2,
}

KINDS = (
    "random_bits",
    "all_equal",
    "alternating",
    "nan_payloads",
    "negative_zero",
    "denormals",
    "outliers",
    "powers_of_two",
)


def assert_bitwise_equal(actual: torch.Tensor | np.ndarray, expected: torch.Tensor | np.ndarray) -> None:
    """Both on any device, of any dtype and strides; compared where they are, if that is one device. Raises
    AssertionError unless shape, dtype and every bit agree, so that NaNs with one payload are equal and -0.0 and 0.0 are
    not; the message shows the first difference."""
    (actual_type, actual_shape, actual_bytes) = _describe(actual)
    (expected_type, expected_shape, expected_bytes) = _describe(expected)
    if actual_shape != expected_shape or actual_type != expected_type:
        raise AssertionError(f"want {list(expected_shape)} {expected_type}, got {list(actual_shape)} {actual_type}")
    if actual_bytes.device != expected_bytes.device:
        actual_bytes, expected_bytes = actual_bytes.cpu(), expected_bytes.cpu()
    if torch.equal(actual_bytes, expected_bytes):
        return
    differs = (actual_bytes != expected_bytes).any(dim=1)
    at = int(differs.int().argmax())
    index = [int(i) for i in np.unravel_index(at, expected_shape)] if expected_shape else []
    raise AssertionError(
        f"bits differ in {int(differs.sum())} of {len(differs)} values of {list(expected_shape)} {expected_type}, "
        f"first at {index}: want {_hex(expected_bytes[at])}, got {_hex(actual_bytes[at])}"
    )


def special_rows(dtype: torch.dtype, width: int, kind: str, n: int = 40, seed: int = 0) -> torch.Tensor:
    """Returns [n, width] of a supported dtype on the CPU. `kind` is one of KINDS; for integers, the upper bits below
    the sign play the exponent. bool values are only ever 0 and 1.

    random_bits: no structure, NaNs included. all_equal: one random row, n times. alternating: bits 0101... next to
    1010... nan_payloads: mostly NaNs, quiet and signalling, of both signs. negative_zero: -0.0, some 0.0. denormals:
    exponent 0, mantissa not 0. outliers: rows that differ in the low bits only, every eighth row random.
    powers_of_two: values just below and above 2.0, whose exponents share no bit.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind), width])
    bits = 8 * dtype.itemsize
    mantissa_bits = MANTISSA_BITS.get(dtype, bits // 2)
    sign = 1 if dtype is torch.bool else 1 << (bits - 1)
    mantissa = (1 << mantissa_bits) - 1
    exponent = (1 << (bits - 1)) - 1 - mantissa
    random = rng.integers(0, 1 << bits, (n, width), np.uint64, endpoint=False)
    if kind == "random_bits":
        words = random
    elif kind == "all_equal":
        words = np.repeat(random[:1], n, axis=0)
    elif kind == "alternating":
        odd = np.add.outer(np.arange(n), np.arange(width)) % 2 == 1
        words = np.where(odd, _word(int("aa" * 8, 16)), _word(int("55" * 8, 16)))
    elif kind == "nan_payloads":
        # float8_e4m3fn has two NaNs only, those with all ones below the sign.
        payload = mantissa if dtype is torch.float8_e4m3fn else 1
        nans = (random & _word(sign | mantissa)) | _word(exponent | payload)
        words = np.where(rng.random((n, width)) < 0.75, nans, random)
    elif kind == "negative_zero":
        words = np.where(rng.random((n, width)) < 0.9, _word(sign), _word(0))
    elif kind == "denormals":
        words = (random & _word(sign | mantissa)) | _word(1)
    elif kind == "outliers":
        words = random[:1] ^ (random & _word((1 << (bits // 4)) - 1))
        words[5::8] = random[5::8]
    else:
        two = (exponent // 2 & exponent) + (1 << mantissa_bits)
        words = _word(two) + random % _word(7) - _word(3)
    if dtype is torch.bool:
        words = words & _word(1)
    return torch.from_numpy(words.astype(f"u{bits // 8}").view(f"i{bits // 8}")).view(dtype)


def _word(value: int) -> np.uint64:
    return np.uint64(value)


def _describe(array: torch.Tensor | np.ndarray) -> tuple[str, tuple[int, ...], torch.Tensor]:
    """dtype name, shape, and the bytes as uint8 [values, bytes per value]."""
    if isinstance(array, np.ndarray):
        flat = np.array(array, order="C").reshape(-1).view(np.uint8)
        return array.dtype.name, array.shape, torch.from_numpy(flat).view(-1, array.dtype.itemsize)
    values = array.detach().resolve_neg().resolve_conj().contiguous()
    # A contiguous tensor of one value may have any stride, which a view as bytes does not take.
    flat_values = values.as_strided((values.numel(), 1), (1, 1)).view(torch.uint8)
    return str(array.dtype).removeprefix("torch."), tuple(array.shape), flat_values


def _hex(value: torch.Tensor) -> str:
    return f"0x{int.from_bytes(bytes(value.tolist()), 'little'):0{2 * len(value)}x}"
