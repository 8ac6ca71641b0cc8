"""What a fitted codec consists of, without dtype and row shape: the contract of a form, a way to write a payload.

All that differs between codecs is a method or a trait here. registry.py lists the forms there are.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import threading
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from .. import _native

Minimize = Literal["slots", "payloads"]
_making = threading.Lock()  # of tables on GPUs


@dataclasses.dataclass(frozen=True)
class DeviceForm:
    """A form as one GPU's kernels read it. Keeps its tables alive."""

    native: Any
    tables: torch.Tensor

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Called after a launch that reads the tables: their memory outlives it."""
        self.tables.record_stream(stream)


class Sample(NamedTuple):
    """What a form is fitted to."""

    rows: torch.Tensor  # [n, *row_shape] of a supported dtype, n >= 1, on CPU or CUDA
    row_bytes: torch.Tensor  # the same as uint8 [n, row_bytes]
    total_rows: int  # of which these are a sample
    minimize: Minimize  # see Codec.fit


class Form(abc.ABC):
    """A dataclass: its arrays are tables, its other fields are parameters, numbers and bools; store files hold both.
    Immutable; picklable. `native` and `on_device` are made on first use.
    The extensions have a codec of the same name (csrc/core/codec_list.h).

    kind: the codec's name.
    fit_options: arguments of Codec.fit that `fit` takes.
    shown: attributes that a Codec of this form has, too.
    most_table_bytes_per_row_byte: bounds the tables, before a file's header is believed.
    """

    kind: ClassVar[str]
    fit_options: ClassVar[tuple[str, ...]] = ()
    shown: ClassVar[tuple[str, ...]] = ()
    most_table_bytes_per_row_byte: ClassVar[int]
    row_bytes: int

    @classmethod
    @abc.abstractmethod
    def fit(cls, sample: Sample, options: Mapping[str, Any]) -> Form:
        """options: those of fit_options that were given, checked. Counts and measures where the rows are; every backend
        chooses the same form."""

    @classmethod  # noqa: B027 - a codec may have no options
    def check_fit_options(cls, options: Mapping[str, Any]) -> None:
        """options: as for `fit`. Raises ValueError."""

    def parameters(self) -> dict[str, Any]:
        """The fields that are no tables, by name."""
        return {name: value for name, value in self._fields() if not isinstance(value, np.ndarray)}

    def tables(self) -> dict[str, np.ndarray]:
        """The fields that are arrays, by name."""
        return {name: value for name, value in self._fields() if isinstance(value, np.ndarray)}

    def _fields(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]  # type: ignore[arg-type]

    def escape_share(self, rows: torch.Tensor) -> float | None:
        """rows: [n, *row_shape], n >= 1, of the form's dtype and shape, on CPU or CUDA. Returns the share of values
        that have no code and are written out; None for a codec without escapes."""
        return None

    @property
    def fetches_once(self) -> bool:
        """Whether GPUs fetch a slot's lead_bytes and no more: payloads that are longer are damaged to them."""
        return False

    @property
    @abc.abstractmethod
    def miss_blocks(self) -> int:
        """Blocks of a gather's kernel while it fetches misses. Few saturate the link, keep the addresses in flight
        close together, and leave the GPU to training. Payloads whose offsets are not known beforehand take more
        decoding for each byte that crosses the link."""

    def native_parameters(self) -> dict[str, Any]:
        """What the extensions make their codec `kind` from, by name: numbers, and uint8 or uint16 [n]."""
        return {name: part.reshape(-1) if isinstance(part, np.ndarray) else part for name, part in self._fields()}

    @functools.cached_property
    def native(self) -> Any:
        """The CPU extension's codec. Making it raises ValueError for parts that do not go together."""
        return _native.cpu.codec(self.kind, **self.native_parameters())

    @property
    @abc.abstractmethod
    def nbytes(self) -> int:
        """Bytes of metadata that decoding needs, whatever the number of rows."""

    @property
    def device_nbytes(self) -> int:
        """Bytes of the tables that gathers read on each GPU."""
        size: int = self.native.device_table_bytes(False)
        return size

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
                    codec = _native.cuda().codec(self.kind, tables, **self.native_parameters())
                    made[device, encoder] = DeviceForm(codec, tables)
            return made[device, encoder]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("native", "_on_devices")}


def short(value: Any) -> str:
    """For messages about values that may come from a file of anyone."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def own(array: np.ndarray, dtype: type) -> np.ndarray:
    """A read-only copy: the extension has one too, and they must stay the same."""
    own: np.ndarray = np.array(array, dtype=dtype, order="C")
    own.flags.writeable = False
    return own
