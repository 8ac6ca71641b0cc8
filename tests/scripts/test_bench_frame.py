"""scripts/bench: the command that all benchmarks share, how they measure, and pictures that can be read."""

from __future__ import annotations

import ast
import functools
import graphlib
import itertools
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ibp_gnn.config import ConfigError

RESULTS = Path(__file__).resolve().parents[2] / "scripts" / "results"
RECORDS = [
    ("bench_gather", "gather"),
    ("bench_epoch", "epoch"),
    ("bench_cache_hit", "cache_hit"),
    *(("bench_codec", f"codec_{section}") for section in ("sizes", "cpu", "gpu", "peers")),
]
needs_results = pytest.mark.skipif(not RESULTS.exists(), reason="results are not in this checkout")


@needs_results
@pytest.mark.parametrize(("script", "name"), RECORDS)
def test_results_are_shown_without_measuring(
    part: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str, name: str
) -> None:
    if script == "bench_epoch":
        pytest.importorskip("dgl")
    bench, picture = part(script), tmp_path / "out.png"
    bench.main(["--from-json", str(RESULTS / f"{name}.json"), "--plot", str(picture)])
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) > 25 and picture.read_bytes().startswith(b"\x89PNG")


@needs_results
def test_the_summary_is_that_of_the_record(part: Any) -> None:
    record = json.loads((RESULTS / "cache_hit.json").read_text())
    assert part("bench.cache_report").summarize(record, record["config"]) == record["summary"]


@needs_results
@pytest.mark.parametrize(("script", "name"), RECORDS)
def test_pictures_can_be_read(part: Any, script: str, name: str) -> None:
    """At the width of a README, no text is smaller than 11 pixels, none lies on another, and none is cut off."""
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    report = part(
        "bench.cache_report" if script == "bench_cache_hit" else f"bench.{script.removeprefix('bench_')}_report"
    )
    figure = report.draw(json.loads((RESULTS / f"{name}.json").read_text()))
    figure.set_dpi(800 / figure.get_figwidth())
    FigureCanvasAgg(figure).draw()
    boxes = {text: Text.get_window_extent(text) for text in drawn_texts(figure)}  # without arrows
    assert len(boxes) > 20
    for text, box in boxes.items():
        what = text.get_text()
        assert "{}" not in what
        assert text.get_fontsize() * figure.dpi / 72 >= 11, what
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1, what
    for (one, first), (other, second) in itertools.combinations(boxes.items(), 2):
        width = min(first.x1, second.x1) - max(first.x0, second.x0)
        height = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert width < 1 or height < 2, f"{one.get_text()!r} lies on {other.get_text()!r}"


def drawn_texts(figure: Any) -> list[Any]:
    """All texts that are seen: those of ticks outside of the axes are not."""
    from matplotlib.text import Text

    hidden = set()
    for axes in figure.axes:
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            low, high = sorted(limits)
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            hidden |= {tick.label1 for tick in ticks if not axes.axison or not low <= tick.get_loc() <= high}
            hidden |= {tick.label2 for tick in ticks}
    texts = figure.findobj(
        lambda artist: isinstance(artist, Text) and artist.get_visible() and artist.get_text().strip()
    )
    return [text for text in texts if text not in hidden]


def test_labels_are_spread(part: Any) -> None:
    spread = part("bench.picture").spread
    assert spread([0.1, 0.9, 0.5], 0.2) == [0.1, 0.9, 0.5]
    assert spread([0.5, 0.55, 0.1], 0.2) == pytest.approx([0.35, 0.55, 0.1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from-json", "{folder}/none.json"], "cannot read .*none.json"),
        (["--from-json", "{folder}/broken.json"], "cannot read .*broken.json"),
        (["--from-json", "{folder}/other.json"], "want results of the benchmark 'codec', got 'gather'"),
        (["--from-json", "{folder}/list.json"], "want results of the benchmark 'codec', got None"),
    ],
)
def test_other_files_are_refused(part: Any, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text('{"benchmark": "gather"}')
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ConfigError, match=message):
        part("bench_codec").main([argument.format(folder=tmp_path) for argument in arguments])


