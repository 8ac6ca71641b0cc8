"""What a fitted codec consists of, without dtype and row shape: one class per way to write a payload."""

from __future__ import annotations

import abc
import dataclasses
import functools
import numbers
import threading
from typing import Any, ClassVar

import numpy as np
import torch

from .. import _native

# Symbols in the escape dictionary; this number as an escape code says that the symbol is written out.
ESCAPE_SYMBOLS = 7
_MAX_CHUNK_BITS = 1 << 30
_MAX_CODE_BITS = 4  # csrc/core/dict_layout.h
_making = threading.Lock()  # of tables on GPUs


@dataclasses.dataclass(frozen=True)
class DeviceForm:
    """A form as one GPU's kernels read it. Keeps its tables alive."""

    native: Any
    tables: torch.Tensor

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Called after a launch that reads the tables: their memory outlives it."""
        self.tables.record_stream(stream)


class Form(abc.ABC):
    """Immutable; picklable. `native` and `on_device` are made on first use."""

    kind: ClassVar[str]
    row_bytes: int

    @functools.cached_property
    @abc.abstractmethod
    def native(self) -> Any:
        """The CPU extension's form."""

    @property
    @abc.abstractmethod
    def nbytes(self) -> int:
        """Bytes of metadata that decoding needs, whatever the number of rows."""

    @property
    def device_nbytes(self) -> int:
        """Bytes of the tables that gathers read on each GPU."""
        size: int = self.native.device_table_bytes(False)
        return size

    @abc.abstractmethod
    def _make_gpu_codec(self, tables: torch.Tensor) -> Any:
        """The CUDA extension's codec. tables: those of `native`, on the GPU."""

    def on_device(self, device: torch.device, *, encoder: bool = False) -> DeviceForm:
        """The form on a GPU; made once per device. encoder: with the tables that encoding and measuring read, too."""
        with _making:
            made: dict[tuple[torch.device, bool], DeviceForm] = self.__dict__.setdefault("_on_devices", {})
            if (device, encoder) not in made:
                with torch.cuda.device(device):
                    size = self.native.device_table_bytes(encoder)
                    tables = torch.empty(size, dtype=torch.uint8, device="cpu")
                    self.native.write_device_tables(encoder, tables)
                    tables = tables.to(device)
                    made[device, encoder] = DeviceForm(self._make_gpu_codec(tables), tables)
            return made[device, encoder]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("native", "_on_devices")}


