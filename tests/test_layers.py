"""The folders of ibp_gnn are layers: nothing imports what lies above it, and no import goes in a circle."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import ibp_gnn

PACKAGE = Path(ibp_gnn.__file__).parent
# From the lowest. What stands in one line knows nothing of its neighbours.
LAYERS = [
    {"errors", "_extension", "_install", "_lazy", "_renamed", "concurrency", "config"},
    {"_native"},
    {"codec", "packing"},
    {"store"},
    {"gpu"},
    {"distributed"},
    {"embedding", "integrations", "offload", "testing"},
    {"distdgl", "graphbolt", "hotness", "pyg", "wholegraph"},  # public modules
    {"datasets"},
    {"training", "command"},
    {"__main__"},
]
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}


def module_of(file: Path) -> tuple[str, ...]:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


MODULES = {module_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def imports(module: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line and module of what `module` imports of the package, by `from` or `import`, within functions too, and what
    only type checkers see."""
    file = MODULES[module]
    package = module if file.name == "__init__.py" else module[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "ibp_gnn":
                    yield node.lineno, nearest(tuple(alias.name.split(".")[1:]))
        elif isinstance(node, ast.ImportFrom):
            name = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                start = package[: len(package) - node.level + 1] + name
            elif name[:1] == ("ibp_gnn",):
                start = name[1:]
            else:
                continue
            for alias in node.names:
                yield node.lineno, nearest((*start, alias.name))


def nearest(name: tuple[str, ...]) -> tuple[str, ...]:
    """The module that a dotted name is, or is an attribute of."""
    while name not in MODULES:
        name = name[:-1]
    return name


def test_every_folder_has_a_layer():
    assert {module[0] for module in MODULES if module} == set(LAYER_OF)


@pytest.mark.parametrize("module", [module for module in MODULES if module], ids=".".join)
def test_no_import_goes_up(module):
    layer = LAYER_OF[module[0]]
    for line, imported in imports(module):
        if not imported:  # public names, which any layer above those may take from the package
            assert module[0] in ("training", "command"), f"line {line}: want the module itself, got ibp_gnn"
            continue
        below = LAYER_OF[imported[0]] < layer or imported[0] == module[0]
        assert below, f"line {line}: want layers below {module[0]}, got {'.'.join(imported)}"


def test_no_circle():
    """Of all imports, those within functions and for type checkers too: static_order raises CycleError."""
    graph = {module: {imported for _, imported in imports(module)} - {module} for module in MODULES}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(MODULES)


def test_imports_are_seen_wherever_they_are():
    assert ("codec", "forms") in {imported for _, imported in imports(("codec", "codec"))}
    assert ("integrations", "dgl_compat") in {imported for _, imported in imports(())}
    assert ("gpu", "cache") in {imported for _, imported in imports(())}, "what only type checkers see"
    assert ("store", "file", "building") in {imported for _, imported in imports(("command", "store_commands"))}, "lazy"
