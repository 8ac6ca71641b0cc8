"""A codec is added with three new files and a line in two others: here one that only XORs a constant, in a copy of the
sources, which is built and used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = Path(__file__).parent / "flip_codec"
PROGRAM = """
import sys, torch
from ibp_gnn import Codec, CompressedFeatureStore, CompressedGPUCache
from ibp_gnn.testing import assert_bitwise_equal
rows = torch.randint(0, 256, (1000, 33), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
rows[:, -1] = 7
rows[::5, -1] = 8
codec = Codec.fit(rows, codec="flip")
# The constant is the first row, which ends with 8, as every fifth one does.
assert codec.kind == "flip" and codec.measure(rows).tolist() == [32, 33, 33, 33, 33] * 200
for layout in ("compact", "inplace"):
    store = CompressedFeatureStore.build(rows, "flip", layout=layout, progress=False)
    store.save(f"{layout}.ibp")
    loaded = CompressedFeatureStore.load(f"{layout}.ibp", mmap=False)
    loaded.update(torch.tensor([3, 5]), rows[[5, 3]])
    swapped = rows.clone()
    swapped[[3, 5]] = rows[[5, 3]]
    assert_bitwise_equal(store.gather(torch.arange(1000)), rows)
    assert_bitwise_equal(loaded.gather(torch.arange(1000)), swapped)
    if sys.argv[1] == "cuda":
        assert_bitwise_equal(codec.decompress(codec.compress(rows.cuda())), rows)
        with store, CompressedGPUCache(store, "300 rows") as cache:
            assert_bitwise_equal(cache.gather(torch.arange(1000, device="cuda")), rows)
            cache.check()
print("done")
"""


def files(tree: Path) -> Iterator[tuple[str, bytes]]:
    for folder in ("csrc", "ibp_gnn"):
        for path in (tree / folder).rglob("*"):
            if path.is_file() and path.suffix in (".h", ".cc", ".cu", ".cuh", ".txt", ".cmake", ".map", ".py"):
                yield str(path.relative_to(tree)), path.read_bytes()


def add_codec(tree: Path) -> None:
    """What docs/developing.md says."""
    new = {"csrc/cpu/flip_codec.cc", "csrc/cuda/flip_codec.cu", "ibp_gnn/codec/flip.py"}
    for path in new:
        shutil.copy(FILES / Path(path).name, tree / path)
    touched = {
        "csrc/core/codec_list.h": ("  CODEC(dict) ", "  CODEC(flip) \\\n  CODEC(dict) "),
        "ibp_gnn/codec/registry.py": ("        DictForm,\n", "        DictForm,\n        FlipForm,\n"),
    }
    for path, (before, after) in touched.items():
        text = (tree / path).read_text()
        assert text.count(before) == 1
        (tree / path).write_text(text.replace(before, after))
    registry = tree / "ibp_gnn/codec/registry.py"
    text = registry.read_text()
    registry.write_text(text.replace("from .forms import", "from .flip import FlipForm\nfrom .forms import"))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("nanobind") is None or shutil.which("cmake") is None, reason="needs nanobind and cmake")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)], ids=["cpu", "cuda"])
def test_a_codec_that_xors_a_constant(device: str, tmp_path: Path) -> None:
    for folder in ("csrc", "ibp_gnn"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    add_codec(tmp_path)
    before, after = ({*files(tree)} for tree in (REPOSITORY, tmp_path))
    assert len({path for path, _ in before ^ after}) == 5, "new and touched files"
    build = ["cmake", "-S", "csrc", "-B", "build", f"-DPython_EXECUTABLE={sys.executable}", "-DIBP_CUDA=OFF"]
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        build[-1:] = ["-DIBP_CUDA=ON", f"-DIBP_CUDA_ARCHITECTURES={major}{minor}"]
    run(build, tmp_path)
    run(["cmake", "--build", "build", "--parallel"], tmp_path)
    for extension in (tmp_path / "build").glob("_c*.so"):
        shutil.copy(extension, tmp_path / "ibp_gnn")
    assert run([sys.executable, "-c", PROGRAM, device], tmp_path).splitlines()[-1] == "done"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_its_kernels_compile(tmp_path: Path) -> None:
    source = tmp_path / "flip_codec.cu"
    shutil.copy(FILES / source.name, source)
    options = ["-std=c++17", "-arch=sm_80", f"-I{REPOSITORY / 'csrc'}", "-c", "-o", os.devnull]
    run(["nvcc", *options, str(source)], tmp_path)


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout
