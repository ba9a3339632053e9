"""Draws the plots of `docs/results/`.

    python -m benchmarks NAME --json > docs/results/NAME.json
    python docs/make_results.py

`make_site.py` takes its page of all records, and its table of benchmarks.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.__main__ import main as main_of_benchmarks
from pie_py.bench.report import cell

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS / "results"

Record = dict[str, Any]


_PLAIN = {"Date": None}  # the same figures give the same file


def pyplot() -> Any:
    """Matplotlib's `pyplot`, without a display."""
    import matplotlib

    matplotlib.use("Agg")
    # The same figures give the same file, and text in it can be searched.
    matplotlib.rcParams.update({"svg.hashsalt": "pie-py", "svg.fonttype": "none"})
    from matplotlib import pyplot as found

    return found


def save(figure: Any, path: Path) -> None:
    """Writes a figure as SVG, and closes it."""
    figure.savefig(path, metadata=_PLAIN)
    pyplot().close(figure)


def main() -> None:
    """Draws the plots."""
    for name, draw in PLOTS.items():
        if (RESULTS / f"{name}.json").exists():
            draw(_load(name), RESULTS / f"{name}.svg")


def records() -> str:
    """A page with a line for each record, and the tables of all."""
    head = "# Records\n\nEach is one run, as [benchmarks](benchmarks.md) says.\n\n"
    head += _row(["record", "processor, load", "goals met"]) + _row(["---"] * 3)
    return head + "".join([*map(_line, _names()), *map(_section, _names())])


def benchmarks() -> str:
    """Table of all benchmarks, from their help."""
    context = click.Context(main_of_benchmarks)
    rows = [_row(["benchmark", "measures"]), _row(["---"] * 2)]
    for name in main_of_benchmarks.list_commands(context):
        command = main_of_benchmarks.get_command(context, name)
        assert command is not None
        first, _, _ = (command.help or "").partition("\n\n")
        rows.append(_row([f"`{name}`", " ".join(first.split())]))
    return "".join(rows)


def _names() -> list[str]:
    return sorted(file.stem for file in RESULTS.glob("*.json"))


def _line(name: str) -> str:
    document = _load(name)
    environment = document["environment"]
    reports = document.get("reports", [document])
    met = [goal["met"] for report in reports for goal in report["goals"]]
    return _row(
        [
            f"[{name}](#{name})",
            f"{environment['cpu']}, {environment['load']:.1f}",
            f"{sum(met)} of {len(met)}" if met else "no goal",
        ]
    )


def _section(name: str) -> str:
    document = _load(name)
    made = [f"\n### {name}\n"]
    if name in PLOTS:
        made.append(f"![{name}](results/{name}.svg)\n\n")
    for report in document.get("reports", [document]):
        made += [*_table(report), "\n", *_words(report)]
    made.append(f"{_machine(document['environment'])}\n")
    return "".join(made)


def _table(report: Record) -> Iterator[str]:
    yield f"**{report['title']}**\n\n"
    yield _row(report["columns"])
    yield _row(["---", *["---:"] * (len(report["columns"]) - 1)])
    for row in report["rows"]:
        yield _row([cell(value) for value in row])


def _words(report: Record) -> Iterator[str]:
    for note in report["notes"]:
        yield _item(note)
    for goal in report["goals"]:
        sign = "≤" if goal["at_most"] else "≥"
        word = "met" if goal["met"] else "**missed**"
        figure = f"{cell(goal['figure'])} (goal {sign} {goal['limit']:g})"
        yield _item(f"{word}: {goal['what']}: {figure}")
    if report["notes"] or report["goals"]:
        yield "\n"


def _item(text: str) -> str:
    return f"{_wrapped('- ' + text, '  ')}\n"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _machine(environment: Record) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    text = (
        f"{environment['cpu']}, {environment['cores']} cores, load {environment['load']:.1f} at the"
        f" end; Python {environment['python']}, {packages}."
    )
    return f"{_wrapped(text)}\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _load(name: str) -> Record:
    found: Record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _draw_compare(document: Record, path: Path) -> None:
    """Time per token of each side over the ideal loop's, as bars: one plot per model."""
    rows = document["rows"]
    models = list(dict.fromkeys(row[0] for row in rows))
    figure, axes = pyplot().subplots(1, len(models), figsize=(5 * len(models), 3), squeeze=False)
    for axis, model in zip(axes[0], models, strict=True):
        counts = list(dict.fromkeys(row[1] for row in rows if row[0] == model))
        sides = list(dict.fromkeys(row[2] for row in rows if row[0] == model))
        for i, side in enumerate(sides):
            heights = [_find(rows, model, count, side)[4] for count in counts]
            places = [place + (i - (len(sides) - 1) / 2) * 0.2 for place in range(len(counts))]
            axis.bar(places, heights, 0.18, label=side)
        axis.set_xticks(range(len(counts)), [f"{count} at once" for count in counts])
        axis.set_title(f"{model}: time per token over the ideal loop's")
        axis.axhline(1, color="grey", linewidth=0.8)
        axis.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    save(figure, path)


