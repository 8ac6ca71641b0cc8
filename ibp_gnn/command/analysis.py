"""Is it worth compressing these rows, with which codec, and how far is that from the entropy of their values?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from ..codec import dispatch
from ..codec.codec import Codec, CodecReport, sample_rows
from ..codec.fit_dict import EXPONENT_BITS
from ..codec.registry import FORMS
from ..codec.values import as_tensor, check_row_shape, num_values, to_bytes
from ..store.file.header import describe
from ..store.precision import PRECISIONS, Precision

# In the order in which "auto" tries them: of two that are equally small it takes the first.
CANDIDATES = tuple(FORMS)

# Of the transferred bytes. From the first on, compressing is worth it: misses take less time by about this share. Below
# the second, what is gained is about what decoding costs.
WORTH_SAVINGS = 0.10
MARGINAL_SAVINGS = 0.04

_VALUES_PER_STEP = 1 << 22  # bounds temporaries
# The smallest first; what float8 holds exactly is hardly ever what features are.
_NARROWER_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_NARROWER_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
_SIGNED = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(frozen=True, eq=False)
class EntropyBound:
    """See `entropy_bound`. exponent_bits, sign_bits, mantissa_bits: float64 [num_values], bits of each column.

    bias_bits: about how much too small bits_per_value is because the sample is finite (Miller and Madow's estimate:
    (outcomes - 1) / (2 num_rows ln 2) for every distribution). Once it is no longer small, say above 0.1, a larger
    sample is needed.
    """

    num_rows: int
    bits_per_value: float
    bias_bits: float
    exponent_bits: np.ndarray
    sign_bits: np.ndarray
    mantissa_bits: np.ndarray

    def to_dict(self, columns: bool = True) -> dict[str, Any]:
        """For JSON. columns: with a list per column rather than means only."""
        parts = {name: getattr(self, name) for name in ("exponent_bits", "sign_bits", "mantissa_bits")}
        result: dict[str, Any] = {
            "num_rows": self.num_rows,
            "bits_per_value": self.bits_per_value,
            "bias_bits": self.bias_bits,
            **{name: float(values.mean()) for name, values in parts.items()},
        }
        if columns:
            result["columns"] = {name: [round(float(value), 4) for value in part] for name, part in parts.items()}
        return result


@dataclasses.dataclass(frozen=True)
class PrecisionReport:
    """What a LOSSY store would make of the rows that were looked at. Errors are those of finite values.

    bits_per_value, compact_savings: as in CodecReport, against the rows as they are. max_error, mean_error: of a value.
    relative_error: the root of the mean square of errors, by that of values. not_finite: values that are finite, and
    would not be any more.
    """

    precision: str
    codec: str
    bits_per_value: float
    compact_savings: float
    max_error: float
    mean_error: float
    relative_error: float
    not_finite: int


@dataclasses.dataclass(frozen=True, eq=False)
class Analysis:
    """See `analyze`.

    total_rows: rows that were given; num_rows: those that were looked at. codecs, reports: one for each of CANDIDATES.
    bit_agreement: float64 [value_bits], least significant bit first: the share of rows that have the more frequent
    value of this bit, averaged over columns; 1 = invariant, 0.5 = noise.
    file_bytes: about what a store file of all rows takes, header and checksums included.
    narrower_dtype: the smallest dtype that holds all values that were looked at, bit for bit; None if there is none.
    precisions: of floats, what each LOSSY precision below theirs would make of them; "auto" takes none.
    recommendation: the codec that "auto" takes. enlarges: a store of it is larger than the raw rows. worth_it: whether
    it reaches WORTH_SAVINGS. verdict: one sentence.
    """

    dtype: torch.dtype
    row_shape: tuple[int, ...]
    total_rows: int
    num_rows: int
    codecs: tuple[Codec, ...]
    reports: tuple[CodecReport, ...]
    bound: EntropyBound
    bit_agreement: np.ndarray
    file_bytes: int
    narrower_dtype: torch.dtype | None
    precisions: tuple[PrecisionReport, ...]
    recommendation: str
    worth_it: bool
    verdict: str

    @property
    def best(self) -> CodecReport:
        return next(report for report in self.reports if report.codec == self.recommendation)

    @property
    def codec(self) -> Codec:
        """The recommended one, fitted."""
        return next(codec for codec in self.codecs if codec.kind == self.recommendation)

    @property
    def enlarges(self) -> bool:
        return min(self.best.savings, self.best.compact_savings) <= 0

    @property
    def file_savings(self) -> float:
        return 1 - self.file_bytes / (self.total_rows * num_values(self.row_shape) * self.dtype.itemsize)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "dtype": str(self.dtype).removeprefix("torch."),
            "row_shape": list(self.row_shape),
            "total_rows": self.total_rows,
            "num_rows": self.num_rows,
            "codecs": [
                {"parameters": repr(codec), **dataclasses.asdict(report)}
                for codec, report in zip(self.codecs, self.reports, strict=True)
            ],
            "entropy_bound": self.bound.to_dict(),
            "bit_agreement": [round(float(share), 6) for share in self.bit_agreement],
            "file_bytes": self.file_bytes,
            "file_savings": self.file_savings,
            "narrower_dtype": None if self.narrower_dtype is None else str(self.narrower_dtype).removeprefix("torch."),
            "lossy_precisions": [dataclasses.asdict(report) for report in self.precisions],
            "recommendation": self.recommendation,
            "enlarges": self.enlarges,
            "worth_it": self.worth_it,
            "verdict": self.verdict,
        }


def analyze(rows: Any, *, max_rows: int | None = None, seed: int = 0) -> Analysis:
    """rows: [n, *row_shape] tensor (CPU or CUDA), NumPy array or memmap, n >= 1.

    max_rows: how many of them to look at, drawn with `seed`. None means as many as `Codec.fit` does, so that the
    recommendation is what `Codec.fit(rows, codec="auto")` takes. All figures are of these rows; a codec's own metadata
    weighs more in a sample than in all rows. Raises TypeError and ValueError on bad arguments.
    """
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows: want at least 1, got {max_rows!r}")
    sample = sample_rows(rows, max_rows, seed)
    codecs = tuple(Codec.fit(sample, codec=name, max_rows=len(sample)) for name in CANDIDATES)
    reports = tuple(codec.report(sample) for codec in codecs)
    # As Codec.fit does.
    best = min(reports, key=lambda report: (report.compact_bytes - report.metadata_bytes, report.payload_bytes))
    return Analysis(
        dtype=sample.dtype,
        row_shape=tuple(sample.shape[1:]),
        total_rows=len(rows),
        num_rows=len(sample),
        codecs=codecs,
        reports=reports,
        bound=entropy_bound(sample),
        bit_agreement=bit_agreement(sample),
        file_bytes=_file_bytes(codecs[reports.index(best)], best, len(rows)),
        narrower_dtype=narrower_dtype(sample),
        precisions=tuple(precision_reports(sample)),
        recommendation=best.codec,
        worth_it=best.savings >= WORTH_SAVINGS,
        verdict=_verdict(best),
    )


def entropy_bound(rows: Any) -> EntropyBound:
    """rows: [n, *row_shape] tensor (CPU or CUDA) or NumPy array, n >= 1; all of them are counted.

    How many bits per value a lossless codec needs at least if it treats columns, and the parts of a value, as
    independent: the sum of the parts' empirical entropies, averaged over columns. It is a bound for the codecs here on
    ordinary data, no theorem: a codec that finds rows or columns alike can do with less.

    float16 to float64, bfloat16: the entropy of the exponent, of the sign, and of each bit of the mantissa. Values of
    which every bit is 0 are an outcome of their own, with no mantissa (their share's entropy is counted with the
    exponent), since sparse rows would seem incompressible otherwise.
    int16 to int64: the entropy of sign and length (the number of bits up to the leading one, after all bits of negative
    values are flipped), counted as exponent, and that of each bit below the leading one, counted as mantissa.
    bool, uint8, int8, float8: the entropy of the whole value, counted as exponent.
    """
    tensor = as_tensor(rows)
    check_row_shape(tuple(tensor.shape))
    if len(tensor) == 0:
        raise ValueError("rows: want at least 1 row to count, got 0")
    value_bits = 8 * tensor.dtype.itemsize
    if value_bits == 8:
        return _whole_value_bound(tensor)
    return _float_bound(tensor) if tensor.dtype in EXPONENT_BITS else _integer_bound(tensor)


def bit_agreement(rows: torch.Tensor) -> np.ndarray:
    """rows: [n, *row_shape], n >= 1. Returns float64 [value_bits] as in `Analysis`."""
    ones = _ones(to_bytes(rows), num_values(tuple(rows.shape[1:])))
    return np.maximum(ones, len(rows) - ones).mean(axis=0) / len(rows)


def narrower_dtype(rows: torch.Tensor) -> torch.dtype | None:
    """rows: [n, *row_shape]. Returns the smallest dtype to which these values go and come back bit for bit; None if no
    smaller one than theirs does that."""
    for dtype in _NARROWER_FLOATS if rows.dtype.is_floating_point else _NARROWER_INTEGERS:
        if dtype.itemsize < rows.dtype.itemsize and torch.equal(
            to_bytes(rows.to(dtype).to(rows.dtype)), to_bytes(rows)
        ):
            return dtype
    return None


def precision_reports(rows: torch.Tensor) -> list[PrecisionReport]:
    """rows: [n, *row_shape], n >= 1. A report for each precision that changes values of this dtype; none where they are
    no floats of 16 bits or more."""
    reports = []
    for name in PRECISIONS:
        try:
            precision = Precision.fit(rows, name, None, len(rows), progress=False)
        except (TypeError, ValueError):  # no such floats, or too few bits for it
            continue
        if name == {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(rows.dtype):
            continue
        rounded = precision.round(rows)
        codec = Codec.fit(rounded, max_rows=len(rounded))
        report = codec.report(rounded)
        finite = rows.isfinite()
        lost = finite & ~rounded.isfinite()
        exact = torch.where(finite, rows, 0).double()
        error = torch.where(finite & ~lost, rounded.double() - exact, 0).abs()
        norm = float(exact.norm())
        reports.append(
            PrecisionReport(
                precision=name,
                codec=codec.kind,
                bits_per_value=report.bits_per_value,
                compact_savings=report.compact_savings,
                max_error=float(error.max()),
                mean_error=float(error.mean()),
                relative_error=float(error.norm()) / norm if norm else 0.0,
                not_finite=int(lost.sum()),
            )
        )
    return reports


def _file_bytes(codec: Codec, report: CodecReport, num_rows: int) -> int:
    header = describe(
        codec,
        num_rows=num_rows,
        num_overflow=round(report.overflow_share * num_rows),
        slot_bytes=report.compact_slot_bytes,
        lead_bytes=report.compact_slot_bytes,
        ordered=False,
    )
    return header.file_bytes


def _whole_value_bound(rows: torch.Tensor) -> EntropyBound:
    counts = _histograms(to_bytes(rows), lambda part: part.to(torch.int64), 8)
    nothing = np.zeros(len(counts))
    return _bound(len(rows), _entropy(counts), nothing, nothing, _outcomes(counts))


def _float_bound(rows: torch.Tensor) -> EntropyBound:
    value_bits, exponent_width = 8 * rows.dtype.itemsize, EXPONENT_BITS[rows.dtype]
    mantissa_width = value_bits - 1 - exponent_width
    data, width = to_bytes(rows), num_values(tuple(rows.shape[1:]))

    def symbols(part: torch.Tensor) -> torch.Tensor:
        values = part.view(_SIGNED[value_bits // 8]).to(torch.int64)
        exponents = (values >> mantissa_width) & ((1 << exponent_width) - 1)
        # All-0 values get a symbol above the exponents.
        return torch.where(values == 0, 1 << exponent_width, exponents)

    counts = _histograms(data, symbols, exponent_width + 1)  # [width, 2^(exponent_width + 1)]
    others = len(rows) - counts[:, 1 << exponent_width]  # [width], rows with another value than 0
    ones = _ones(data, width)
    share = others / len(rows)
    # The entropy of (is 0, exponent) is that of the indicator and, for the share of other values, of the exponent.
    bits = _bit_entropy(ones, others[:, None]) * share[:, None]
    coded = np.r_[:mantissa_width, value_bits - 1]
    noisy = ((ones > 0) & (ones < others[:, None]))[:, coded].sum(axis=1)
    sign, mantissa = bits[:, value_bits - 1], bits[:, :mantissa_width].sum(axis=1)
    return _bound(len(rows), _entropy(counts), sign, mantissa, _outcomes(counts) + noisy)


def _integer_bound(rows: torch.Tensor) -> EntropyBound:
    value_bytes, width = rows.dtype.itemsize, num_values(tuple(rows.shape[1:]))
    data = to_bytes(rows)

    def folded(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = part.view(_SIGNED[value_bytes]).to(torch.int64)
        return values ^ (values >> 63), values < 0

    def symbols(part: torch.Tensor) -> torch.Tensor:
        magnitudes, negative = folded(part)
        return 2 * _bit_length(magnitudes) + negative

    counts = _histograms(data, symbols, 7)  # [width, 2 * 64]
    ones = np.zeros((width, 64), np.int64)
    for part in _parts(data, width):
        ones += _ones(to_bytes(folded(part)[0]), width)
    lengths = counts.reshape(width, 64, 2).sum(axis=2)  # [width, 64], values by the length of their magnitude
    leading = lengths[:, 1:]  # bit j is the leading one of the values of length j + 1
    below = lengths[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:] - leading  # values that have bit j below their leading one
    free_ones = ones[:, :63] - leading
    mantissa = (_bit_entropy(free_ones, below) * below).sum(axis=1) / len(rows)
    noisy = ((free_ones > 0) & (free_ones < below)).sum(axis=1)
    return _bound(len(rows), _entropy(counts), np.zeros(width), mantissa, _outcomes(counts) + noisy)


def _bound(
    num_rows: int, exponent: np.ndarray, sign: np.ndarray, mantissa: np.ndarray, surplus: np.ndarray
) -> EntropyBound:
    """surplus: [num_values], the sum of (outcomes - 1) over the distributions of a column."""
    bits = float((exponent + sign + mantissa).mean())
    bias = float(surplus.mean()) / (2 * num_rows * math.log(2))
    return EntropyBound(num_rows, bits, bias, exponent, sign, mantissa)


def _parts(data: torch.Tensor, width: int, values_per_step: int = _VALUES_PER_STEP) -> Iterator[torch.Tensor]:
    yield from data.split(max(1, values_per_step // width))


def _histograms(data: torch.Tensor, symbols: Callable[[torch.Tensor], torch.Tensor], symbol_bits: int) -> np.ndarray:
    """data: uint8 [n, row_bytes]. symbols: takes some of these rows, returns int64 [m, width] below 2^symbol_bits.
    Returns int64 [width, 2^symbol_bits]: how often each symbol is in each column."""
    width = symbols(data[:1]).shape[1]
    size = width << symbol_bits
    columns = torch.arange(width, device=data.device) << symbol_bits
    counts = torch.zeros(size, dtype=torch.int64, device=data.device)
    for part in _parts(data, width, max(_VALUES_PER_STEP, size)):
        counts += torch.bincount((symbols(part) + columns).flatten(), minlength=size)
    return counts.cpu().numpy().reshape(width, -1)


def _ones(data: torch.Tensor, width: int) -> np.ndarray:
    """data: uint8 [n, row_bytes]. Returns int64 [width, value_bits]: how many rows have the bit set."""
    return dispatch.count_ones(data).cpu().numpy().reshape(width, -1)


def _bit_length(values: torch.Tensor) -> torch.Tensor:
    """values: int64, none negative. Returns how many bits each has up to its leading one; 0 has none."""
    length, rest = torch.zeros_like(values), values
    for step in (32, 16, 8, 4, 2, 1):
        large = (rest >> step) > 0
        length += large * step
        rest = torch.where(large, rest >> step, rest)
    return length + rest


def _entropy(counts: np.ndarray) -> np.ndarray:
    """counts: [columns, outcomes], some in every column. Returns bits, [columns]."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    return -(shares * np.log2(shares, out=np.zeros_like(shares), where=shares > 0)).sum(axis=1) + 0.0


