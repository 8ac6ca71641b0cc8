"""How small each codec makes the rows, every byte of metadata counted. Does not depend on the machine."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ibp_gnn import Codec
from ibp_gnn.command.analysis import entropy_bound
from ibp_gnn.config import setting

from .rows import Data


@dataclasses.dataclass(frozen=True)
class Sizes:
    """fit_rows: rows that `ibp` and `dict` are fitted on ("auto" looks at as many as a user's does). Sizes are of all
    rows."""

    data: Data = dataclasses.field(default_factory=Data)
    fit_rows: int = setting(65536, ge=1)


def measure_sizes(name: str, rows: torch.Tensor, config: Sizes) -> dict[str, Any]:
    """`ibp_best` is the smallest over all thresholds and chunks; `ibp_32` and `ibp_64` have chunks of that many
    bits. `dict` and `auto` have the shortest payloads; `auto_slots`, what a compact store takes, the smallest slots."""

    def fit(codec: str, **chunk: Any) -> Codec:
        return Codec.fit(rows, codec=codec, max_rows=config.fit_rows, **chunk)

    bound = entropy_bound(rows)
    ibp, dictionary = fit("ibp"), fit("dict", minimize="payloads")
    # As a user calls them.
    auto, auto_slots = Codec.fit(rows, codec="auto", minimize="payloads"), Codec.fit(rows, codec="auto")
    reports = {
        "ibp_32": fit("ibp", word_bits=32, words_per_chunk=1).report(rows),
        "ibp_64": fit("ibp", word_bits=64, words_per_chunk=1).report(rows),
        "ibp_best": ibp.report(rows),
        "dict": dictionary.report(rows),
        "auto": auto.report(rows),
        "auto_slots": auto_slots.report(rows),
    }
    return {
        "data": name,
        "dtype": str(rows.dtype).removeprefix("torch."),
        "rows": len(rows),
        "width": rows.shape[1],
        "entropy_bound": bound.to_dict(columns=False),
        "bits_per_value": {form: report.bits_per_value for form, report in reports.items()},
        "savings": {form: report.savings for form, report in reports.items()},
        "compact_store_share": {form: 1 - report.compact_savings for form, report in reports.items()},
        "overflow_share": {form: report.overflow_share for form, report in reports.items()},
        "escape_share": {form: reports[form].escape_share for form in ("dict", "auto_slots")},
        "auto_takes": {"auto": auto.kind, "auto_slots": auto_slots.kind},
        "codecs": {"ibp_best": repr(ibp), "dict": repr(dictionary), "auto": repr(auto), "auto_slots": repr(auto_slots)},
        "auto_bits_above_bound": reports["auto"].bits_per_value - bound.bits_per_value,
        "auto_bits_below_ibp": reports["ibp_best"].bits_per_value - reports["auto"].bits_per_value,
    }
