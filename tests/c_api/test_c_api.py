"""The C API: its examples, the codec that it fits and the bytes that it writes beside Python's, what it refuses."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ibp_gnn import Codec
from ibp_gnn.codec.values import to_bytes
from ibp_gnn.testing import KINDS, assert_bitwise_equal, special_rows

REPOSITORY = Path(__file__).resolve().parents[2]
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
CMAKE, COMPILER = shutil.which("cmake", path=PATH), shutil.which("c++", path=PATH)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CMAKE is None or COMPILER is None, reason="needs cmake and a C++ compiler"),
]
OK, BAD_ARGUMENT, BAD_ID, DAMAGED = range(4)
DTYPES = {
    torch.bool: 0,
    torch.uint8: 1,
    torch.int8: 2,
    torch.int16: 3,
    torch.int32: 4,
    torch.int64: 5,
    torch.float8_e4m3fn: 6,
    torch.float8_e5m2: 7,
    torch.float16: 8,
    torch.bfloat16: 9,
    torch.float32: 10,
    torch.float64: 11,
}


def run(*command: object) -> str:
    environment = {**os.environ, "PATH": PATH}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def install(folder: Path, *options: str) -> Path:
    build, installed = folder / "build", folder / "installed"
    run(
        "cmake",
        "-S",
        REPOSITORY / "csrc",
        "-B",
        build,
        "-DIBP_C_API=ON",
        f"-DCMAKE_INSTALL_PREFIX={installed}",
        *options,
    )
    run("cmake", "--build", build, "--parallel", "2", "--target", "install")
    return installed


def run_examples(folder: Path, installed: Path) -> str:
    build = folder / "examples"
    run("cmake", "-S", REPOSITORY / "csrc/examples", "-B", build, f"-DCMAKE_PREFIX_PATH={installed}")
    run("cmake", "--build", build)
    return run(Path(CMAKE or "").parent / "ctest", "--test-dir", build, "--output-on-failure")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("c_api")


@pytest.fixture(scope="module")
def installed(folder: Path) -> Path:
    return install(folder, "-DIBP_CUDA=OFF")


@pytest.fixture(scope="module")
def library(installed: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(next((installed / "lib").glob("libibp.so"))))
    loaded.ibp_error_message.restype = ctypes.c_char_p
    loaded.ibp_codec_saved_bytes.restype = ctypes.c_size_t
    loaded.ibp_codec_kind.restype = ctypes.c_char_p
    loaded.ibp_codec_row_bytes.restype = loaded.ibp_codec_table_bytes.restype = ctypes.c_int64
    return loaded


class Sizes(ctypes.Structure):
    names = "num_rows slot_bytes num_overflow slots_bytes bitmask_bytes overflow_bytes workspace_bytes lead_bytes"
    _fields_ = [(name, ctypes.c_int64) for name in names.split()]


def address(array: torch.Tensor | np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data)


def number(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


class CCodec:
    def __init__(self, library: ctypes.CDLL, made: ctypes.c_void_p) -> None:
        self.library, self.handle = library, made

    @classmethod
    def fit(cls, library: ctypes.CDLL, rows: torch.Tensor, kind: str) -> CCodec:
        handle = ctypes.c_void_p()
        rows = rows.contiguous()
        count = number(len(rows))
        values = number(rows[0].numel())
        status = library.ibp_codec_fit(
            kind.encode(), DTYPES[rows.dtype], values, address(rows), count, count, 2, ctypes.byref(handle)
        )
        assert status == OK, library.ibp_error_message()
        return cls(library, handle)

    @classmethod
    def load(cls, library: ctypes.CDLL, saved: bytes) -> CCodec:
        handle = ctypes.c_void_p()
        status = library.ibp_codec_load(saved, ctypes.c_size_t(len(saved)), ctypes.byref(handle))
        if status != OK:
            raise ValueError((status, library.ibp_error_message().decode()))
        return cls(library, handle)

    def save(self) -> bytes:
        saved = ctypes.create_string_buffer(self.library.ibp_codec_saved_bytes(self.handle))
        assert self.library.ibp_codec_save(self.handle, saved, ctypes.c_size_t(len(saved))) == OK
        return saved.raw

    def __del__(self) -> None:
        self.library.ibp_codec_free(self.handle)


def saved_form(codec: Codec) -> bytes:
    """What csrc/capi/codec_bytes.h says."""
    form: Any = codec.form
    kind = codec.kind.encode().ljust(8, b"\0")
    if codec.kind == "ibp":
        numbers, arrays = [form.row_bytes, form.chunk_bits], [form.mask_bytes, form.bitval_bytes]
    else:
        flags = form.sign_low + 2 * form.zero_code + 4 * form.per_column
        numbers = [form.num_values, form.value_bits, form.symbol_bits, form.trim_bits, form.code_bits, flags]
        arrays = [form.dictionary, form.escape_dictionary]
    text = b"IBPCODEC" + struct.pack("<II", 1, 2) + kind + struct.pack(f"<{len(numbers)}q", *numbers)
    text += b"".join(array.tobytes() for array in arrays)
    return text + struct.pack("<Q", checksum(text))


def checksum(text: bytes) -> int:
    value = 14695981039346656037
    for byte in text:
        value = (value ^ byte) * 1099511628211 % (1 << 64)
    return value


def some_rows(dtype: torch.dtype, kind: str, width: int = 20) -> torch.Tensor:
    return special_rows(dtype, width, kind, 60, seed=2)


def test_the_examples_run(folder: Path, installed: Path) -> None:
    said = run_examples(folder, installed)
    assert "100% tests passed" in said and "compress_rows_shared" in said
    assert not list(installed.rglob("*cuda*"))


def test_gathers_allocate_nothing(folder: Path, installed: Path) -> None:
    program = folder / "count_allocations"
    source = Path(__file__).with_suffix("").parent / "count_allocations.cc"
    run(
        "c++",
        "-std=c++17",
        "-O1",
        source,
        f"-I{installed}/include",
        installed / "lib/libibp.a",
        "-pthread",
        "-o",
        program,
    )
    run(program)


def test_nothing_else_leaves_the_shared_library(installed: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("needs nm")
    names = [line.split()[2] for line in run("nm", "-D", "--defined-only", installed / "lib/libibp.so").splitlines()]
    ours = [name for name in names if name.startswith("ibp_")]
    assert len(ours) >= 16
    assert not [name for name in names if "3ibp" in name], "want no C++ names of ours"


@pytest.mark.parametrize("codec", ["auto", "dict", "ibp"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_fits_the_codec_that_python_fits(library: ctypes.CDLL, dtype: torch.dtype, codec: str) -> None:
    for kind in KINDS:
        rows = some_rows(dtype, kind)
        rows = torch.cat([rows.view(torch.uint8), some_rows(dtype, "random_bits")[:7].view(torch.uint8)]).view(dtype)
        wanted = Codec.fit(rows, codec=codec)
        made = CCodec.fit(library, rows, codec)
        assert library.ibp_codec_kind(made.handle).decode() == wanted.kind, kind
        assert made.save() == saved_form(wanted), kind


def test_it_fits_relu_and_normal_rows(library: ctypes.CDLL) -> None:
    rows = torch.randn(3000, 33, generator=torch.Generator().manual_seed(1))
    for made in (rows, rows.relu(), rows.bfloat16(), (rows * 3).to(torch.int16), rows.double()):
        for kind in ("auto", "dict", "ibp"):
            assert CCodec.fit(library, made, kind).save() == saved_form(Codec.fit(made, codec=kind))


@pytest.mark.parametrize("slot_bytes", [None, 8, 80, 100], ids=str)
@pytest.mark.parametrize("codec", ["dict", "ibp"])
def test_its_bytes_are_pythons(library: ctypes.CDLL, codec: str, slot_bytes: int | None) -> None:
    rows = torch.cat([some_rows(torch.float32, "outliers"), some_rows(torch.float32, "random_bits")[:5]])
    fitted = Codec.fit(rows, codec=codec)
    wanted = fitted.compress(rows, slot_bytes=slot_bytes)
    made = CCodec.load(library, saved_form(fitted))
    lengths, sizes, count = np.zeros(len(rows), np.int32), Sizes(), number(len(rows))
    assert library.ibp_measure(made.handle, address(rows), count, address(lengths), 2) == OK
    assert lengths.tolist() == fitted.measure(rows).tolist()
    chosen = number(slot_bytes or 0)
    assert library.ibp_size(made.handle, address(lengths), count, chosen, ctypes.byref(sizes)) == OK
    got = {name: np.full(getattr(sizes, f"{name}_bytes"), 0xA5, np.uint8) for name in ("slots", "bitmask", "overflow")}
    workspace = np.zeros(sizes.workspace_bytes, np.uint8)
    where = [address(array) for array in got.values()]
    arguments = address(rows), address(lengths), ctypes.byref(sizes), *where, address(workspace), 2
    assert library.ibp_compress(made.handle, *arguments) == OK, library.ibp_error_message()
    assert sizes.slot_bytes == wanted.slot_bytes
    for name, array in got.items():
        assert_bitwise_equal(array, getattr(wanted, name).numpy())
    handle = ctypes.c_void_p()
    assert library.ibp_rows_make(made.handle, ctypes.byref(sizes), *where, ctypes.byref(handle)) == OK
    ids = torch.tensor([0, 64, 3, 3, 61])
    out = torch.zeros(5, fitted.row_bytes, dtype=torch.uint8)
    assert library.ibp_gather(handle, address(ids), number(5), address(out), 1) == OK
    assert_bitwise_equal(out, to_bytes(rows[ids]))
    everything = torch.zeros_like(rows)
    assert library.ibp_decompress(handle, address(everything), 2) == OK
    assert_bitwise_equal(everything, rows)
    tables = np.zeros(library.ibp_codec_table_bytes(made.handle), np.uint8)
    assert library.ibp_codec_write_tables(made.handle, address(tables), number(len(tables))) == OK
    of_python = np.zeros_like(tables)
    fitted.form.native.write_device_tables(False, of_python)
    assert_bitwise_equal(tables, of_python)
    library.ibp_rows_free(handle)


def test_errors_say_wanted_and_got(library: ctypes.CDLL) -> None:
    rows = some_rows(torch.float32, "outliers")
    made = CCodec.fit(library, rows, "dict")
    handle, sizes, count = ctypes.c_void_p(), Sizes(), number(len(rows))
    fit = library.ibp_codec_fit
    made_at = ctypes.byref(handle)
    for arguments, message in (
        ((b"zip", 10, number(20), address(rows), count, count, 1, made_at), "kind: want auto, dict or ibp, got 'zip'"),
        ((b"dict", 99, number(20), address(rows), count, count, 1, made_at), "dtype: want one of ibp_dtype, got 99"),
        ((b"dict", 10, number(0), address(rows), count, count, 1, made_at), "num_values: want 1 to"),
        ((b"dict", 10, number(20), None, count, count, 1, made_at), "rows: want an address, got NULL"),
        ((b"dict", 10, number(20), address(rows), number(0), count, 1, made_at), "num_rows: want at least 1, got 0"),
        ((b"dict", 10, number(20), address(rows), count, number(5), 1, made_at), "total_rows: want at least 60, got 5"),
    ):
        assert fit(*arguments) == BAD_ARGUMENT
        assert message in library.ibp_error_message().decode()
    assert library.ibp_bound(made.handle, number(-1), number(80), ctypes.byref(sizes)) == BAD_ARGUMENT
    assert library.ibp_bound(made.handle, number(10), number(3), ctypes.byref(sizes)) == BAD_ARGUMENT
    assert "slot_bytes: want at least 4, got 3" in library.ibp_error_message().decode()
    assert library.ibp_bound(made.handle, number(10), number(60), ctypes.byref(sizes)) == OK
    assert (sizes.slots_bytes, sizes.num_overflow, sizes.overflow_bytes) == (664, 10, 864)
    assert not handle


def test_damaged_codecs_are_refused(library: ctypes.CDLL) -> None:
    for kind in ("dict", "ibp"):
        saved = CCodec.fit(library, some_rows(torch.float32, "outliers"), kind).save()
        assert CCodec.load(library, saved).save() == saved
        for end in range(len(saved)):
            with pytest.raises(ValueError, match=f"^\\({DAMAGED}, "):
                CCodec.load(library, saved[:end])
        with pytest.raises(ValueError, match=f"^\\({DAMAGED}, "):
            CCodec.load(library, saved + b"\0")
        rng = np.random.default_rng(1)
        for _ in range(300):  # right checksums, wrong numbers
            damaged = bytearray(saved[:-8])
            damaged[rng.integers(16, len(damaged))] = rng.integers(256)
            try:
                loaded = CCodec.load(library, bytes(damaged) + struct.pack("<Q", checksum(bytes(damaged))))
            except ValueError as error:
                assert error.args[0][0] == DAMAGED
            else:
                assert loaded.save()[:-8] == damaged


def test_versions(library: ctypes.CDLL, installed: Path) -> None:
    header = (installed / "include/ibp.h").read_text()
    assert f"#define IBP_VERSION {library.ibp_version()} " in header
    assert library.ibp_format_version() == 2


@pytest.mark.cuda
def test_the_examples_run_on_a_gpu(tmp_path: Path) -> None:
    major, minor = torch.cuda.get_device_capability()
    installed = install(tmp_path, "-DIBP_CUDA=ON", f"-DIBP_CUDA_ARCHITECTURES={major}{minor}")
    said = run_examples(tmp_path, installed)
    assert "gather_on_gpu_shared" in said and "100% tests passed" in said and "Skipped" not in said
