"""What tests of lossless code need: equality of bits, rows that are hard to compress, and the codecs in plain NumPy."""

from .bits import KINDS, MANTISSA_BITS, assert_bitwise_equal, special_rows

__all__ = ["KINDS", "MANTISSA_BITS", "assert_bitwise_equal", "special_rows"]
