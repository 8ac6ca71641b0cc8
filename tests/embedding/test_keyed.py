from __future__ import annotations

import sys
import types

import pytest
import torch

from ibp_gnn.embedding.keyed import as_keyed_bags, is_keyed_jagged, keyed_tensor


class Jagged:
    """The methods of torchrec's KeyedJaggedTensor that are used."""

    def __init__(self, keys, values, lengths, weights=None):
        self._parts = keys, values, lengths, weights

    def keys(self):
        return self._parts[0]

    def values(self):
        return self._parts[1]

    def lengths(self):
        return self._parts[2]

    def offsets(self):
        return torch.cat([torch.zeros(1, dtype=torch.int64), self._parts[2].cumsum(0)])

    def weights_or_none(self):
        return self._parts[3]


def test_keyed_jagged():
    given = Jagged(["a", "b"], torch.arange(5), torch.tensor([2, 1, 0, 2]), torch.ones(5).half())
    assert is_keyed_jagged(given)
    keyed = as_keyed_bags(given)
    assert keyed.keys == ("a", "b") and keyed.given is given and keyed.bags.num_bags == 2
    assert keyed.bags.offsets is not None and keyed.bags.offsets.tolist() == [0, 2, 3, 3, 5]
    assert keyed.bags.weights is not None and keyed.bags.weights.dtype == torch.float32
    assert keyed.bags.of_feature(1).ids.tolist() == [3, 4]
    with pytest.raises(ValueError, match="as many bags of each key, got 3 for 2 keys"):
        as_keyed_bags(Jagged(["a", "b"], torch.arange(5), torch.tensor([2, 1, 2])))
    with pytest.raises(TypeError, match="values: want int32 or int64, got torch.float32"):
        as_keyed_bags(Jagged(["a"], torch.ones(2), torch.tensor([2])))


def test_plain_tensors():
    keyed = as_keyed_bags({"a": torch.tensor([[1, 2], [3, 4]]), "b": (torch.tensor([5, 6, 7]), torch.tensor([0, 1]))})
    assert keyed.bags.ids.tolist() == [1, 2, 3, 4, 5, 6, 7] and keyed.bags.num_bags == 2
    assert keyed.bags.offsets is not None and keyed.bags.offsets.tolist() == [0, 2, 4, 5]
    even = as_keyed_bags({"a": torch.tensor([[1, 2]]), "b": torch.tensor([[3, 4]])})
    assert even.bags.offsets is None and (even.bags.bag_ids, even.bags.num_bags) == (2, 1)
    assert not is_keyed_jagged({"a": 1})


@pytest.mark.parametrize(
    ("features", "error", "message"),
    [
        ([torch.arange(3)], TypeError, "want a KeyedJaggedTensor, or a mapping"),
        ({}, ValueError, "want at least 1, got none"),
        ({"a": torch.arange(3)}, ValueError, r"features\['a'\]: want offsets for ids that are not 2D"),
        ({"a": "x"}, TypeError, r"features\['a'\]: want ids, \(ids, offsets\)"),
        ({"a": (torch.arange(3),) * 4}, TypeError, r"features\['a'\]: want ids"),
        ({"a": torch.ones(1, 2)}, TypeError, r"features\['a'\]: want int32 or int64, got torch.float32"),
        ({"a": (torch.zeros(1, 3).long(), torch.zeros(1).long())}, ValueError, "want 1D ids and offsets"),
        ({"a": (torch.arange(3), torch.tensor([1]))}, ValueError, r"offsets of features\['a'\]: want 0 to 3"),
        ({"a": (torch.arange(3), torch.tensor([0, 4]))}, ValueError, "not falling"),
        ({"a": (torch.arange(3), torch.tensor([0, 2, 1]))}, ValueError, "not falling"),
        (
            {"a": (torch.arange(3), torch.tensor([0]), torch.ones(2))},
            ValueError,
            r"weights of features\['a'\]: want the shape of the ids, \[3\], got \[2\]",
        ),
        (
            {"a": torch.zeros(1, 2).long(), "b": torch.zeros(2, 2).long()},
            ValueError,
            "equally many bags of each, got {'a': 1, 'b': 2}",
        ),
        (
            {"a": (torch.arange(1), torch.tensor([0]), torch.ones(1)), "b": torch.zeros(1, 1).long()},
            ValueError,
            "weights of all or none",
        ),
    ],
)
def test_other_features_are_refused(features, error, message):
    with pytest.raises(error, match=message):
        as_keyed_bags(features)


def test_a_keyed_tensor_of_the_same_library(monkeypatch):
    values = torch.arange(10).view(2, 5)
    given = Jagged(["a"], torch.arange(2), torch.tensor([1, 1]))
    views = keyed_tensor(given, ("a", "b"), (2, 3), values)
    assert views["b"].tolist() == [[2, 3, 4], [7, 8, 9]] and views["b"].data_ptr() == values[:, 2:].data_ptr()

    class KeyedTensor:
        def __init__(self, keys, length_per_key, values):
            self.parts = keys, length_per_key, values

    library = types.ModuleType("library")
    library.KeyedTensor = KeyedTensor
    monkeypatch.setitem(sys.modules, "library", library)
    own = type("KeyedJaggedTensor", (Jagged,), {"__module__": "library"})(*given._parts)
    made = keyed_tensor(own, ("a", "b"), (2, 3), values)
    assert isinstance(made, KeyedTensor) and made.parts == (["a", "b"], [2, 3], values)