@dataclasses.dataclass(frozen=True, eq=False)
class IbpForm(Form):
    """Codec "ibp" (csrc/core/format.h). mask_bytes, bitval_bytes: uint8 [row_bytes]."""

    mask_bytes: np.ndarray
    bitval_bytes: np.ndarray
    word_bits: int
    words_per_chunk: int
    threshold: float

    kind: ClassVar[str] = "ibp"

    def __post_init__(self) -> None:
        for name in ("mask_bytes", "bitval_bytes"):
            object.__setattr__(self, name, _own(getattr(self, name), np.uint8))
        check_chunk(self.word_bits, self.words_per_chunk)
        threshold = self.threshold
        if isinstance(threshold, bool) or not isinstance(threshold, numbers.Real) or not 0 <= threshold <= 1:
            raise ValueError(f"threshold: want a number from 0 to 1, got {short(threshold)}")
        object.__setattr__(self, "threshold", float(threshold))
        _ = self.native  # refuses a bitval that does not go with its mask

    @property
    def row_bytes(self) -> int:  # type: ignore[override]
        return len(self.mask_bytes)

    @property
    def chunk_bits(self) -> int:
        return self.word_bits * self.words_per_chunk

    @functools.cached_property
    def native(self) -> Any:
        return _native.cpu.IbpCodec(self.mask_bytes, self.bitval_bytes, self.chunk_bits)

    @property
    def nbytes(self) -> int:
        return self.mask_bytes.nbytes + self.bitval_bytes.nbytes

    def as_words(self, row: np.ndarray) -> np.ndarray:
        """uint8 [row_bytes] as unsigned words of word_bits bits, the last one padded with 0."""
        word_bytes = self.word_bits // 8
        padded = np.zeros(-(-self.row_bytes // word_bytes) * word_bytes, np.uint8)
        padded[: self.row_bytes] = row
        return padded.view(f"<u{word_bytes}")

    def _make_gpu_codec(self, tables: torch.Tensor) -> Any:
        return _native.cuda().ibp_codec(row_bytes=self.row_bytes, chunk_bits=self.chunk_bits, tables=tables)


@dataclasses.dataclass(frozen=True, eq=False)
class DictForm(Form):
    """Codec "dict" (csrc/core/dict_layout.h). dictionary: uint16 [columns, 2^code_bits], columns = num_values if
    per_column else 1; the symbols that have a code come first, most frequent first, the rest of a column is 0.
    escape_dictionary: uint16 [7], the symbols of the escape codes, most frequent first."""

    num_values: int
    value_bits: int
    symbol_bits: int
    trim_bits: int
    code_bits: int
    sign_low: bool
    zero_code: bool
    per_column: bool
    dictionary: np.ndarray
    escape_dictionary: np.ndarray

    kind: ClassVar[str] = "dict"

    def __post_init__(self) -> None:
        for name in ("num_values", "value_bits", "symbol_bits", "trim_bits", "code_bits"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{name}: want an int, got {short(value)}")
        # Before anything is as long as they say. The extension checks the rest.
        for name, most in (("num_values", _native.cpu.MAX_ROW_BYTES), ("code_bits", _MAX_CODE_BITS)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name}: want 1 to {most}, got {short(getattr(self, name))}")
        columns = self.num_values if self.per_column else 1
        for name, shape in (("dictionary", (columns, 1 << self.code_bits)), ("escape_dictionary", (ESCAPE_SYMBOLS,))):
            given = np.asarray(getattr(self, name))
            outside = given[(given < 0) | (given > 0xFFFF)]
            if outside.size:  # the conversion would wrap them around
                raise ValueError(f"{name}: want symbols of 0 to 65535, got {outside[0]}")
            if given.shape != shape:
                raise ValueError(f"{name}: want {list(shape)}, got {list(given.shape)}")
            object.__setattr__(self, name, _own(given, np.uint16))
        _ = self.native  # refuses parts that do not go together

    @property
    def row_bytes(self) -> int:  # type: ignore[override]
        return self.num_values * self.value_bits // 8

    @property
    def num_symbols(self) -> int:
        """Symbols with a code, per column; one code is the escape, one may be the zero code."""
        return (1 << self.code_bits) - 1 - self.zero_code

    @functools.cached_property
    def native(self) -> Any:
        parts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return _native.cpu.DictCodec(**{**parts, "dictionary": self.dictionary.reshape(-1)})

    @property
    def nbytes(self) -> int:
        return self.dictionary.nbytes + self.escape_dictionary.nbytes

    def _make_gpu_codec(self, tables: torch.Tensor) -> Any:
        parts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "dictionary"}
        return _native.cuda().dict_codec(**parts, tables=tables)


def check_chunk(word_bits: int, words_per_chunk: int) -> None:
    """Raises ValueError unless they describe a chunk."""
    if word_bits not in (8, 16, 32, 64):
        raise ValueError(f"word_bits: want one of [8, 16, 32, 64], got {short(word_bits)}")
    is_int = isinstance(words_per_chunk, int) and not isinstance(words_per_chunk, bool)
    if not is_int or words_per_chunk < 1 or words_per_chunk & (words_per_chunk - 1):
        raise ValueError(f"words_per_chunk: want a power of two, got {short(words_per_chunk)}")
    if word_bits * words_per_chunk > _MAX_CHUNK_BITS:
        raise ValueError(f"words_per_chunk: want at most {_MAX_CHUNK_BITS // word_bits}, got {short(words_per_chunk)}")


def short(value: Any) -> str:
    """For messages about values that may come from a file of anyone."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _own(array: np.ndarray, dtype: type) -> np.ndarray:
    """A read-only copy: the extension has one too, and they must stay the same."""
    own: np.ndarray = np.array(array, dtype=dtype, order="C")
    own.flags.writeable = False
    return own
