"""Frozen dataclass configs from YAML; unknown keys, wrong types and bad values are refused by full path.

A config is a frozen dataclass whose fields are bool, int, float, str, None, `Literal`, unions of these,
`tuple[X, ...]` or other such dataclasses. `load` reads one from a YAML file plus `a.b=c` overrides:

    @dataclass(frozen=True)
    class Train:
        lr: float = setting(3e-3, gt=0)

    config = load(Train, "train.yaml", ["lr=1e-3"])
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

T = TypeVar("T")

_BOUNDS = {
    "ge": (">=", lambda value, bound: value >= bound),
    "gt": (">", lambda value, bound: value > bound),
    "le": ("<=", lambda value, bound: value <= bound),
    "lt": ("<", lambda value, bound: value < bound),
}


# Of two names, from 0 to 1: one letter of four may be wrong. Below that a list of all names helps more than a guess.
_NEAR = 0.75


class ConfigError(ValueError):
    """A config that cannot be used; the message has the dotted path, what is wanted and what was got."""


def setting(default: Any = dataclasses.MISSING, **bounds: float) -> Any:
    """A dataclass field with bounds: `ge`, `gt`, `le`, `lt`. In a tuple every item must respect them."""
    unknown = bounds.keys() - _BOUNDS.keys()
    if unknown:
        raise TypeError(f"setting: want bounds among {sorted(_BOUNDS)}, got {sorted(unknown)}")
    return dataclasses.field(default=default, metadata={"bounds": bounds})


def load(cls: type[T], path: str | Path | None = None, overrides: Iterable[str] = ()) -> T:
    """Build `cls` from a YAML file (None: defaults only) and `a.b=value` overrides, later ones winning.

    Raises ConfigError for anything that does not fit `cls`, for broken YAML and for an unreadable file.
    """
    data: Any = {}
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot read the config: {error}") from error
        data = _parse_yaml(text, str(path))
        # An empty file is a config of defaults.
        data = {} if data is None else data
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: want a mapping of settings, got {_describe(data)}")
    for override in overrides:
        _apply_override(data, override)
    return from_dict(cls, data)


def from_dict(cls: type[T], data: Mapping[str, Any], path: str = "") -> T:
    """Build the dataclass `cls` from nested mappings; `path` is put in front of the keys in messages."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path or 'config'}: want a mapping of settings, got {_describe(data)}")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in data.items():
        full = _join(path, key)
        if key not in fields:
            raise ConfigError(f"unknown setting {full!r}{_nearest(key, path, fields)}")
        values[key] = _convert(value, hints[key], full)
        _check_bounds(values[key], fields[key].metadata.get("bounds", {}), full)
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise ConfigError(f"missing setting {_join(path, name)!r}: want {_type_name(hints[name])}")
    return cls(**values)


def to_dict(config: Any) -> dict[str, Any]:
    """The config as plain nested dicts and lists, ready for JSON or YAML; `from_dict` reads it back."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"to_dict: want a dataclass instance, got {config!r}")
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads 1e-3 as a float and refuses a key that is written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            # Only scalars: complex keys and anchors' merges are left to PyYAML, whose errors are good.
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                if key_node.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key_node.value!r} is written twice", key_node.start_mark
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


# PyYAML follows YAML 1.1, where 1e-3 (no dot) is a string; a learning rate must not depend on that.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    # ValueError: what a scalar's own constructor raises, for 2024-13-45 for instance.
    except (yaml.YAMLError, ValueError) as error:
        problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
        line = "" if mark is None else f"line {mark.line + 1}: "
        raise ConfigError(f"{where}: not valid YAML: {line}{problem or str(error).splitlines()[0]}") from error


def _apply_override(data: dict[str, Any], override: str) -> None:
    """Put `a.b=value` into the nested dict. The value is YAML: `null`, `[5, 5]`, `3e-3` have their types."""
    key, separator, text = override.partition("=")
    names = key.strip().split(".")
    if not separator or not all(names):
        raise ConfigError(f"override: want name=value or section.name=value, got {override!r}")
    section = data
    for depth, name in enumerate(names[:-1], start=1):
        section = section.setdefault(name, {})
        if not isinstance(section, dict):
            raise ConfigError(f"override {override!r}: {'.'.join(names[:depth])!r} is not a section of settings")
    section[names[-1]] = _parse_yaml(text, f"override {override!r}")


def _convert(value: Any, want: Any, path: str) -> Any:
    """`value` as the type `want`; nothing is guessed, but an int may stand for a float."""
    origin, arguments = typing.get_origin(want), typing.get_args(want)
    if dataclasses.is_dataclass(want):
        return from_dict(typing.cast(type, want), value, path)
    if origin is Literal:
        # True == 1 in Python: compare types as well.
        if any(value == choice and type(value) is type(choice) for choice in arguments):
            return value
    elif origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return _convert(value, option, path)
            except ConfigError:
                continue
    elif origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        if isinstance(value, (list, tuple)):
            return tuple(_convert(item, arguments[0], f"{path}[{i}]") for i, item in enumerate(value))
    elif want is float and type(value) in (int, float):
        if math.isfinite(value):
            return float(value)
    elif type(value) is want or (want is types.NoneType and value is None):
        return value
    raise ConfigError(f"{path}: want {_type_name(want)}, got {_describe(value)}")


def _check_bounds(value: Any, bounds: Mapping[str, float], path: str) -> None:
    if isinstance(value, tuple):
        for i, item in enumerate(value):
            _check_bounds(item, bounds, f"{path}[{i}]")
    elif type(value) in (int, float):
        for name, bound in bounds.items():
            symbol, holds = _BOUNDS[name]
            if not holds(value, bound):
                raise ConfigError(f"{path}: want a value {symbol} {bound}, got {value}")


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _nearest(key: Any, path: str, names: Iterable[str]) -> str:
    names = sorted(names)
    close = difflib.get_close_matches(str(key), names, n=1, cutoff=_NEAR)
    if close:
        return f"; did you mean {_join(path, close[0])!r}?"
    return f"; known here: {', '.join(names)}"


def _type_name(want: Any) -> str:
    origin, arguments = typing.get_origin(want), typing.get_args(want)
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_name(option) for option in arguments)
    if origin is tuple:
        return f"a list of {_type_name(arguments[0])}"
    if want is float:
        return "a finite float"
    return "null" if want is types.NoneType else getattr(want, "__name__", str(want))


def _describe(value: Any) -> str:
    return "null" if value is None else f"{value!r} ({type(value).__name__})"
