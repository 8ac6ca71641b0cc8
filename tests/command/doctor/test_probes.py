"""Packages are asked in processes of their own, which may break."""

from __future__ import annotations

import pytest
from gpu_machine import on_gpu_machine

from ibp_gnn.command.doctor import probes


@pytest.mark.parametrize(
    ("code", "timeout", "error"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 60, "the process crashed: SIGSEGV"),
        ("import time; time.sleep(60)", 2, "no answer within 2 s"),
        ("import os; os._exit(3)", 60, "the process ended with status 3"),
        ("raise OSError('libcu.so: cannot open')", 60, "OSError: libcu.so: cannot open"),
    ],
)
def test_a_package_that_breaks_the_process(tmp_path, monkeypatch, code, timeout, error):
    (tmp_path / "dgl").mkdir()
    (tmp_path / "dgl/__init__.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    facts = probes.ask("dgl", timeout)
    assert error in facts["error"] and facts["missing"] is None
    check = on_gpu_machine({"dgl": facts})["DGL"]
    assert check.severity == "warning" and error in check.found and "dgl==2.1.0" in check.fix
