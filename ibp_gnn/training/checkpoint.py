"""A trained GraphSAGE in a file: its settings and its weights, which torch loads without running code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from ..config import ConfigError
from . import record
from .sage import Aggregation, GraphSAGE

_KEYS = ("settings", "aggregation", "state")


def prepare(path: str, model: torch.nn.Module) -> Path:
    """Called before training. Raises ConfigError if the model cannot be saved, or not there."""
    if not isinstance(model, GraphSAGE):
        raise ConfigError("log.checkpoint: want a data set with one node type, whose model can be saved, got several")
    return record.prepare(path, "log.checkpoint")


def save(path: Path, model: torch.nn.Module) -> None:
    """model: one that `prepare` took. Writes the file; a reader never sees half of it."""
    record.make_folder(path)
    partial = path.with_name(path.name + ".partial")
    state = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    torch.save({"settings": model.settings, "aggregation": model.aggregation, "state": state}, partial)
    partial.replace(path)


def load(path: str, aggregation: Aggregation) -> GraphSAGE:
    """The saved model on the CPU, in evaluation mode. aggregation: "dgl" or "csc", whichever it was trained with.

    Raises ConfigError for a file that cannot be read, is none of `save`, or of a model that these blocks do not suit.
    """
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[:1]
        raise ConfigError(f"checkpoint: cannot read {path}: {reason[0] if reason else type(error).__name__}") from error
    if not isinstance(content, dict) or set(content) != set(_KEYS):
        got = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise ConfigError(f"checkpoint: want a file of train_sage.py with {list(_KEYS)}, got {got} in {path}")
    if content["aggregation"] == "pyg":
        raise ConfigError("checkpoint: want a model of `loop: dgl` or `loop: graphbolt`, got one of `loop: pyg`")
    try:
        model = GraphSAGE(**content["settings"], aggregation=aggregation)
        model.load_state_dict(content["state"])
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ConfigError(f"checkpoint: {path} does not describe a GraphSAGE: {error}") from error
    return model.eval()
