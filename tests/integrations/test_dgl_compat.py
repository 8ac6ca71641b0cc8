"""`import dgl` on any torch. Import state is per process, so most cases run in a process of their own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ibp_gnn._install import install_command
from ibp_gnn.integrations import dgl_compat

needs_dgl = pytest.mark.skipif(importlib.util.find_spec("dgl") is None, reason="DGL is not installed")

PACKAGES = Path(dgl_compat.__file__).parents[2]  # where the package under test is, installed or in the source tree
INSTALL_COMMAND = install_command("dgl")


def run_python(code: str, home: Path, *, path: Path | None = None, **env: str) -> str:
    """Run code in a new interpreter with an empty home folder; return what it prints. `path` goes first."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DGL") and k != "PYTHONPATH"}
    paths = [str(p) for p in (path, PACKAGES) if p is not None]
    done = subprocess.run(
        [sys.executable, "-W", "ignore::UserWarning", "-c", textwrap.dedent(code)],
        env=clean | {"HOME": str(home), "PYTHONPATH": os.pathsep.join(paths)} | env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@needs_dgl
def test_plain_import_dgl_after_import_ibp_gnn(home: Path) -> None:
    out = run_python(
        """
        import os, sys
        import ibp_gnn
        assert "dgl" not in sys.modules, "import ibp_gnn must not import dgl"
        assert "DGLBACKEND" not in os.environ
        real_exists = os.path.exists
        import dgl, torch
        assert os.path.exists is real_exists
        assert os.environ["DGLBACKEND"] == "pytorch"
        from ibp_gnn.integrations import dgl_compat
        assert dgl_compat.import_dgl() is dgl

        native = f"libgraphbolt_pytorch_{torch.__version__.split('+')[0]}.so"
        native = os.path.join(os.path.dirname(dgl.graphbolt.__file__), native)
        assert dgl_compat.graphbolt_is_native() == os.path.exists(native), native
        assert type(dgl.graphbolt.__loader__).__module__ != dgl_compat.__name__

        g = dgl.rand_graph(50, 200)
        g.ndata["x"] = torch.randn(50, 3)
        for nodes, _, blocks in dgl.dataloading.DataLoader(
            g, torch.arange(50), dgl.dataloading.NeighborSampler([3, 3]), batch_size=25
        ):
            assert torch.equal(blocks[0].srcdata["x"], g.ndata["x"][nodes])
        print("done")
        """,
        home,
    )
    assert out == "done\n"
    assert list(home.iterdir()) == []  # DGL's own default writes ~/.dgl/config.json


@needs_dgl
def test_graphbolt_without_torchdata_is_a_stub_with_the_reason(home: Path) -> None:
    out = run_python(
        """
        import sys
        sys.modules["torchdata"] = None  # as if it were not installed
        from ibp_gnn.integrations import dgl_compat
        dgl = dgl_compat.import_dgl()
        assert not dgl_compat.graphbolt_is_native()
        assert not [name for name in sys.modules if name.startswith("dgl.graphbolt.")]
        assert not hasattr(dgl.graphbolt, "__wrapped__")  # inspect may probe it
        import torch
        dgl.rand_graph(10, 20).update_all
        for statement in ("dgl.graphbolt.BasicFeatureStore", "from dgl.graphbolt import ItemSet"):
            try:
                exec(statement)
            except ImportError as error:
                print(error)
        """,
        home,
    )
    first, second = out.splitlines()
    assert "dgl.graphbolt.BasicFeatureStore is unavailable" in first
    assert "dgl.graphbolt.ItemSet is unavailable" in second
    for line in (first, second):
        assert "torchdata" in line and INSTALL_COMMAND in line


def test_install_is_idempotent() -> None:
    dgl_compat.install()
    before = list(sys.meta_path)
    dgl_compat.install()
    assert sys.meta_path == before
    finders = [f for f in sys.meta_path if isinstance(f, dgl_compat.GraphBoltFinder)]
    assert len(finders) == 1
    for name in ("dgl.graphbolt.impl", "dgl.data", "graphbolt", "os"):
        assert finders[0].find_spec(name, None) is None


@needs_dgl
def test_dgl_imported_before_ibp_gnn_is_left_alone(home: Path) -> None:
    run_python(
        """
        import sys
        from ibp_gnn.integrations import dgl_compat
        dgl_compat.install()
        import dgl
        # From here on as if DGL had come up without us.
        sys.meta_path = [f for f in sys.meta_path if not isinstance(f, dgl_compat.GraphBoltFinder)]
        for name in [name for name in sys.modules if name.split(".")[0] == "ibp_gnn"]:
            del sys.modules[name]
        graphbolt = dgl.graphbolt

        import ibp_gnn
        from ibp_gnn.integrations import dgl_compat
        dgl_compat.install()
        assert dgl_compat.import_dgl() is dgl and sys.modules["dgl.graphbolt"] is graphbolt
        """,
        home,
    )


def test_message_when_dgl_is_missing(home: Path) -> None:
    out = run_python(
        """
        import sys
        sys.modules["dgl"] = None
        from ibp_gnn.integrations import dgl_compat
        try:
            dgl_compat.import_dgl()
        except ImportError as error:
            print(error)
        """,
        home,
    )
    assert "DGL is not installed" in out and INSTALL_COMMAND in out


@needs_dgl
def test_message_when_a_dependency_of_dgl_is_missing(home: Path) -> None:
    out = run_python(
        """
        import sys
        sys.modules["psutil"] = None
        from ibp_gnn.integrations import dgl_compat
        for _ in range(2):  # the second time, a half imported DGL is in the way
            try:
                dgl_compat.import_dgl()
            except ImportError as error:
                print(error)
        """,
        home,
    )
    first, second = out.splitlines()
    assert "DGL needs psutil" in first and INSTALL_COMMAND in first
    assert "an earlier `import dgl` failed" in second and "new process" in second


def test_other_backends_are_refused(home: Path) -> None:
    out = run_python(
        """
        from ibp_gnn.integrations import dgl_compat
        try:
            dgl_compat.import_dgl()
        except ImportError as error:
            print(error)
        """,
        home,
        DGLBACKEND="tensorflow",
    )
    assert "want pytorch, got 'tensorflow'" in out and "DGLBACKEND=pytorch" in out


# The cases below need a DGL with, or without, a native library; a small imitation has both.

GRAPHBOLT = """
import os
import torch
{before}
path = os.path.join(os.path.dirname(__file__), "libgraphbolt_pytorch_2.2.1.so")
assert not os.path.exists("/no/such/libdgl.so")
if not os.path.exists(path):
    raise FileNotFoundError(path)
try:
    torch.classes.load_library(path)
except Exception:
    raise ImportError("Cannot load Graphbolt C++ library")
{after}
"""


def imitation_of_dgl(folder: Path, *, before: str = "", after: str = "", native: bool) -> Path:
    package = folder / "site" / "dgl"
    for name, text in {
        "__init__.py": "from . import backend, graphbolt\n",
        "backend.py": "backend_name = 'pytorch'\n",
        "dataloading/__init__.py": "",
        "dataloading/dataloader.py": "",
        "graphbolt/__init__.py": GRAPHBOLT.format(before=before, after=after),
    }.items():
        file = package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if native:
        (package / "graphbolt" / "libgraphbolt_pytorch_2.2.1.so").write_bytes(b"not a library")
    return package.parent


def test_native_library_is_used_where_it_exists(tmp_path: Path, home: Path) -> None:
    site = imitation_of_dgl(tmp_path, native=True, after="ItemSet = 1")
    out = run_python(
        """
        import torch
        torch.classes.load_library = lambda path: print("loaded", path)  # stands for a load that works
        from ibp_gnn.integrations import dgl_compat
        print(dgl_compat.import_dgl().graphbolt.ItemSet)
        """,
        home,
        path=site,
    )
    assert out == f"loaded {site}/dgl/graphbolt/libgraphbolt_pytorch_2.2.1.so\n1\n"


def test_native_library_that_does_not_load_warns(tmp_path: Path, home: Path) -> None:
    site = imitation_of_dgl(tmp_path, native=True)
    out = run_python(
        """
        import warnings
        from ibp_gnn.integrations import dgl_compat
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dgl = dgl_compat.import_dgl()
        print([str(w.message) for w in caught if w.category is RuntimeWarning])
        assert not dgl_compat.graphbolt_is_native()
        try:
            dgl.graphbolt.ItemSet
        except ImportError as error:
            print(error)
        """,
        home,
        path=site,
    )
    assert out.startswith("['dgl.graphbolt is unavailable: Cannot load Graphbolt C++ library']\n")
    assert "dgl.graphbolt.ItemSet is unavailable: ImportError: Cannot load" in out


def test_any_error_without_the_native_library_makes_a_stub(tmp_path: Path, home: Path) -> None:
    # Later DGLs load the library first and define classes on top of it.
    site = imitation_of_dgl(tmp_path, native=False, after="torch.ops.graphbolt.no_such_op")
    out = run_python(
        """
        import os
        from ibp_gnn.integrations import dgl_compat
        dgl = dgl_compat.import_dgl()
        assert not dgl_compat.graphbolt_is_native()
        try:
            dgl.graphbolt.ItemSet
        except ImportError as error:
            print(error)
        """,
        home,
        path=site,
    )
    assert "ItemSet is unavailable: AttributeError" in out and "no_such_op" in out


@pytest.mark.parametrize(
    "before",
    ["from .no_such_module import x", "raise OSError('libdgl.so: no such symbol')"],
)
def test_a_damaged_dgl_is_not_hidden(tmp_path: Path, home: Path, before: str) -> None:
    site = imitation_of_dgl(tmp_path, native=True, before=before)
    out = run_python(
        """
        from ibp_gnn.integrations import dgl_compat
        try:
            dgl_compat.import_dgl()
        except ImportError as error:
            print(error)
        """,
        home,
        path=site,
    )
    assert "no such symbol" in out or "dgl.graphbolt.no_such_module" in out
    assert INSTALL_COMMAND in out
