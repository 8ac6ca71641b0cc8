"""Ranks compare their stores."""

from __future__ import annotations

from pathlib import Path

import pytest
import rank_processes
import torch
from update_rows import fitting, raw

from ibp_gnn import CompressedFeatureStore
from ibp_gnn.distributed.agreement import describe, fingerprint, require_same, require_same_store

PROGRAM = str(Path(__file__).parent / "agreeing_ranks.py")


def test_two_ranks(tmp_path: Path) -> None:
    done = rank_processes.run([[PROGRAM]] * 2, tmp_path)
    assert [status for status, *_ in done] == [0, 0], done
    first, second = ([*output.splitlines()] for _, output, _ in done)
    assert first == second, "all ranks say the same"
    same, rows, codec, order, found = first
    assert same == "the same"
    for different in (rows, codec, order):
        assert different.startswith("store: want the same on all ranks, got ranks [0]: ")
        assert "; ranks [1]: " in different
    with CompressedFeatureStore.build(fitting(), "ibp", progress=False) as store:
        assert fingerprint(store) == found
    failed, failing = (errors for *_, errors in done)
    assert "store: rank 1 has none to compare: ValueError: this CompressedFeatureStore is closed" in failed
    assert "\nthis CompressedFeatureStore is closed" in f"\n{failing}"


@pytest.mark.parametrize("codec", ["ibp", "dict"])
def test_a_fingerprint_is_of_the_content(tmp_path: Path, codec: str) -> None:
    rows = torch.cat([fitting(1000), raw(20)])
    with CompressedFeatureStore.build(rows, codec, progress=False) as store:
        assert store.rows.num_overflow > 0
        found = fingerprint(store)
        store.save(tmp_path / "x.ibp")
        for options in ({}, {"mmap": False}, {"verify": "read"}):
            with CompressedFeatureStore.load(tmp_path / "x.ibp", **options) as loaded:
                assert fingerprint(loaded) == found
        store.update(torch.tensor([999]), rows[:1])
        assert fingerprint(store) != found
    with pytest.raises(ValueError, match="closed"):
        fingerprint(store)


@pytest.mark.parametrize("codec", ["ibp", "dict"])
def test_a_description_is_of_what_decodes(codec: str) -> None:
    rows = torch.rand(2000, 32) + 1
    stores = [CompressedFeatureStore.build(part, codec, progress=False) for part in (rows, rows.flip(0), 16 * rows)]
    one, same, other = (describe(store) for store in stores)
    assert one == same
    assert stores[0].codec.form.parameters() == stores[2].codec.form.parameters()
    assert stores[0].slot_bytes == stores[2].slot_bytes and one != other, "tables differ"
    for store in stores:
        store.close()


def test_every_byte_counts() -> None:
    """Parts of many megabytes are compared in pieces, on several threads."""
    with CompressedFeatureStore.build(torch.zeros(1 << 14, 2048), progress=False, layout="inplace") as store:
        slots = store.rows.slots
        found = {fingerprint(store)}
        for position in (0, len(slots) // 2, store.rows.num_rows * store.slot_bytes - 1):
            slots[position] ^= 1
            found.add(fingerprint(store))
        slots[store.rows.num_rows * store.slot_bytes] ^= 1  # slack
        found.add(fingerprint(store))
    assert len(found) == 4


def test_without_a_process_group() -> None:
    with CompressedFeatureStore.build(fitting(), progress=False) as store:
        require_same_store(store)
    require_same("anything", "what")
