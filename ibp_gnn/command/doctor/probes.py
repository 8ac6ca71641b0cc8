"""What the doctor learns by importing things. Each probe runs in a process of its own, so none can take it down."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any

from ... import _extension

Facts = dict[str, Any]
"""What a probe found. Always there: "error", None or a sentence; "missing", None or the module that is not there."""

PACKAGES = ("dgl", "ibp-gnn", "numpy", "ogb", "pandas", "torch", "torch-geometric", "torchdata")
TIMEOUT_SECONDS = 180

_MARK = "ibp-gnn doctor found: "
# The child gets this process's module search path, before it imports anything.
_CHILD = (
    f"import sys; sys.path[:] = sys.argv[1].split({os.pathsep!r}); "
    "from ibp_gnn.command.doctor import probes; probes.answer(sys.argv[2])"
)
_PIN_BYTES = 256 << 20


def installed_versions() -> dict[str, str | None]:
    """By distribution name; None = not installed."""
    versions: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def ask_all() -> dict[str, Facts]:
    """The facts of every probe, by its name."""
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        return dict(zip(PROBES, pool.map(ask, PROBES), strict=True))


def ask(name: str, timeout: float = TIMEOUT_SECONDS) -> Facts:
    """Runs one probe in a new process. A crash or a hang there is a fact like any other."""
    command = [sys.executable, "-W", "ignore", "-c", _CHILD, os.pathsep.join(sys.path), name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout)
    except subprocess.TimeoutExpired:
        return _failure(f"no answer within {timeout:g} s")
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_MARK):
            return json.loads(line.removeprefix(_MARK))
    if done.returncode < 0:
        return _failure(f"the process crashed: {signal.Signals(-done.returncode).name}")
    return _failure(f"the process ended with status {done.returncode}: {_last_line(done.stderr)}")


def answer(name: str) -> None:
    """What a child process does: runs the probe, and prints what it found."""
    try:
        facts = {"error": None, "missing": None, **PROBES[name]()}
    except Exception as error:
        facts = _failure(_describe(error), _missing_module(error))
    print(f"\n{_MARK}{json.dumps(facts)}", flush=True)


def _torch() -> Facts:
    import torch

    facts: Facts = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    return facts | {"numpy_error": _error_of(lambda: torch.zeros(1, device="cpu").numpy())}


def _cuda() -> Facts:
    """Initialises CUDA, and computes on each device."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        reasons = [_last_line(str(warning.message)) for warning in caught]
        return {"devices": [], "reason": _error_of(torch.cuda.init) or "; ".join(reasons)}
    devices = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        devices.append(
            {
                "name": torch.cuda.get_device_name(index),
                "capability": list(torch.cuda.get_device_capability(index)),
                "free_bytes": free,
                "total_bytes": total,
                "error": _error_of(functools.partial(_compute, index)),
            }
        )
    return {"devices": devices, "reason": None}


def _compute(index: int) -> None:
    import torch

    (torch.zeros(1, device=f"cuda:{index}") + 1).item()


def _cpu_extension() -> Facts:
    return {"path": _extension.load("_cpu").default_path()}


def _cuda_extension() -> Facts:
    return {"architectures": _extension.load("_cuda").ARCHITECTURES}


def _round_trip() -> Facts:
    """Rows through a store and back on the CPU and, with a GPU and the CUDA extension, from there to the GPU."""
    import torch

    import ibp_gnn

    from ... import _native
    from ...testing import assert_bitwise_equal

    rows = torch.randn(1000, 32, generator=torch.Generator().manual_seed(0), device="cpu")
    ids = torch.arange(999, -1, -1, device="cpu")
    facts: Facts = {"gpu": None, "pin": None}
    with ibp_gnn.CompressedFeatureStore.build(rows, pin=False, progress=False) as store:
        assert_bitwise_equal(store.gather(ids), rows[ids])
    if torch.cuda.is_available() and _native.cuda_is_built():
        facts["pin"] = _error_of(_pin) or "ok"
        with ibp_gnn.CompressedFeatureStore.build(rows, progress=False) as store:
            assert_bitwise_equal(store.gather(ids, device="cuda").cpu(), rows[ids])
            store.check()
        facts["gpu"] = "ok"
    return facts


def _pin() -> None:
    import torch

    from ... import _native

    torch.cuda.init()
    buffer = torch.empty(_PIN_BYTES, dtype=torch.uint8, device="cpu")
    _native.cuda().register_host_memory(buffer.data_ptr(), buffer.numel())
    _native.cuda().unregister_host_memory(buffer.data_ptr())


def _dgl() -> Facts:
    from ...integrations import dgl_compat

    dgl = dgl_compat.import_dgl()
    facts: Facts = {"version": dgl.__version__, "graphbolt_native": dgl_compat.graphbolt_is_native()}
    facts["graphbolt_error"] = _error_of(lambda: dgl.graphbolt.BasicFeatureStore)
    import torch

    if torch.cuda.is_available():
        facts["cuda_error"] = _error_of(lambda: dgl.graph(([0], [0])).to("cuda"))
    return facts


def _pyg() -> Facts:
    import torch_geometric
    from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

    return {"version": torch_geometric.__version__, "native_sampler": WITH_PYG_LIB or WITH_TORCH_SPARSE}


# The slow ones first.
PROBES: dict[str, Callable[[], Facts]] = {
    "dgl": _dgl,
    "pyg": _pyg,
    "round_trip": _round_trip,
    "torch": _torch,
    "cuda": _cuda,
    "cpu_extension": _cpu_extension,
    "cuda_extension": _cuda_extension,
}


def _missing_module(error: BaseException) -> str | None:
    """The module that is not there, if that is the reason, behind a message of our own or not."""
    for cause in (error, error.__cause__):
        if isinstance(cause, ModuleNotFoundError):
            return cause.name
    return None


def _failure(error: str, missing: str | None = None) -> Facts:
    return {"error": error, "missing": missing}


def _error_of(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except Exception as error:
        return _describe(error)
    return None


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {_one_line(str(error).splitlines())}"


def _last_line(text: str) -> str:
    return _one_line(text.strip().splitlines()[-1:])


def _one_line(lines: Iterable[str], most: int = 300) -> str:
    text = " ".join(line.strip() for line in lines if line.strip())
    return text if len(text) <= most else text[: most - 3] + "..."
