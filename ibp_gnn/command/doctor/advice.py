"""From what was found to what it means: one Check a line, with the step that helps. Looks at nothing itself."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from ..._install import install_command
from .machine import Gpu, Machine
from .probes import Facts

Severity = Literal["ok", "note", "warning", "error"]

_BUILD = "in the source tree, run: IBP_CUDA=ON pip install --force-reinstall --no-deps ."
_OLD_NVCC = (11, 8)
_LITTLE_GPU_MEMORY = 1 << 30
# Where a module and what pip calls it differ.
_DISTRIBUTIONS = {"yaml": "PyYAML", "torch_geometric": "torch-geometric", "sklearn": "scikit-learn"}


@dataclasses.dataclass(frozen=True)
class Check:
    """ok: works. note: optional and not there. warning: there, but does not work as it should. error: ibp_gnn itself
    cannot work. fix: the step that helps, if there is one to take."""

    name: str
    severity: Severity
    found: str
    fix: str | None = None


def advise(machine: Machine, facts: Mapping[str, Facts], versions: Mapping[str, str | None]) -> list[Check]:
    """facts: by probe. versions: by distribution. Returns the checks in the order to read them."""
    torch = facts["torch"]
    return [
        Check("Python", "ok", f"{machine.python}, {machine.system}, {machine.executable}"),
        Check("ibp_gnn", "ok", versions["ibp-gnn"] or "not installed; used from a source tree"),
        _torch(machine, torch),
        _numpy(torch, versions),
        _cpu_extension(machine, facts["cpu_extension"]),
        _round_trip(torch, facts["round_trip"]),
        _driver(machine),
        _cuda_device(machine, torch, facts["cuda"]),
        _cuda_extension(machine, facts["cuda_extension"]),
        _architectures(facts["cuda"], facts["cuda_extension"]),
        _gpu_memory(facts["cuda"]),
        _pinned_memory(machine, facts["round_trip"]),
        *_pcie(machine),
        _nvcc(machine),
        _dgl(machine, torch, facts["dgl"], versions),
        _graphbolt(torch, facts["dgl"]),
        _torchdata(torch, versions),
        _pyg(torch, facts["pyg"], versions),
        _ogb(versions),
    ]


def _torch(machine: Machine, torch: Facts) -> Check:
    if torch["missing"] == "torch":
        return Check("torch", "error", "not installed; ibp_gnn cannot work without it", "pip install torch")
    if torch["error"]:
        return Check("torch", "error", f"import torch fails: {torch['error']}", "pip install --force-reinstall torch")
    version = torch["version"]
    if _numbers(version) < (2, 2):
        return Check("torch", "error", f"want 2.2 or later, got {version}", "pip install 'torch>=2.2'")
    if torch["hip"]:
        return Check("torch", "note", f"{version}, a ROCm build: ibp_gnn's GPU code is for CUDA; it decodes on the CPU")
    if torch["cuda"]:
        return Check("torch", "ok", f"{version}, built for CUDA {torch['cuda']}")
    return Check("torch", "ok", f"{version}, CPU build")


def _numpy(torch: Facts, versions: Mapping[str, str | None]) -> Check:
    found = f"{versions['numpy'] or 'not installed'} (pandas: {versions['pandas'] or 'not installed'})"
    if versions["numpy"] is None:
        fix = "pip install 'numpy<2' 'pandas<3'" if _has_graphbolt(torch) else "pip install numpy"
        return Check("numpy", "error", found, fix)
    if torch.get("numpy_error") is None:
        return Check("numpy", "ok", found)
    why = f"{found}; torch {torch['version']} cannot use it: {torch['numpy_error']}"
    if _numbers(torch["version"]) < (2, 3) and _numbers(versions["numpy"]) >= (2,):
        return Check("numpy", "error", why, "pip install 'numpy<2' 'pandas<3'")
    return Check("numpy", "error", why, "pip install --force-reinstall numpy")


def _cpu_extension(machine: Machine, extension: Facts) -> Check:
    name, forced = "CPU extension", machine.cpu_path_wanted
    if extension["error"] and extension["missing"] is None and forced:
        return Check(name, "error", f"IBP_GNN_CPU={forced}: {extension['error']}", "unset IBP_GNN_CPU")
    if extension["error"]:
        fix = f"in the source tree, run: {machine.executable} -m pip install --force-reinstall --no-deps ."
        return Check(name, "error", f"cannot be loaded by this Python: {extension['error']}", fix)
    if extension["path"] != "scalar":
        return Check(name, "ok", f"decodes with {extension['path'].upper()}")
    if forced == "scalar":
        return Check(name, "note", "decodes without SIMD, as IBP_GNN_CPU=scalar asks", "unset IBP_GNN_CPU")
    return Check(name, "note", "decodes without SIMD: this processor has no AVX2 and BMI2, or is not x86-64")


def _round_trip(torch: Facts, trip: Facts) -> Check:
    if trip["error"] is None:
        where = "a store on the CPU" if trip["gpu"] is None else "a store, on the CPU and on the GPU"
        return Check("round trip", "ok", f"rows come out of {where} with the same bits")
    if torch["error"]:
        return Check("round trip", "note", "not tried, since torch cannot be imported")
    fix = "first mend what is reported beside this; if nothing is, this is a bug: please report it with this output"
    return Check("round trip", "error", f"rows through a store: {trip['error']}", fix)


def _driver(machine: Machine) -> Check:
    if not machine.gpus:
        return Check("NVIDIA driver", "note", "no NVIDIA GPU in this machine: rows are decoded on the CPU")
    versions = sorted({gpu.driver for gpu in machine.gpus if gpu.driver})
    if versions:
        return Check("NVIDIA driver", "ok", f"{', '.join(versions)}; {len(machine.gpus)} GPU(s)")
    fix = "install NVIDIA's driver, so that nvidia-smi lists the GPU; start a container with --gpus all"
    return Check("NVIDIA driver", "warning", f"not loaded, but there is an {machine.gpus[0].name}", fix)


def _cuda_device(machine: Machine, torch: Facts, cuda: Facts) -> Check:
    name = "CUDA device"
    if torch["error"]:
        return Check(name, "note", "not looked at, since torch cannot be imported")
    if cuda["error"]:
        fix = "see what nvidia-smi says; a restart helps if the driver was updated"
        return Check(name, "warning" if _has_gpu(machine, cuda) else "note", f"CUDA: {cuda['error']}", fix)
    broken = [device for device in cuda["devices"] if device["error"]]
    if broken:
        device = broken[0]
        wanted = f"sm_{_capability(device, '')}"
        fix = (
            f"install a torch built for it: python -c 'import torch; print(torch.cuda.get_arch_list())' shows {wanted}"
        )
        found = f"torch {torch['version']} cannot compute on {device['name']}: {device['error']}"
        return Check(name, "warning", found, fix)
    if cuda["devices"]:
        listed = [f"{device['name']}, compute capability {_capability(device)}" for device in cuda["devices"]]
        return Check(name, "ok", "; ".join(listed))
    if not machine.gpus:
        return Check(name, "note", "none: rows are decoded on the CPU")
    if torch["cuda"] is None:
        version = torch["version"].partition("+")[0]
        found = f"torch {torch['version']} is a CPU build and cannot use the {machine.gpus[0].name}"
        return Check(name, "warning", found, f"pip install --force-reinstall torch=={version} (on Linux, with CUDA)")
    if machine.visible_devices is not None and not re.match(r"\d|GPU|MIG", machine.visible_devices):
        found = f"CUDA_VISIBLE_DEVICES={machine.visible_devices!r} hides every GPU"
        return Check(name, "warning", found, "unset CUDA_VISIBLE_DEVICES")
    fix = f"update the driver to one for CUDA {torch['cuda']}, or install a torch that is built for an older CUDA"
    return Check(name, "warning", f"torch sees none: {cuda['reason'] or 'it does not say why'}", fix)


def _cuda_extension(machine: Machine, extension: Facts) -> Check:
    name = "CUDA extension"
    if extension["error"] is None:
        return Check(name, "ok", f"built for {extension['architectures']}")
    severity: Severity = "warning" if machine.gpus else "note"
    first = "" if machine.nvcc else "install the CUDA toolkit (nvcc 11.8 or later on PATH); then, "
    if extension["missing"] == "ibp_gnn._cuda":
        if not machine.gpus:
            return Check(name, severity, "not built; only a GPU needs it")
        return Check(name, severity, "not built: the GPU cannot decode rows", first + _BUILD)
    return Check(name, severity, f"built, but cannot be loaded: {extension['error']}", first + _BUILD)


def _architectures(cuda: Facts, extension: Facts) -> Check:
    name, devices = "architectures", cuda.get("devices", [])
    if extension["error"] or not devices:
        return Check(name, "ok" if extension["error"] is None else "note", "nothing to compare: no CUDA device in use")
    for device in devices:
        how = runs_on(extension["architectures"], tuple(device["capability"]))
        what, number = f"{device['name']} (compute capability {_capability(device)})", _capability(device, "")
        fix = _BUILD.replace("IBP_CUDA=ON", f"IBP_CUDA=ON IBP_CUDA_ARCHITECTURES={number}")
        if how is None:
            found = f"the build has no code for {what}: {extension['architectures']}"
            return Check(name, "warning", found, fix)
        if how == "ptx":
            found = f"the build has only PTX for {what}: the driver compiles it at the first use"
            return Check(name, "note", found, fix)
    return Check(name, "ok", "the build has code for every CUDA device")


def runs_on(architectures: str, capability: tuple[int, ...]) -> Literal["code", "ptx"] | None:
    """How a build for these CUDA_ARCHITECTURES (CMake's names, separated by commas) runs on a device.

    Compiled code runs on the same major version from its minor version on, with a letter (90a) on that version alone;
    PTX runs on everything newer. "80-real" is code, "80-virtual" PTX, "80" both.
    """
    how: Literal["code", "ptx"] | None = None
    for name in architectures.split(","):
        found = re.fullmatch(r"(\d+)(\d)([af]?)(-real|-virtual)?", name.strip())
        if found is None:
            continue
        built, letter, kind = (int(found[1]), int(found[2])), found[3], found[4]
        same_major = built[0] == capability[0] and built <= capability
        if kind != "-virtual" and (built == capability if letter else same_major):
            return "code"
        if kind != "-real" and not letter and built <= capability:
            how = "ptx"
    return how


def _gpu_memory(cuda: Facts) -> Check:
    name, devices = "GPU memory", cuda.get("devices", [])
    if not devices:
        return Check(name, "note", "no CUDA device in use")
    figures = [f"{_gib(device['free_bytes'])} of {_gib(device['total_bytes'])} free" for device in devices]
    if max(device["free_bytes"] for device in devices) >= _LITTLE_GPU_MEMORY:
        return Check(name, "ok", "; ".join(figures))
    fix = "stop the processes that nvidia-smi lists"
    return Check(name, "warning", f"{'; '.join(figures)}: little room for a cache", fix)


def _pinned_memory(machine: Machine, trip: Facts) -> Check:
    name, limit = "pinned memory", machine.memory_lock_bytes
    ulimit = f"`ulimit -l` is {'unlimited' if limit is None else f'{limit // 1024} KiB'}"
    pin = trip.get("pin")
    if pin is None:
        return Check(name, "ok", f"{ulimit}; page-locking was not tried, since only a GPU needs it")
    if pin == "ok":
        return Check(name, "ok", f"256 MiB can be page-locked; {ulimit}")
    fix = (
        "raise the limit: `ulimit -l unlimited` in the shell that starts Python, memlock in /etc/security/limits.conf, "
        "--ulimit memlock=-1 for a container; until then gathers to a GPU copy through a staging buffer"
    )
    return Check(name, "warning", f"256 MiB cannot be page-locked: {pin}; {ulimit}", fix)


def _pcie(machine: Machine) -> Iterable[Check]:
    if not machine.gpus:
        yield Check("PCIe link", "note", "no NVIDIA GPU in this machine")
    for gpu in machine.gpus:
        yield _link(gpu, machine.gpus_from)


def _link(gpu: Gpu, source: str) -> Check:
    name, (generation, generation_max), (width, width_max) = "PCIe link", gpu.pcie_generation, gpu.pcie_width
    if width is None:
        return Check(name, "note", f"{gpu.name}: {source} does not say")
    most = f"gen {generation_max or '?'} x{width_max or '?'}"
    found = f"{gpu.name}: gen {generation or '?'} x{width} now, at most {most}"
    if width_max is not None and width < width_max:
        fix = "seat the GPU again, in a slot with all lanes: the time of a gather grows by the share that is missing"
        return Check(name, "warning", found, fix)
    if generation is not None and generation_max is not None and generation < generation_max:
        found += " (idle GPUs slow their link down)"
    return Check(name, "ok", found)


def _nvcc(machine: Machine) -> Check:
    name = "nvcc"
    if machine.nvcc is None:
        fix = "install the CUDA toolkit, and put nvcc on PATH or its path into CUDACXX"
        return Check(name, "note", "not found; needed only to build the CUDA extension", fix)
    path, version = machine.nvcc
    if version is None:
        return Check(name, "note", f"{path} does not say its version", "set CUDACXX to an nvcc that runs")
    if _numbers(version) < _OLD_NVCC:
        return Check(name, "note", f"want 11.8 or later, got {version} ({path})", "install a newer CUDA toolkit")
    return Check(name, "ok", f"{version} ({path})")


def _dgl(machine: Machine, torch: Facts, dgl: Facts, versions: Mapping[str, str | None]) -> Check:
    name, install = "DGL", _dgl_command(torch)
    if versions["dgl"] is None and dgl["error"]:
        if _numbers(machine.python) >= (3, 13):
            found = f"not installed; it has wheels for Python up to 3.12, not for {machine.python}"
            return Check(name, "note", found, f"with Python 3.12: {install}")
        return Check(name, "note", "not installed; `loop: dgl` and `loop: graphbolt` need it", install)
    if dgl["error"] is None:
        found = dgl["version"] + ("" if dgl["version"] == "2.1.0" else "; ibp_gnn is tested with 2.1.0")
        if dgl.get("cuda_error"):
            found += "; no CUDA in this build: it samples on the CPU, ibp_gnn decodes on the GPU"
        return Check(name, "ok", found)
    if torch["error"]:
        return Check(name, "note", f"{versions['dgl']}; not looked at, since torch cannot be imported")
    if dgl["missing"]:
        distribution = _DISTRIBUTIONS.get(dgl["missing"], dgl["missing"].partition(".")[0])
        fix = f"pip install {distribution} (or all that DGL needs: {install})"
        return Check(name, "warning", f"{versions['dgl'] or 'DGL'} needs {dgl['missing']}, which is not installed", fix)
    if "DGLBACKEND" in dgl["error"]:
        return Check(name, "warning", dgl["error"], "export DGLBACKEND=pytorch")
    fix = f"pip install --force-reinstall --no-deps dgl==2.1.0; then {install}"
    return Check(name, "warning", f"{versions['dgl']} cannot be imported: {dgl['error']}", fix)


def _graphbolt(torch: Facts, dgl: Facts) -> Check:
    name = "GraphBolt"
    if dgl["error"]:
        return Check(name, "note", "part of DGL, which cannot be imported here")
    if dgl["graphbolt_native"]:
        return Check(name, "ok", "with its native library: `loop: graphbolt` works")
    if _has_graphbolt(torch):
        fix = install_command("graphbolt")
        return Check(name, "warning", dgl["graphbolt_error"] or "its native library cannot be loaded", fix)
    version = torch.get("version")
    found = f"no native library for torch {version}, only for 2.0.0 to 2.2.1; `loop: dgl` works"
    fix = f"for `loop: graphbolt`, in another environment: {install_command('graphbolt')}"
    return Check(name, "note", found, fix)


def _torchdata(torch: Facts, versions: Mapping[str, str | None]) -> Check:
    name, version = "torchdata", versions["torchdata"]
    fix = f"pip install torchdata=={'0.7.1' if _has_graphbolt(torch) else '0.9.0'}"
    if version is None and versions["dgl"] is None:
        return Check(name, "note", "not installed; only DGL's GraphBolt needs it")
    if version is None:
        return Check(name, "warning", "not installed: dgl.graphbolt cannot be imported without it", fix)
    if _numbers(version) >= (0, 10):
        found = f"{version} has no datapipes any more, which dgl.graphbolt needs; want below 0.10"
        return Check(name, "note" if versions["dgl"] is None else "warning", found, fix)
    return Check(name, "ok", version)


def _pyg(torch: Facts, pyg: Facts, versions: Mapping[str, str | None]) -> Check:
    name, fix = "PyG", install_command("pyg")
    version = versions["torch-geometric"]
    if pyg["error"] and version is None:
        return Check(name, "note", "not installed; `loop: pyg` needs it", fix)
    if torch["error"]:
        return Check(name, "note", f"{version}; not looked at, since torch cannot be imported")
    if pyg["error"]:
        return Check(name, "warning", f"{version} cannot be imported: {pyg['error']}", f"reinstall it: {fix}")
    if pyg["native_sampler"]:
        return Check(name, "ok", f"{pyg['version']}, with the sampler that NeighborLoader needs")
    return Check(name, "ok", f"{pyg['version']}; no pyg-lib and no torch-sparse: ibp_gnn.pyg.NeighborSampler samples")


def _ogb(versions: Mapping[str, str | None]) -> Check:
    if versions["ogb"] is None:
        return Check("ogb", "note", "not installed; the OGB data sets need it", install_command("ogb"))
    return Check("ogb", "ok", versions["ogb"])


def _dgl_command(torch: Facts) -> str:
    return install_command("graphbolt" if _has_graphbolt(torch) else "dgl")


def _has_graphbolt(torch: Facts) -> bool:
    """Whether DGL's wheel has a native GraphBolt library for this torch."""
    return (2, 0, 0) <= _numbers(torch.get("version") or "0") <= (2, 2, 1)


def _has_gpu(machine: Machine, cuda: Facts) -> bool:
    return bool(machine.gpus or cuda.get("devices"))


def _capability(device: Facts, separator: str = ".") -> str:
    return separator.join(map(str, device["capability"]))


def _numbers(version: str) -> tuple[int, ...]:
    """ "2.13.0+cpu" as (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
