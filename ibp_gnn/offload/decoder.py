"""What operations of an offloaded model read weights from: here for the CPU, in gpu_decoder.py for a GPU."""

from __future__ import annotations

import abc
import contextlib
import threading
from collections.abc import Iterator, Sequence

import torch

from ..codec import dispatch
from ..codec.values import check_ids_on_cpu, to_bytes
from .weight import CompressedWeight


class Decoder(abc.ABC):
    """Weights of one device by their numbers. Operations of several threads take turns."""

    device: torch.device

    @abc.abstractmethod
    def lend(self, number: int) -> contextlib.AbstractContextManager[torch.Tensor]:
        """The weight, in memory that the next one overwrites: for an operation that is launched in the context, on the
        current stream, and whose result shares no memory with it."""

    @abc.abstractmethod
    def read_rows(self, number: int, ids: torch.Tensor) -> torch.Tensor:
        """weight[ids], [*ids.shape, ...], of a weight that was compressed by row. Raises IndexError for a bad id; on a
        GPU later ones may raise it."""

    @abc.abstractmethod
    def copy(self, number: int, device: torch.device | None = None) -> torch.Tensor:
        """The weight in memory of its own. device: None: the decoder's."""

    @abc.abstractmethod
    def compressed(self, number: int) -> CompressedWeight:
        """The weight compressed, in CPU memory or on a GPU."""

    @abc.abstractmethod
    def close(self) -> None:
        """Frees what it holds when all operations that were launched have run."""

    @property
    @abc.abstractmethod
    def device_nbytes(self) -> int:
        """Bytes that it holds on the device."""


class CpuDecoder(Decoder):
    """Decodes each weight just before it is read, into one buffer: weights stay compressed in memory."""

    def __init__(self, weights: Sequence[CompressedWeight]) -> None:
        self.device = torch.device("cpu")
        self._weights = list(weights)
        self._turn = threading.RLock()
        with torch.inference_mode(False):
            self._raw = torch.empty(max((w.padded_nbytes for w in weights), default=0), dtype=torch.uint8, device="cpu")

    @contextlib.contextmanager
    def lend(self, number: int) -> Iterator[torch.Tensor]:
        with self._turn:
            yield self._weights[number].decode_on_cpu(self._raw)

    def read_rows(self, number: int, ids: torch.Tensor) -> torch.Tensor:
        weight = self._weights[number]
        flat = ids.reshape(-1).to(torch.int64)
        check_ids_on_cpu(flat, weight.shape[0])
        out = torch.empty(*ids.shape, *weight.shape[1:], dtype=weight.dtype, device="cpu")
        blocks = block_ids(weight, flat)
        rows = to_bytes(out).view(len(blocks), weight.layout.row_bytes)
        dispatch.decode_on_cpu(weight.codec.form, weight.rows, blocks, rows)
        return out

    def copy(self, number: int, device: torch.device | None = None) -> torch.Tensor:
        return self._weights[number].decompress(device)

    def compressed(self, number: int) -> CompressedWeight:
        return self._weights[number]

    def close(self) -> None:
        pass

    @property
    def device_nbytes(self) -> int:
        return self._raw.numel() + sum(weight.nbytes for weight in self._weights)


def block_ids(weight: CompressedWeight, ids: torch.Tensor) -> torch.Tensor:
    """ids: [n] rows of the weight, which was compressed by row. Returns the numbers of their blocks, in order."""
    count = weight.blocks_per_row
    assert count is not None  # of weights that are compressed by row
    if count == 1:
        return ids
    return (ids[:, None] * count + torch.arange(count, device=ids.device)).view(-1)
