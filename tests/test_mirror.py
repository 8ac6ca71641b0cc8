"""tests/ mirrors ibp_gnn/: each module with functions or classes of its own has a test file of its name."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import ibp_gnn

PACKAGE, TESTS = Path(ibp_gnn.__file__).parent, Path(__file__).parent

# Modules whose tests are in a file of another name.
TESTED_IN = {
    # All names of test files are different, and test_config.py is that of ibp_gnn/config.py.
    "training/config.py": "training/test_training_config.py",
    # test_datasets.py would be beside the folder datasets/.
    "datasets/__init__.py": "datasets/test_load_dataset.py",
    # They only tell of old names.
    "graphbolt.py": "test_renamed.py",
    "pyg.py": "test_renamed.py",
    # A training as a whole, in the environment that each loop needs.
    "training/dgl_loop.py": "training/test_train_script.py",
    "training/graphbolt_loop.py": "training/test_train_script.py",
    "training/pyg_loop.py": "training/test_train_script.py",
    "gpu/side_stream.py": "gpu/test_prefetch.py",
    "training/wholegraph_loop.py": "integrations/test_wholegraph.py",
    "integrations/wholegraph_graph.py": "integrations/test_wholegraph.py",
    "integrations/wholegraph_loader.py": "integrations/test_wholegraph.py",
    "training/script.py": "training/test_train_script.py",
}
NOTHING_TO_TEST = {
    "command/command_error.py",  # an exception without members
    "training/step.py",  # a tuple and a protocol
}


def has_its_own(module: Path) -> bool:
    """Not so where all is imported from elsewhere."""
    return any(
        isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        for node in ast.parse(module.read_text()).body
    )


MODULES = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob("*.py")) if has_its_own(path)]


def file_of_tests(module: str) -> str:
    """codec/forms.py: codec/test_forms.py; _native.py: test_native.py; command/doctor/__init__.py:
    command/test_doctor.py."""
    path = Path(module)
    if path.name == "__init__.py":
        path = path.parent if path.parent.name else Path("ibp_gnn")
    return (path.parent / f"test_{path.stem.lstrip('_')}.py").as_posix()


def has_tests(file: str) -> bool:
    path = TESTS / file
    return path.exists() and any(
        isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in ast.parse(path.read_text()).body
    )


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_a_test_file_of_its_name(module: str) -> None:
    if module in NOTHING_TO_TEST:
        assert not has_tests(file_of_tests(module)), "want no exception for it: it has tests"
        return
    wanted = TESTED_IN.get(module, file_of_tests(module))
    assert has_tests(wanted), f"{module}: want tests in tests/{wanted}, got none"


def test_exceptions_are_of_modules_that_are_there() -> None:
    assert {*TESTED_IN, *NOTHING_TO_TEST} <= set(MODULES)
    assert not [module for module in TESTED_IN if has_tests(file_of_tests(module))]


def test_names_of_files() -> None:
    assert [file_of_tests(name) for name in ("codec/forms.py", "_native.py", "__init__.py", "a/b/__init__.py")] == [
        "codec/test_forms.py",
        "test_native.py",
        "test_ibp_gnn.py",
        "a/test_b.py",
    ]
    assert not has_tests("test_no_such_file.py") and not has_tests("conftest.py") and has_tests("test_mirror.py")
    assert {"codec/forms.py", "__init__.py", "command/doctor/__init__.py"} <= set(MODULES)
    assert "hotness.py" not in MODULES


def test_files_have_different_names() -> None:
    """pytest imports them by name alone, and so do processes that tests start: tests/ has no __init__.py."""
    names = Counter(path.name for path in TESTS.rglob("*.py") if path.name != "conftest.py")
    assert [name for name, count in names.items() if count > 1] == []
    assert not list(TESTS.rglob("__init__.py"))


@pytest.mark.parametrize("file", sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("*.py")))
def test_no_file_imports_tests(file: str) -> None:
    """What files share is in helper modules."""
    for node in ast.walk(ast.parse((TESTS / file).read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            assert not name.split(".")[0].startswith("test_"), f"line {node.lineno}: want a helper module, got {name}"
