"""The results as Markdown tables; README's are these."""

from __future__ import annotations

from typing import Any

from .summary import features_of, presample_of

_SHOWN_SHARES = (0.05, 0.1, 0.2, 0.4)


def rows_table(record: dict[str, Any], fanouts: str) -> str:
    """Of every feature set: what a row takes, and hit rates without and with compression."""
    shares = record["config"]["shares"]
    shown = [at for at, share in enumerate(shares) if share in _SHOWN_SHARES]
    sizes = " | ".join(f"hits at {shares[at]:.0%}" for at in shown)
    lines = [
        f"| fanouts {fanouts} | features | bytes of a row | effective rows | {sizes} |",
        "|---|---|---|---|" + "---|" * len(shown),
    ]
    for trace in _traces(record, fanouts):
        curves = trace["by_bytes"][presample_of(record["config"])]
        for features, curve in zip(features_of(record, trace), curves, strict=True):
            rates = [
                f"{curve['uncompressed_hits'][at] / trace['accesses']:.1%} -> "
                f"{curve['compressed_hits'][at] / trace['accesses']:.1%}"
                for at in shown
            ]
            lines.append(
                f"| {trace['graph']} | {features['rows']}, {features['dtype']} | "
                f"{features['row_bytes']} -> {features['slot_bytes']} | {_effective_rows(features, curve, trace)} | "
                f"{' | '.join(rates)} |"
            )
    return "\n".join(lines)


def policies_table(record: dict[str, Any], fanouts: str) -> str:
    """Hit rates by policy, all with the same number of rows."""
    traces = _traces(record, fanouts)
    if not traces:
        return ""
    shares = record["config"]["dynamic_shares"]
    lines = [
        f"| hit rates at {', '.join(f'{share:.0%}' for share in shares)} of the rows | "
        + " | ".join(trace["graph"] for trace in traces)
        + " |",
        "|---|" + "---|" * len(traces),
    ]
    for policy in traces[0]["by_rows"]["hits"]:
        cells = [
            ", ".join(f"{hits / trace['accesses']:.1%}" for hits in trace["by_rows"]["hits"][policy])
            for trace in traces
        ]
        lines.append(f"| {policy.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary_lines(record: dict[str, Any]) -> list[str]:
    """Targets reached or not, losses, and what dynamic policies gain, a line each."""
    summary = record["summary"]
    lines = []
    for kind, found in summary["effective_rows"].items():
        target = found["target"]
        verdict = {None: "", True: f"; reaches {target}", False: f"; misses {target}"}[found["reached"]]
        numbers = f"{found['least']:.3f} to {found['greatest']:.3f}, median {found['median']:.3f}"
        lines.append(f"effective rows, {kind}: {numbers}{verdict}")
    losses = summary["compressed_loses"]
    lines.append(f"compressed hits less often than uncompressed of the same bytes: {len(losses)} cases")
    lines += [f"  {loss}" for loss in losses]
    for gain in summary["dynamic"]:
        over = "; ".join(
            f"{name.replace('_', ' ')} by {', '.join(f'{100 * value:+.2f}' for value in gain[name])}"
            for name in gain
            if name.startswith("over_")
        )
        lines.append(
            f"best dynamic policy, {gain['graph']} {gain['fanouts']} ({', '.join(gain['best'])}): {over} points"
        )
    return lines


def _effective_rows(features: dict[str, Any], curve: dict[str, Any], trace: dict[str, Any]) -> str:
    """Least and greatest over the sizes at which the compressed cache does not hold all rows."""
    pairs = zip(curve["compressed_rows"], features["uncompressed_rows"], strict=True)
    ratios = [ours / theirs for ours, theirs in pairs if theirs and ours < trace["nodes"]]
    if not ratios:
        return "all rows"
    least, greatest = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return least if least == greatest else f"{least} to {greatest}"


def _traces(record: dict[str, Any], fanouts: str) -> list[dict[str, Any]]:
    return [trace for trace in record["traces"] if trace["fanouts"] == fanouts]