def test_showing_takes_no_settings(part: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for other in (["--set", "seed=1"], ["--json", "out.json"], ["--config", "c.yaml"]):
        with pytest.raises(SystemExit):
            part("bench_codec").main(["--from-json", str(tmp_path / "out.json"), *other])
        assert "--from-json measures nothing" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_found_first(part: Any, tmp_path: Path) -> None:
    for script in ("bench_codec", "bench_cache_hit"):
        with pytest.raises(ConfigError, match="--json: want a file, got the folder"):
            part(script).main(["--json", str(tmp_path)])


def test_json_has_lists_of_numbers_on_one_line(part: Any, tmp_path: Path) -> None:
    record = {
        "numbers": [1, 2.5, None, True],
        "text": "[1,  2]\n",
        "texts": ["[3,", "4]"],
        "deep": [[1, 2], [{"a": []}]],
    }
    part("bench.frame").write(tmp_path / "out.json", record)
    text = (tmp_path / "out.json").read_text()
    assert json.loads(text) == record and '"numbers": [ 1, 2.5, null, true ]' in text
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_turns(part: Any) -> None:
    calls: list[str] = []

    def measure(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    measures = {"a": lambda: measure("a"), "b": lambda: measure("b")}
    times = part("bench.timing").in_turns(measures, range(3), warm_up=1)
    assert calls == ["a", "b"] * 3 and times == {"a": [3.0, 5.0], "b": [4.0, 6.0]}
    assert part("bench.timing").medians(times) == {"a": 4.0, "b": 5.0}


def test_host_time(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("wait"))
    calls: list[str] = []
    times = part("bench.timing").host_us({name: lambda name=name: calls.append(name) for name in "ab"}, 60)
    group = [["wait", *[name] * 50, "wait"] for name in "ab"]
    assert calls == (group[0] + group[1]) * 3 and times.keys() == {"a", "b"} and min(times.values()) > 0


def test_rows_that_are_left_as_they_were_are_found(part: Any) -> None:
    check_rows, rows = part("bench.timing").check_rows, torch.randn(5, 3)
    out = rows.clone()
    check_rows("right", lambda out: out.copy_(rows), out, rows)
    with pytest.raises(AssertionError, match="idle: bits differ in 15 of 15"):
        check_rows("idle", lambda out: out, rows.clone(), rows)


def test_markdown(part: Any) -> None:
    assert (
        part("bench.table").markdown(["a", "b"], [(1, "x"), (2, "y")]) == "| a | b |\n|---|---|\n| 1 | x |\n| 2 | y |"
    )


def test_no_import_circle() -> None:
    imports: dict[str, set[str]] = {}
    for path in (RESULTS.parent / "bench").glob("*.py"):
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        names = [[node.module] if node.module else [alias.name for alias in node.names] for node in nodes if node.level]
        imports[path.stem] = set(itertools.chain.from_iterable(names))
    assert set().union(*imports.values()) <= imports.keys() and "timing" in imports["uncompressed"]
    order = list(graphlib.TopologicalSorter(imports).static_order())  # raises CycleError
    assert order.index("peer") < order.index("nvcomp") < order.index("codec_peers")


def test_errors_and_ctrl_c_of_a_script_are_one_line(part: Any, capsys: pytest.CaptureFixture[str]) -> None:
    frame = part("bench.frame")

    def raises(error: BaseException) -> None:
        raise error

    handler = signal.getsignal(signal.SIGINT)
    try:
        for error, status, line in (
            (ConfigError("seed: want 1, got 2"), 2, "error: seed: want 1, got 2\n"),
            (ImportError("pip install it"), 2, "error: pip install it\n"),
            (KeyboardInterrupt(), 130, "interrupted; run it again to go on\n"),
        ):
            with pytest.raises(SystemExit, match=str(status)):
                frame.run_as_script(functools.partial(raises, error))
            assert capsys.readouterr().err == line
    finally:
        signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("script", ["bench_cache_hit", "bench_codec", "bench_gather"])
def test_without_matplotlib_nothing_is_measured(part: Any, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    bench = part(script)
    monkeypatch.setattr(bench.frame, "head", lambda *_: pytest.fail("want no work before the package is there"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        bench.main(["--plot", "out.png"])


@pytest.mark.parametrize("script", ["bench_cache_hit", "bench_codec", "bench_gather", "bench_epoch"])
def test_help_says_how_long_it_takes(script: str) -> None:
    text = (RESULTS.parent / f"{script}.py").read_text()
    assert re.search(r"\btakes\s+about\s+(two|three|ten)\s+minutes", ast.get_docstring(ast.parse(text)) or "")


@needs_results
@pytest.mark.parametrize(("script", "name"), RECORDS)
def test_results_say_which_version_it_was(script: str, name: str) -> None:
    assert json.loads((RESULTS / f"{name}.json").read_text())["versions"]["ibp_gnn"] != "unknown"
