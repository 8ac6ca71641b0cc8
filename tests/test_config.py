"""Configs: what is accepted, and what each refusal says."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from ibp_gnn.config import ConfigError, from_dict, load, setting, to_dict


@dataclass(frozen=True)
class Inner:
    rate: float = setting(0.5, ge=0, lt=1)
    sizes: tuple[int, ...] = setting((1, 2), ge=-1)
    kind: Literal["a", "b"] = "a"
    capacity: int | float | str | None = None
    verbose: bool = False


@dataclass(frozen=True)
class Outer:
    name: str
    count: int = setting(1, ge=1, le=100)
    inner: Inner = field(default_factory=Inner)


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_file_and_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, "name: x\ncount: 3\ninner: {rate: 1.0e-1, kind: b}\n")
    config = load(Outer, path, ["count=4", "inner.sizes=[3, -1]", "inner.rate=2e-1", "inner.capacity=4GB"])
    assert config == Outer("x", 4, Inner(0.2, (3, -1), "b", "4GB"))
    with pytest.raises(FrozenInstanceError):
        config.count = 5  # type: ignore[misc]


def test_the_last_override_wins() -> None:
    assert load(Outer, None, ["name=x", "name=y"]).name == "y"


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.e-3", ".001", "1.0e-3", "+1e-3"])
def test_every_way_to_write_a_float(text: str) -> None:
    rate = load(Outer, None, ["name=x", f"inner.rate={text}"]).inner.rate
    assert rate == 1e-3 and type(rate) is float


def test_an_int_stands_for_a_float_and_null_is_a_value() -> None:
    config = load(Outer, None, ["name=x", "inner.rate=0", "inner.capacity=null"])
    assert type(config.inner.rate) is float
    assert config.inner.capacity is None


def test_an_empty_file_means_defaults(tmp_path: Path) -> None:
    assert load(Inner, write(tmp_path, "# nothing\n")) == Inner()


def test_round_trip_through_json() -> None:
    config = load(Outer, None, ["name=x", "inner.sizes=[7]", "inner.capacity=0.25"])
    assert from_dict(Outer, json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("inner.ratte=1", r"unknown setting 'inner\.ratte'; did you mean 'inner\.rate'\?"),
        ("iner.rate=1", r"unknown setting 'iner'; did you mean 'inner'\?"),
        ("zzz=1", r"unknown setting 'zzz'; known here: count, inner, name"),
        ("mount=1", r"unknown setting 'mount'; did you mean 'count'"),
        ("amount=1", r"unknown setting 'amount'; known here: count, inner, name"),
        ("count=1.5", r"count: want int, got 1\.5 \(float\)"),
        ("count=true", r"count: want int, got True \(bool\)"),
        ("count='3'", r"count: want int, got '3' \(str\)"),
        ("count=null", r"count: want int, got null"),
        ("count=", r"count: want int, got null"),
        ("name=3", r"name: want str, got 3 \(int\)"),
        ("inner=3", r"inner: want a mapping of settings, got 3 \(int\)"),
        ("inner.kind=c", r"inner\.kind: want one of 'a', 'b', got 'c' \(str\)"),
        ("inner.verbose=1", r"inner\.verbose: want bool, got 1 \(int\)"),
        ("inner.sizes=3", r"inner\.sizes: want a list of int, got 3 \(int\)"),
        ("inner.sizes=[1, x]", r"inner\.sizes\[1\]: want int, got 'x' \(str\)"),
        ("inner.capacity=[1]", r"inner\.capacity: want int or a finite float or str or null, got \[1\] \(list\)"),
        ("inner.rate=.nan", r"inner\.rate: want a finite float, got nan"),
        ("count=0", r"count: want a value >= 1, got 0"),
        ("count=101", r"count: want a value <= 100, got 101"),
        ("inner.rate=1.0", r"inner\.rate: want a value < 1, got 1\.0"),
        ("inner.sizes=[5, -2]", r"inner\.sizes\[1\]: want a value >= -1, got -2"),
        ("count", r"override: want name=value or section\.name=value, got 'count'"),
        ("=3", r"override: want name=value"),
        ("a..b=3", r"override: want name=value"),
        ("count.x=3", r"override 'count\.x=3': 'count' is not a section of settings"),
        ("count=[1", r"override 'count=\[1': not valid YAML"),
        ("count=2024-13-45", r"override 'count=2024-13-45': not valid YAML"),
    ],
)
def test_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(Outer, write(tmp_path, "name: x\ncount: 3\n"), [override])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", r"config\.yaml: want a mapping of settings, got \[1\] \(list\)"),
        ("name: [\n", r"^[^<]*config\.yaml: not valid YAML: line 2: expected[^\n]*$"),
        ("name: x\nname: y\n", r"the key 'name' is written twice"),
        ("name: x\ninner:\n", r"inner: want a mapping of settings, got null"),
        ("name: x\n7: y\n", r"unknown setting '7'"),
        ("name: !!python/name:os.system\n", r"not valid YAML"),
    ],
)
def test_files_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(Outer, write(tmp_path, text))


def test_missing_file_and_missing_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot read the config"):
        load(Outer, tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="missing setting 'name': want str"):
        load(Outer, None, ["count=2"])


def test_a_misspelt_bound_is_the_programmers_error() -> None:
    with pytest.raises(TypeError, match=r"want bounds among .* got \['minimum'\]"):
        setting(1, minimum=0)
