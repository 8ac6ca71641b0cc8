"""Forms: pickles, attributes of their codecs, tables on a GPU."""

from __future__ import annotations

import pickle

import pytest
import torch
from backends import dict_backend
from dict_cases import Parts, assert_same_form, some_form

from ibp_gnn import Codec, _native
from ibp_gnn.testing import assert_bitwise_equal, special_rows
from ibp_gnn.testing.oracle_dict import Cut

backend = dict_backend  # with AVX-512


def test_attributes_of_codec_ibp_are_refused():
    codec = Codec.fit(torch.randn(40, 8), codec="dict")
    assert codec.kind == "dict"
    for name in ("mask", "bitval", "threshold", "word_bits", "words_per_chunk"):
        with pytest.raises(AttributeError, match="only codec 'ibp' has this attribute; this is codec 'dict'"):
            getattr(codec, name)
        assert not hasattr(codec, name)
    assert "'dict', num_values=8, value_bits=32, symbol_bits=8" in repr(codec) and "dictionary" not in repr(codec)


def test_codecs_can_be_pickled(backend):
    rows = special_rows(torch.float16, 33, "outliers").to(backend)
    codec = Codec.fit(rows, codec="dict")
    compressed = codec.compress(rows)  # the extension's own form of the codec exists by now
    copy = pickle.loads(pickle.dumps(codec))
    assert len(pickle.dumps(codec)) < 2500
    assert (copy.dtype, copy.row_shape, copy.kind) == (torch.float16, (33,), "dict")
    assert repr(copy) == repr(codec)
    assert_same_form(copy.form, codec.form)
    assert_bitwise_equal(copy.decompress(compressed), rows)
    assert_bitwise_equal(copy.compress(rows).slots, compressed.slots)


@pytest.mark.cuda
def test_a_cache_holds_no_tables_for_encoding():
    form = some_form(Parts(Cut(8, True), 3, False, True, 0), 32, 33, seed=0)
    device = torch.device("cuda", torch.cuda.current_device())
    of_gathers, of_encoders = form.on_device(device), form.on_device(device, encoder=True)
    assert of_gathers.tables.nbytes == form.device_nbytes == 33 * (16 + 8)
    assert of_encoders.tables.nbytes == form.device_nbytes + 33 * 256 + 256
    rows, lengths = torch.zeros(2, form.row_bytes, dtype=torch.uint8, device=device), torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match="codec: want one with code_of_symbol, got one without"):
        _native.cuda().measure(of_gathers.native, rows, lengths.to(device), 0)