def _find(rows: Sequence[list[Any]], *key: Any) -> list[Any]:
    return next(row for row in rows if tuple(row[: len(key)]) == key)


def _draw_stages(document: Record, path: Path) -> None:
    """Where the time of one token goes, as stacked bars: one a guest and number at once."""
    rows = {row[0]: row[1:] for row in document["rows"]}
    names = [name for name in rows if name.startswith(("control: ", "worker: ", "message "))]
    figure, axis = pyplot().subplots(figsize=(9, 4))
    columns = [column.replace(" ", "\n") for column in document["columns"][1:]]
    bottom = [0.0] * len(columns)
    colours = pyplot().get_cmap("tab20").colors
    for i, name in enumerate(names):
        heights = [float(value or 0) for value in rows[name]]
        share = [h / sum(float(rows[n][c] or 0) for n in names) for c, h in enumerate(heights)]
        axis.bar(columns, share, 0.7, bottom=bottom, label=name, color=colours[i % len(colours)])
        bottom = [b + s for b, s in zip(bottom, share, strict=True)]
    axis.set_ylabel("share of a token's time")
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    save(figure, path)


def _draw_launch(document: Record, path: Path) -> None:
    """Launch latency by the number at once, as lines (Pie, figure 9)."""
    figure, axis = pyplot().subplots(figsize=(6, 3.2))
    rows = document["rows"]
    for source in dict.fromkeys(row[0] for row in rows):
        counts = [row[1] for row in rows if row[0] == source]
        for state, column in (("cold", 2), ("warm", 4)):
            medians = [row[column] for row in rows if row[0] == source]
            axis.plot(
                counts, medians, "o-" if state == "warm" else "s--", label=f"{source}, {state}"
            )
    axis.set(xscale="log", yscale="log", xlabel="at once", ylabel="ms to the first message")
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.legend(fontsize=8)
    figure.tight_layout()
    save(figure, path)


def _draw_calls(document: Record, path: Path) -> None:
    """The cost of a call, by function, guest and instances alive, as bars (Pie, figure 10)."""
    rows = document["rows"]
    calls = list(dict.fromkeys(row[2] for row in rows))
    kinds = list(dict.fromkeys((row[0], row[1]) for row in rows))
    figure, axis = pyplot().subplots(figsize=(7, 3))
    for i, (guest, alive) in enumerate(kinds):
        heights = [_find(rows, guest, alive, call)[3] for call in calls]
        places = [place + (i - (len(kinds) - 1) / 2) * 0.2 for place in range(len(calls))]
        axis.bar(places, heights, 0.18, label=f"{guest}, {alive} alive")
    axis.set_xticks(range(len(calls)), calls)
    axis.set_ylabel("µs")
    axis.legend(fontsize=8)
    figure.tight_layout()
    save(figure, path)


def _draw_inferlets(document: Record, path: Path) -> None:
    """Programs over client-side scripts, by round trip (Pie, figures 6 to 8)."""
    rows = document["rows"]
    names = list(dict.fromkeys(str(row[0]) for row in rows))
    trips = list(dict.fromkeys(int(row[1]) for row in rows))
    figure, panels = pyplot().subplots(1, 2, figsize=(13, 0.55 * len(names) + 1.5), sharey=True)
    for axis, column in zip(panels, (4, 7), strict=True):
        for i, trip in enumerate(trips):
            ratios = {str(row[0]): row[column] for row in rows if row[1] == trip}
            places = [n + (i - (len(trips) - 1) / 2) * 0.8 / len(trips) for n in range(len(names))]
            bars = axis.barh(
                places, [ratios[name] for name in names], 0.8 / len(trips), label=f"{trip} ms"
            )
            axis.bar_label(bars, [f"{ratios[name]:.2f}" for name in names], fontsize="x-small")
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set(xlabel=document["columns"][column])
        axis.margins(x=0.08)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[1].legend(title="round trip", bbox_to_anchor=(1.01, 1), loc="upper left")
    figure.suptitle(document["title"])
    figure.tight_layout()
    for ending in (".svg", ".png"):
        figure.savefig(path.with_suffix(ending), metadata=_PLAIN if ending == ".svg" else None)
    pyplot().close(figure)


PLOTS = {
    "calls": _draw_calls,
    "compare": _draw_compare,
    "inferlets": _draw_inferlets,
    "launch": _draw_launch,
    "stages": _draw_stages,
}


if __name__ == "__main__":
    main()
