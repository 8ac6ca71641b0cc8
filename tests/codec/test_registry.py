"""A form in the registry is all that a codec needs in Python."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from ibp_gnn import Codec, CompressedFeatureStore, FormatError, _native
from ibp_gnn.codec.ibp import IbpForm
from ibp_gnn.codec.registry import FORMS
from ibp_gnn.testing import assert_bitwise_equal


class OtherForm(IbpForm):
    """Codec "ibp" under another name; GPUs fetch its payloads at once."""

    kind: ClassVar[str] = "other"
    fit_options: ClassVar[tuple[str, ...]] = ()
    shown: ClassVar[tuple[str, ...]] = ("mask",)
    fetches_once: ClassVar[bool] = True  # type: ignore[misc]

    @functools.cached_property
    def native(self) -> Any:
        return _native.cpu.codec("ibp", **self.native_parameters())

    @classmethod
    def fit(cls, sample, options):
        assert options == {}
        fitted = IbpForm.fit(sample, {"word_bits": 8, "words_per_chunk": 4, "threshold": 0.9})
        return cls(**fitted.parameters(), **fitted.tables())


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    monkeypatch.setitem(FORMS, "other", OtherForm)
    return torch.randint(0, 40, (300, 16), generator=torch.Generator().manual_seed(0), dtype=torch.int32)


def test_a_form_in_the_registry_is_a_codec(rows: torch.Tensor, tmp_path: Path) -> None:
    codec = Codec.fit(rows, codec="other")
    assert codec.kind == "other" and repr(codec).endswith("'other', word_bits=8, words_per_chunk=4, threshold=0.9)")
    assert codec.report(rows).codec == "other" and codec.report(rows).escape_share is None
    assert_bitwise_equal(codec.decompress(codec.compress(rows)), rows)
    with CompressedFeatureStore.build(rows, "other", progress=False) as store:
        lengths = codec.measure(rows)
        assert store.lead_bytes == int(lengths[lengths <= store.slot_bytes].max()), "it fetches once"
        store.save(tmp_path / "s.ibp")
    with CompressedFeatureStore.load(tmp_path / "s.ibp", mmap=False) as loaded:
        assert type(loaded.codec.form) is OtherForm
        loaded.update(torch.arange(3), rows[3:6])
        assert_bitwise_equal(loaded.gather(torch.arange(300)), torch.cat([rows[3:6], rows[3:]]))


def test_what_a_form_lacks_is_refused(rows: torch.Tensor) -> None:
    codec = Codec.fit(rows, codec="other")
    assert codec.mask.any()
    with pytest.raises(AttributeError, match="only codec 'ibp' has this attribute; this is codec 'other'"):
        codec.threshold  # noqa: B018
    with pytest.raises(AttributeError, match="only codec 'ibp' and 'other' has"):
        Codec.fit(rows, codec="dict").mask  # noqa: B018
    with pytest.raises(ValueError, match="threshold: want None with codec 'other', which has none"):
        Codec.fit(rows, codec="other", threshold=0.8)
    with pytest.raises(ValueError, match=r"want one of \['auto', 'dict', 'ibp', 'other'\], got 'xor'"):
        Codec.fit(rows, codec="xor")


def test_a_file_of_an_unknown_codec_is_refused(
    rows: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CompressedFeatureStore.build(rows, "other", progress=False).save(tmp_path / "s.ibp")
    monkeypatch.delitem(FORMS, "other")
    with pytest.raises(FormatError, match=r"codec: want one of \['dict', 'ibp'\], got 'other'"):
        CompressedFeatureStore.load(tmp_path / "s.ibp")
