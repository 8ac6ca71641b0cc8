"""WordNet GraphSAGE from stores of each precision: accuracy over seeds, and what a value takes."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ibp_gnn.config import ConfigError, load, setting
from ibp_gnn.store.precision import PRECISIONS
from ibp_gnn.training.config import TrainingConfig
from ibp_gnn.training.loop import run


@dataclasses.dataclass(frozen=True)
class AccuracyConfig:
    """training: a training config. settings: of it, as in `--set`. seeds: so many, from 0 on."""

    training: str = "configs/wordnet_sage.yaml"
    settings: tuple[str, ...] = ()
    seeds: int = setting(5, ge=2)


def measure_accuracy(config: AccuracyConfig, keep: Callable[[list[dict[str, Any]]], None]) -> None:
    """keep: is given the results so far after each run. Lossless first."""
    if not Path(config.training).is_file():
        raise ConfigError(f"accuracy.training: want a training config, got {config.training}, where no file is")
    found: dict[str, dict[str, Any]] = {}
    for seed in range(config.seeds):  # seeds outside: whatever the machine does meanwhile, it does to all
        for precision in ("null", *PRECISIONS):
            settings = [*config.settings, f"store.precision={precision}", f"train.seed={seed}", "log.progress=false"]
            result = run(load(TrainingConfig, config.training, settings))
            one = found.setdefault(precision, {"precision": None if precision == "null" else precision, "test": []})
            one["test"].append(result["test_accuracy"])
            one["store_bytes"], one["raw_bytes"] = result["store_bytes"], result["raw_bytes"]
            one["mean"] = statistics.fmean(one["test"])
            one["deviation"] = statistics.stdev(one["test"]) if len(one["test"]) > 1 else None
            print(f"{precision} seed {seed}: {result['test_accuracy']:.4f}", flush=True)
            keep(list(found.values()))
