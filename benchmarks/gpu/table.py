"""The figures of `gpu` beside their goals."""

from __future__ import annotations

import os
import time
from typing import Any

from pie_py.bench.report import Report, cell

LONG = 8192  # tokens of the long prompt
Figures = dict[str, Any]


def reports(figures: dict[str, Figures]) -> list[Report]:
    """The goals, and what was found; then the reports of other benchmarks."""
    machine = figures.get("machine", {})
    title = (
        f"{machine.get('device', 'no device')}, torch {machine.get('torch', '?')},"
        f" {os.environ.get('PIE_BENCH_DATE', time.strftime('%Y-%m-%d'))}"
    )
    rows = [list(row) for name, found in figures.items() for row in _rows(name, found, figures)]
    first = Report(title, ["what", "goal", "found"], rows)
    others = [(name, found["report"]) for name, found in figures.items() if "report" in found]
    return [first, *(_other(name, document) for name, document in others)]


def _other(name: str, document: Figures) -> Report:
    title = f"{name}: {document['title']}"
    return Report(title, document["columns"], document["rows"], document["notes"])


def markdown(reports: list[Report]) -> str:
    """The same as a page of Markdown."""
    lines = []
    for one in reports:
        lines += [f"# {one.title}", "", _line(one.columns), "|---" * len(one.columns) + "|"]
        lines += [*map(_line, one.rows), "", *one.notes, ""]
    return "\n".join(lines)


def _line(values: list[Any]) -> str:
    return "| " + " | ".join(map(cell, values)) + " |"


def _rows(name: str, found: Figures, figures: dict[str, Figures]) -> list[tuple[str, str, str]]:
    if "error" in found:
        return [(name, "", found["error"][:200].replace("\n", " "))]
    machine = figures.get("machine", {})
    kind, _, shape = name.partition(" ")
    rows: list[tuple[str, str, str]] = []
    if kind == "machine":
        for key, unit in (("memory", "TB/s"), ("matrix", "TFLOP/s")):
            rows.append((f"{key}", "", f"{found[key] / 1e12:.2f} {unit}"))
        for key in ("to_device", "to_host"):
            rows.append((f"{key}", "", f"{found[key] / 1e9:.1f} GB/s"))
    elif kind == "decode":
        for count, one in found.items():
            if isinstance(one, dict):
                rows += _decode_rows(f"{shape} × {count}", count, one, machine)
    elif kind == "server":
        ideal = figures.get(f"decode {shape}", {})
        for count, one in found.items():
            if isinstance(one, dict):
                best = ideal.get(count, {}).get("ideal_ms")
                over = "" if best is None else f" ({one['ms'] / best - 1:+.1%} of ideal)"
                rows.append(
                    (f"{shape}, server × {count}", "≤ +3 %", f"{one['ms']:.3f} ms per token{over}")
                )
    elif kind == "prefill":
        for length, one in found.items():
            if isinstance(one, dict):
                share = _share(one["matrix"], machine.get("matrix"))
                goal = "≥ 50 % of the peak" if int(length) >= LONG else ""
                rows.append(
                    (
                        f"{shape}, prompt of {length}",
                        goal,
                        f"{one['seconds'] * 1e3:.1f} ms, {share}",
                    )
                )
    elif kind == "swap":
        for way, ceiling in (("out", "to_host"), ("in", "to_device")):
            share = _share(found[way], machine.get(ceiling))
            rows.append(
                (f"{shape}, swap {way}", "≥ 80 % of PCIe", f"{found[way] / 1e9:.1f} GB/s, {share}")
            )
        rows.append((f"{shape}, swaps hidden", "all", f"{found['hidden']:.0%}"))
    elif kind == "tests:":
        rows.append((name, "pass", "pass" if found.get("passed") else found["last"][-160:]))
    return rows


def _decode_rows(
    label: str, count: str, one: Figures, machine: Figures
) -> list[tuple[str, str, str]]:
    if "error" in one:
        return [(label, "", one["error"])]
    over = f" ({one['over']:+.1%} of {one['ideal_ms']:.3f})" if "over" in one else ""
    rows = [
        (f"{label}: a token", "≤ +3 % of ideal", f"{one['ms']:.3f} ms{over}"),
        (
            f"{label}: idle between steps",
            "< 200 µs",
            f"{one['idle_us'][0]:.0f} µs, 99 %: {one['idle_us'][1]:.0f}; the host hands a step"
            f" over in {one['host_us']:.0f}",
        ),
        (
            f"{label}: a token by top-k 20, top-p 0.9",
            "",
            f"{one['drawn_ms']:.3f} ms; choosing it {one['draw_us']:.0f} µs,"
            f" the likeliest one {one['sample_us']:.0f}",
        ),
    ]
    if count == "1":
        share = _share(one["bandwidth"], machine.get("memory"))
        rows.append(
            (f"{label}: bandwidth", "≥ 80 %", f"{one['bandwidth'] / 1e12:.2f} TB/s, {share}")
        )
    return rows


def _share(value: float, ceiling: float | None) -> str:
    return "no ceiling" if not ceiling else f"{value / ceiling:.0%} of the measured"
