"""`ibp-gnn doctor`: what works on this machine, what does not, and the step that helps. Needs nothing but Python."""

from __future__ import annotations

import dataclasses
import json

from . import machine, probes
from .advice import Check, advise

_EXIT_STATUS = {"ok": 0, "note": 0, "warning": 1, "error": 2}


def diagnose() -> list[Check]:
    """Looks at everything; takes seconds, since it imports torch, DGL and PyG, each in a process of its own."""
    return advise(machine.look(), probes.ask_all(), probes.installed_versions())


def exit_status(checks: list[Check]) -> int:
    """0: nothing but `ok` and `note`; 1: a warning; 2: an error."""
    return max((_EXIT_STATUS[check.severity] for check in checks), default=0)


def as_text(checks: list[Check]) -> str:
    """One line a check, the step that helps below it, and a line that counts."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.severity:<8} {check.name:<{width}}  {check.found}")
        if check.fix is not None:
            lines.append(f"{'':<8} {'':<{width}}  -> {check.fix}")
    counts = {severity: sum(check.severity == severity for check in checks) for severity in _EXIT_STATUS}
    return "\n".join([*lines, "", ", ".join(f"{count} {severity}" for severity, count in counts.items())])


def as_json(checks: list[Check]) -> str:
    record = {"exit_status": exit_status(checks), "checks": [dataclasses.asdict(check) for check in checks]}
    return json.dumps(record, indent=1)