def _bit_entropy(ones: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Of bits that are set in `ones` of `totals` cases; 0 where there is no case."""
    share = np.divide(ones, totals, out=np.zeros(ones.shape), where=totals > 0)
    bits = np.zeros(ones.shape)
    for part in (share, 1 - share):
        bits -= part * np.log2(part, out=np.zeros_like(part), where=part > 0)
    return bits


def _outcomes(counts: np.ndarray) -> np.ndarray:
    """Outcomes that occur in each column, less 1."""
    return (counts > 0).sum(axis=1) - 1


def _verdict(best: CodecReport) -> str:
    figures = f"codec '{best.codec}' saves {best.savings:.1%} of the bytes of a gather"
    memory = f"{best.compact_savings:.1%} of memory in a compact store"
    if best.compact_savings <= 0:
        memory = "no memory, since payloads differ too much in length for compact slots"
    if best.savings >= WORTH_SAVINGS:
        return f"Compressing this data is worth it: {figures} and {memory}."
    if best.savings >= MARGINAL_SAVINGS:
        return f"Compressing this data is hardly worth it: {figures} and {memory}; measure before you use it."
    if best.savings <= 0:
        return "Compressing this data is not worth it: no codec makes it smaller."
    return f"Compressing this data is not worth it: {figures}, less than decoding costs; keep the rows raw."
