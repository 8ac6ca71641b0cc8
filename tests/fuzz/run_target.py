"""Runs a fuzz target of this folder with atheris: run_target.py fuzz_oracle [libFuzzer's options] [corpus folders]."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import atheris

# What the target's inputs reach in Python, whose branches are to guide it.
GUIDED_BY = {
    "fuzz_oracle": ["fuzz_oracle", "ibp_gnn.testing"],
    "fuzz_store_file": ["ibp_gnn.store.file", "ibp_gnn.codec.dict", "ibp_gnn.codec.ibp", "ibp_gnn.codec.values"],
}


def main() -> None:
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in GUIDED_BY:
        sys.exit(f"run_target.py: want one of {', '.join(GUIDED_BY)}, got {name!r}")
    sys.path.insert(0, str(Path(__file__).parent))  # PYTHONSAFEPATH leaves it out
    import torch  # not instrumented: it is large, and nothing of what is looked for is in it

    torch.set_num_threads(1)
    with atheris.instrument_imports(include=GUIDED_BY[name]):
        target = importlib.import_module(name)
    atheris.Setup(sys.argv, target.test_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
