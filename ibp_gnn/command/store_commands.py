"""The subcommands of `ibp-gnn` that make and read store files: build, info, verify, extract."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .command_error import CommandError
from .messages import explained

if TYPE_CHECKING:
    import numpy as np

    from ..store.file.reading import StoreFile

_EXTRACT_BYTES = 64 << 20


def add_to(subparsers: Any) -> None:
    build = subparsers.add_parser(
        "build",
        help="compress the features in a file into a store file",
        description="Compresses an array [rows, columns, ...] into a store file, in bounded memory. Run the same "
        "command again after it was interrupted, and it goes on where it was. Beside STORE, files named STORE.partial, "
        ".journal and (with --order) .sorted are there meanwhile. A STORE that exists is never replaced: remove it "
        "first.",
    )
    build.add_argument(
        "features", type=Path, metavar="FILE", help=".npy (read piece by piece), .npz, .pt or .safetensors"
    )
    build.add_argument("store", type=Path, metavar="STORE", help="the file to make, by convention *.ibp")
    build.add_argument("--key", metavar="NAME", help="which array, if FILE holds several")
    build.add_argument("--codec", default="auto", help="auto (default), dict or ibp")
    build.add_argument(
        "--layout",
        choices=("compact", "inplace", "packed", "auto"),
        default="compact",
        help="default: compact; packed: rows end to end, which cannot be updated; auto: packed if it saves 15%% more",
    )
    build.add_argument(
        "--order",
        type=Path,
        metavar="HOTNESS.npy",
        help="[rows] numbers: rows with the highest lie first (ties: lower id)",
    )
    build.add_argument("--chunk-rows", type=int, metavar="N", help="rows in memory at a time (default: 24 MiB of them)")
    build.add_argument(
        "--precision",
        choices=("bf16", "fp16", "fp8_e4m3", "fp8_e5m2"),
        help="LOSSY: round values to it first (default: lossless); load(path, lossy=True) opens such a store",
    )
    build.add_argument("--quiet", action="store_true", help="no progress bars")
    build.set_defaults(run=_run_build)

    info = subparsers.add_parser("info", help="what is in a store file?", description="Reads a store file's header.")
    info.add_argument("store", type=Path, metavar="STORE")
    info.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    info.set_defaults(run=_run_info)

    verify = subparsers.add_parser(
        "verify", help="is a store file whole?", description="Compares every checksum; says where the first damage is."
    )
    verify.add_argument("store", type=Path, metavar="STORE")
    verify.add_argument("--quiet", action="store_true", help="no progress bar")
    verify.set_defaults(run=_run_verify)

    extract = subparsers.add_parser(
        "extract",
        help="decompress rows of a store file into a .npy file",
        description="Writes rows as they were, bit for bit. NumPy has no bfloat16 and no float8: their bits are "
        "written as uint16 and uint8, for torch.from_numpy(np.load(OUT)).view(torch.bfloat16).",
    )
    extract.add_argument("store", type=Path, metavar="STORE")
    extract.add_argument("out", type=Path, metavar="OUT.npy")
    extract.add_argument(
        "--ids", type=Path, metavar="IDS.npy", help="[n] integers: which rows, in this order (default: all)"
    )
    extract.add_argument("--force", action="store_true", help="replace OUT.npy if it is there")
    extract.add_argument("--quiet", action="store_true", help="no progress bar")
    extract.set_defaults(run=_run_extract)


def _run_build(arguments: argparse.Namespace) -> None:
    from ..datasets.array_files import load_rows
    from ..store.build import Job
    from ..store.file.building import build_file

    path = arguments.store
    if path.is_dir() or not path.parent.is_dir():
        raise CommandError(f"STORE: want a file in an existing folder, got {path}")
    with explained("reading features", arguments.features):
        features = load_rows(arguments.features, arguments.key)
        stat = arguments.features.stat()
        source = {
            "file": os.fspath(arguments.features.absolute()),
            "bytes": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
            "key": arguments.key,
            "dtype": str(features.dtype),
        }
    order = None if arguments.order is None else _order(arguments.order, len(features))
    if path.exists():
        raise CommandError(
            f"{path}: want a path where nothing is, got an existing file; to replace it, remove it first, or build "
            "under another name"
        )
    with explained(f"building {path}", path):
        progress = False if arguments.quiet else None
        options = arguments.codec, arguments.layout, order, arguments.chunk_rows, progress, arguments.precision
        said = build_file(Job.check(features, *options), path, source)
        if said:
            print(said)
    _run_info(argparse.Namespace(store=path, json=False))


def _order(path: Path, num_rows: int) -> np.ndarray:
    """int32 [num_rows], hottest first."""
    import numpy as np

    from ..store.order import hottest_first

    scores = _load_vector(path, "--order")
    with explained("reading --order", path):
        return hottest_first(scores, num_rows).numpy().astype(np.int32)


def _load_vector(path: Path, option: str) -> np.ndarray:
    import numpy as np

    with explained(f"reading {option}", path):
        try:
            vector = np.load(path, mmap_mode="c", allow_pickle=False)
        except (ValueError, EOFError) as error:
            # Without NumPy's words, which advise to load the file in a way that runs its code.
            raise CommandError(f"{option}: want a .npy file of numbers, got {path}, which is none") from error
    if not isinstance(vector, np.ndarray) or vector.ndim != 1 or vector.dtype.kind not in "iufb":
        got = f"{list(vector.shape)} {vector.dtype}" if isinstance(vector, np.ndarray) else "another file"
        raise CommandError(f"{option}: want [n] numbers in {path}, got {got}")
    return vector


def _run_info(arguments: argparse.Namespace) -> None:
    from ..store.file.reading import StoreFile

    with explained("reading a store", arguments.store), StoreFile(arguments.store) as file:
        record = _describe(file)
    if arguments.json:
        print(json.dumps(record, indent=1))
        return
    shape = ", ".join(str(size) for size in record["shape"])
    lossy = "" if record["precision"] is None else f"LOSSY {record['precision']}, "
    lie = f"{record['layout']} slots of {record['slot_bytes']} bytes, {record['num_overflow']} overflow rows"
    if record["layout"] == "packed":
        lie = f"packed rows of up to {record['slot_bytes']} bytes"
    print(
        f"{arguments.store}: [{shape}] {record['dtype']}, {lossy}codec {record['codec']!r}, {lie}, "
        f"{'hottest rows first' if record['ordered'] else 'in the order of ids'}\n"
        f"{record['file_bytes']} bytes instead of {record['raw_bytes']}: savings {record['savings']:.1%}\n"
        f"version {record['version']} of store files, version {record['row_version']} of compressed rows"
    )


def _describe(file: StoreFile) -> dict[str, Any]:
    from .. import _native
    from ..store.file.header import VERSION

    header = file.header
    raw_bytes = header.num_rows * header.row_bytes
    layout = "compact" if header.slot_bytes < header.row_bytes else "inplace"
    return {
        "version": VERSION,  # of the file
        "row_version": _native.cpu.FORMAT_VERSION,  # of the compressed rows in it
        "shape": [header.num_rows, *header.row_shape],
        "dtype": str(header.dtype).removeprefix("torch."),
        "precision": None if header.precision is None else header.precision.name,  # LOSSY
        "codec": header.codec_kind,
        "codec_parameters": header.codec_parameters,
        "layout": layout if header.packing is None else "packed",
        "slot_bytes": header.slot_bytes,
        "lead_bytes": header.lead_bytes,
        "num_overflow": header.num_overflow,
        "ordered": header.ordered,
        "block_bytes": header.block_bytes,
        "num_blocks": header.num_blocks,
        "sections": {name: section.nbytes for name, section in header.sections.items()},
        "file_bytes": header.file_bytes,
        "raw_bytes": raw_bytes,
        "savings": 1 - header.file_bytes / raw_bytes if raw_bytes else 0.0,
    }


def _run_verify(arguments: argparse.Namespace) -> None:
    from ..store.file.reading import StoreFile

    with explained("reading a store", arguments.store), StoreFile(arguments.store) as file:
        file.check(progress=False if arguments.quiet else None)
        file.codec()
        file.slot_of()
        print(f"{arguments.store}: whole, {file.header.num_blocks} blocks, {file.header.file_bytes} bytes")


def _run_extract(arguments: argparse.Namespace) -> None:
    import numpy as np
    import torch
    from tqdm import tqdm

    from ..store.feature_store import CompressedFeatureStore
    from ..store.file.file_io import replacing
    from ..store.file.writing import check_space

    if arguments.out.is_dir() or not arguments.out.parent.is_dir() or arguments.out.suffix != ".npy":
        raise CommandError(f"OUT: want a file named *.npy in an existing folder, got {arguments.out}")
    if arguments.out.exists() and not arguments.force:
        raise CommandError(f"OUT: want a path where nothing is, or --force to replace it, got {arguments.out}")
    ids = None if arguments.ids is None else _load_vector(arguments.ids, "--ids")
    if ids is not None and ids.dtype not in (np.int32, np.int64):
        raise CommandError(f"--ids: want int32 or int64, got {ids.dtype}")
    with explained("reading a store", arguments.store):
        opened = CompressedFeatureStore.load(arguments.store, pin=False, verify="read", lossy=True)
    with explained(f"extracting to {arguments.out}", arguments.out), opened as store:
        num_rows = len(store) if ids is None else len(ids)
        bits = {torch.bfloat16: np.uint16, torch.float8_e4m3fn: np.uint8, torch.float8_e5m2: np.uint8}.get(store.dtype)
        dtype = np.dtype(bits if bits is not None else str(store.dtype).removeprefix("torch."))
        step = max(1, _EXTRACT_BYTES // store.codec.row_bytes)
        check_space(arguments.out, num_rows * store.codec.row_bytes)
        with (
            replacing(arguments.out) as out,
            tqdm(total=num_rows, desc="extracting", unit="row", disable=arguments.quiet or None) as bar,
        ):
            shape = (num_rows, *store.codec.row_shape)
            about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(out, about)
            for first in range(0, num_rows, step):
                count = min(step, num_rows - first)
                if ids is None:
                    part: Any = torch.arange(first, first + count, device="cpu")
                else:
                    part = np.array(ids[first : first + count])
                out.write(store.gather(part).view(-1).view(torch.uint8).numpy().data)
                bar.update(count)
        said = "" if bits is None else f", the bits of {str(store.dtype).removeprefix('torch.')}"
        if store.precision is not None:
            said += f", {store.precision}: values were rounded before they were compressed"
        print(f"{arguments.out}: {list(shape)} {dtype}{said}")
