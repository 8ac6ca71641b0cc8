"""The results as lines for a terminal."""

from __future__ import annotations

from typing import Any


def tables(results: dict[str, Any]) -> str:
    """One table for each section that has results."""
    makers = {"sizes": _sizes, "cpu": _cpu, "gpu": _gpu, "peers": _peers}
    return "\n\n".join("\n".join(make(results[name])) for name, make in makers.items() if results[name])


def _sizes(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{'bits per value':<18} {'dtype':<9} {'bound':>6} {'ibp 32':>7} {'ibp 64':>7} {'ibp':>6} {'dict':>6} "
        f"{'auto':>6} {'takes':>6} {'savings':>8}   {'store':>6} {'takes':>6} {'bits':>6} {'escapes':>8}"
    ]
    for result in results:
        bits = result["bits_per_value"]
        lines.append(
            f"{_name(result)} {result['entropy_bound']['bits_per_value']:>6.2f} "
            f"{bits['ibp_32']:>7.2f} {bits['ibp_64']:>7.2f} {bits['ibp_best']:>6.2f} {bits['dict']:>6.2f} "
            f"{bits['auto']:>6.2f} {result['auto_takes']['auto']:>6} {result['savings']['auto']:>8.1%}   "
            f"{result['compact_store_share']['auto_slots']:>6.3f} {result['auto_takes']['auto_slots']:>6} "
            f"{bits['auto_slots']:>6.2f} {_percent(result['escape_share']['auto_slots']):>8}"
        )
    return lines


def _cpu(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{'CPU':<18} {'dtype':<9} {'width':>5} {'codec':<5} {'fit s':>6} {'compress':>9} {'threads':>7} {'select':>7} "
        f"{'decode':>7} {'ratio':>6} {'load':>5}   (GB/s of raw rows)"
    ]
    for result in results:
        lines.append(
            f"{_name(result)} {result['width']:>5} {result['codec']:<5} {result['fit_s']:>6.2f} "
            f"{result['compress_gb_per_s']:>9.2f} {result['threads']:>7} {result['index_select_gb_per_s']:>7.2f} "
            f"{result['decode_gb_per_s']:>7.2f} {result['decode_to_index_select']:>6.2f} {result['load_average']:>5.1f}"
        )
    return lines


def _gpu(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{'GPU':<18} {'dtype':<9} {'width':>5} {'codec':<5} {'copy':>6} {'decode':>6} {'ratio':>6} {'cache':>6} "
        f"{'pinned':>7} {'ideal':>6} {'PCIe B':>7} {'fit s':>6} {'s/GB':>6}   (GB/s; ratios to copying raw rows)"
    ]
    for result in results:
        pinned = "pinned_decode_to_copy" in result
        lines.append(
            f"{_name(result)} {result['width']:>5} {result['codec']:<5} {result['hbm_copy_gb_per_s']:>6.0f} "
            f"{result['hbm_decode_gb_per_s']:>6.0f} {result['hbm_decode_to_copy']:>6.3f} "
            + (
                f"{result['cache_decode_to_copy']:>6.3f} {result['pinned_decode_to_copy']:>7.3f} "
                f"{result['pinned_raw_to_pcie_bytes']:>6.3f} {result['pinned_pcie_bytes_per_row']:>7.1f} "
                if pinned
                else f"{'-':>6} {'-':>7} {'-':>6} {'-':>7} "
            )
            + f"{result['fit_s']:>6.2f} {result['compress_s_per_gb']:>6.3f}"
        )
    return lines


def _peers(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{'other compressors':<18} {'dtype':<9} {'method':<32} {'chunk':>6} {'size':>7} {'compress':>9} {'all':>7} "
        f"{'random':>7}   (share of raw; GB/s of raw rows)"
    ]
    for result in results:
        chunk = f"{result['chunk_bytes']}" if result["chunk_bytes"] < 1 << 14 else f"{result['chunk_bytes'] >> 10}K"
        if "failed" in result:
            lines.append(f"{_name(result)} {result['method']:<32} {chunk:>6} failed: {result['failed']}")
            continue
        lines.append(
            f"{_name(result)} {result['method']:<32} {chunk:>6} {result['size_to_raw']:>7.3f} "
            f"{result['compress_gb_per_s']:>9.3f} {result['decode_gb_per_s']:>7.3f} "
            f"{result['random_rows_gb_per_s']:>7.3f}"
        )
    return lines


def _name(result: dict[str, Any]) -> str:
    return f"{result['data'][-18:]:<18} {result['dtype']:<9}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"
