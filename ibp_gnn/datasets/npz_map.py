"""One array of a .npz file without reading the file into memory."""

from __future__ import annotations

import os
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np

# Fixed part of the header in front of each member (the ZIP specification, 4.3.7), and where it has the lengths of the
# name and of the extra field that follow it.
_HEADER_BYTES, _LENGTHS_AT = 30, 26
_COPY_BYTES = 16 << 20


def map_npz_array(path: Path, name: str, extracted: Path) -> np.ndarray:
    """Returns array `name` of the .npz file `path`, memory-mapped, read-only; no byte of it is read yet.

    An array that `np.savez` wrote is mapped where it lies. One from `np.savez_compressed` cannot be: it is unpacked
    once, in bounded memory, into the file `extracted` (as large as the array; it replaces an older one, and it is
    there either as a whole or not at all).
    Raises KeyError if there is no such array, ValueError or zipfile.BadZipFile for a damaged file, OSError if `path`
    cannot be read or `extracted` cannot be written.
    """
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{name}.npy")
        if member.compress_type == zipfile.ZIP_STORED:
            return _map_at(path, _data_offset(path, member))
        if not _is_fresh(extracted, path, member.file_size):
            extracted.parent.mkdir(parents=True, exist_ok=True)
            partial = extracted.with_name(extracted.name + ".partial")
            with archive.open(member) as source, open(partial, "wb") as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)  # checks the CRC at the end
            os.replace(partial, extracted)
    return np.load(extracted, mmap_mode="r", allow_pickle=False)


def _is_fresh(extracted: Path, path: Path, size: int) -> bool:
    try:
        status = extracted.stat()
    except FileNotFoundError:
        return False
    return status.st_size == size and status.st_mtime_ns >= path.stat().st_mtime_ns


def _data_offset(path: Path, member: zipfile.ZipInfo) -> int:
    with open(path, "rb") as file:
        file.seek(member.header_offset)
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES or header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"{path}: want the header of {member.filename} at {member.header_offset}")
    name_bytes, extra_bytes = struct.unpack_from("<HH", header, _LENGTHS_AT)
    return member.header_offset + _HEADER_BYTES + name_bytes + extra_bytes


def _map_at(path: Path, offset: int) -> np.ndarray:
    with open(path, "rb") as file:
        file.seek(offset)
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"{path}: want an array of .npy version 1.0 or 2.0, got {version}")
        start = file.tell()
    if dtype.hasobject:
        raise ValueError(f"{path}: want an array of numbers, got {dtype}")
    if 0 in shape:
        return np.zeros(shape, dtype)  # nothing to map
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran_order else "C")
