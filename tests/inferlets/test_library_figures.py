"""Figures that the READMEs of the library state are those of a run; those of the papers' page and
of the README are those of records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from support.doc_scripts import DOCS
from support.library import LIBRARY, Library

NUMBERS = [12, 34, 56, 78, 11, 23, 45, 67]
SUM, DIFFERENCE = {"numbers": NUMBERS}, {"question": "What is 880 - 826?"}
RANDOM = {"delta": 4, "max_tokens": 80, "model_name": "test", "prompt": "The quick"}
COLOURS = {"options": [" black.", " white.", " red."]}
# Program, options, the figure in its README, what a run has, and how far it may be from it.
Row = tuple[str, dict[str, Any], str, Callable[[Any], float], float]
FIGURES: tuple[Row, ...] = (
    ("watermarking", {}, r"z = (\S+)\.$", lambda found: found["z"], 0.05),
    ("watermarking", RANDOM, r"z = (\S+) with `--delta 4`", lambda found: found["z"], 0.05),
    ("constrained_tools", {}, r"and (\d+)\.", lambda found: found["result"], 0),
    ("graph_of_thought", SUM, r"(\d+), by the embedded", lambda found: found["answer"], 0),
    ("recursion_of_thought", SUM, r"(\d+) at depth", lambda found: found["answer"], 0),
    ("recursion_of_thought", SUM, r"at depth (\d+)", lambda found: found["depth"], 0),
    ("monte_carlo_tree_search", {}, r"(\S+) and \S+ for", lambda found: found["value"], 0.01),
    ("monte_carlo_tree_search", {}, r"and (\S+) for", lambda found: found["greedy"], 0.01),
    ("output_validation", COLOURS, r"share of (\S+)", lambda f: f["shares"][" black."], 1e-4),
    ("self_consistency", DIFFERENCE, r"vote for (\d+)", lambda found: int(found["answer"]), 0),
    ("thinking_budget", {}, r"thoughts to (\d+);", lambda found: int(found["answer"]), 0),
    ("thinking_budget", {}, r"takes (\d+) tokens", lambda found: found["tokens"], 0),
    ("tree_of_thought", DIFFERENCE, r"with (\d+) to \d+ pages", lambda f: f["pages"], 4),
    ("tree_of_thought", DIFFERENCE, r"texts hold (\d+)\.", lambda found: found["alone"], 0),
    ("tree_of_thought", DIFFERENCE, r"finds (\d+),", lambda f: int(f["answer"].split()[-1]), 0),
)


@pytest.mark.nightly
def test_figures(library: Library) -> None:
    launched = [library.launch(name, (), **options) for name, options, *_ in FIGURES]
    for (name, _, pattern, figure, off), instance in zip(FIGURES, launched, strict=True):
        text = (LIBRARY / name / "README.md").read_text(encoding="utf-8")
        expected = " ".join(text.partition("## What to expect\n")[2].partition("\n##")[0].split())
        stated = re.search(pattern, expected)
        assert stated is not None, (name, pattern)
        found = figure(json.loads(instance.result()))
        assert float(stated[1]) == pytest.approx(found, abs=off + 1e-9), (name, expected)


def record(name: str, report: int = 0) -> list[dict[str, Any]]:
    """The rows of a record's table, by its columns."""
    document = json.loads((DOCS / f"results/{name}.json").read_text(encoding="utf-8"))
    table = document.get("reports", [document])[report]
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def column(rows: list[dict[str, Any]], name: str, *values: Any) -> list[float]:
    """Numbers of the rows that have these values."""
    return [float(row[name]) for row in rows if {*values} <= {*row.values()}]


def span(rows: list[dict[str, Any]], name: str, *ones: Any) -> list[float]:
    """The least and the largest number of the rows that have one of these values."""
    numbers = [number for value in ones for number in column(rows, name, value)]
    return [min(numbers), max(numbers)]


def figures_of_papers() -> dict[str, list[float]]:
    """The numbers in each row of the papers' tables that are of a record, in their order."""
    slow, much, sync, ms = "latency, ×", "throughput, ×", "× sync", "ms per token"
    thoughts = [f"{kind} of thought" for kind in ("tree", "recursion", "graph", "skeleton")]
    agents = "ReAct", "CodeAct", "Swarm"
    programs, attention = record("inferlets"), record("inferlets-attention")
    guesses, turns = record("inferlets-speculation"), record("inferlets-toolbox-turns")
    toolbox, dropped = record("inferlets-toolbox"), "cached, early, dropped"
    launch, calls = record("launch"), record("api-calls")
    beams = [f"beam search, width {width}" for width in (3, 5)]
    compare, batching = record("compare"), record("batching")
    parallel, smollm2 = record("async"), record("async-smollm2")
    bfcl = record("async-bfcl", 1)
    put = [sum(column(bfcl, name, side)[0] for name in ("written", "put in"))
           for side in ("sync", "async, lpt")]  # fmt: skip
    formulas = [abs(row["formula"] / row["calls"] - 1) * 100 for row in parallel if row["formula"]]
    simulated, ideal = record("intercept", 1), record("stages")
    ratios = {
        name: [one / other for one, other in zip(*(column(simulated, name, system) for system in
               (("vllm", "min-waste") if name == ms else ("min-waste", "vllm"))), strict=True)]
        for name in (ms, "completed/s")
    }  # fmt: skip
    least = column(simulated, ms, "vllm", 0.2)[0]
    borne = [row["arrivals/s"] for row in simulated
             if row["system"] == "min-waste" and row[ms] <= least]  # fmt: skip
    traces = record("intercept-traces-real")
    by_trace = [[column(traces, ms, row["trace"], system)[0] for system in
                 ("min-waste", "swap", "preserve")] for row in traces[::3]]  # fmt: skip
    off = sorted(found[0] / min(found) for found in by_trace)
    wasted = [column(simulated, name, "vllm", rate)[0] for rate in (0.35, 0.5)
              for name in ("memory wasted %", "recomputing %")]  # fmt: skip
    real = [column(record("intercept"), ms, system, 8.0)[0] for system in ("vllm", "min-waste")]
    gains = [(gain - 1) * 100 for gain in column(record("run-ahead"), "gain")]
    return {
        "Figure 6, agents": span(programs, slow, *agents) + span(programs, much, *agents),
        "Figure 7, three optimizations": [
            *column(turns, much, "toolbox by turns, cached, dropped"), 32,
            *column(turns, much, "toolbox by turns"),
            *column(turns, much, "toolbox by turns, cached"),
            *column(toolbox, much, f"toolbox, {dropped}"), 16,
        ],
        "Figure 8, deliberate prompting": span(programs, slow, *thoughts)
        + span(programs, much, *thoughts),
        "Figure 8, attention": [column(attention, name, kind)[0] for kind in
                                ("attention sink", "hierarchical attention")
                                for name in (slow, much)],
        "Figure 8, EBNF": [column(attention, name, "EBNF decoding")[0] for name in (slow, much)],
        "Figure 8, beams, prefixes, speculation": [
            *span(programs, slow, "beam search"), *span(programs, slow, "prefix caching"),
            *column(guesses, slow, "speculation, drafter"), *column(guesses, much),
        ],
        "Figure 9, launches": [
            column(launch, "warm p50", "rust", 1)[0], column(launch, "warm p50", "rust", 896)[0],
            896, column(launch, "warm p99", "rust", 896)[0], *span(launch, "cold p50", "rust"),
        ],
        "Figure 10, a call": span(record("calls"), "µs", "rust", "python"),
        "Figure 11, calls per token": [
            column(calls, name, program)[0] for program in ("text completion", *beams)
            for name in ("inference", "control")
        ],
        "Table 4, time per token by size": [
            12, *span([r for r in compare if r["side"] in ("rust", "python")], "× vllm", "tiny"),
            100, *span([r for r in compare if r["side"] in ("rust", "python")], "× vllm", "small"),
        ],
        "Table 5, batching": [
            *column(batching, "of adaptive", "eager"),
            *(number for k in (8, 32) for number in
              (*column(batching, "of adaptive", f"k only {k}"), k)),
            *(number for k in (2, 20) for number in
              (*column(batching, "of adaptive", f"t only {k}"), k)), 32,
        ],
        "Figure 5, parallel calls": [
            *column(parallel, sync, "async"), *column(smollm2, sync, "async"),
            *column(smollm2, "× stateless", "async"),
            *column(record("async-bfcl"), sync, "async, lpt"),
        ],
        "Figure 6, chains": [
            *column(record("async", 2), sync, "async"),
            *(column(record("async-stateless", 2), name, "async, lpt")[0]
              for name in (sync, "× stateless")),
        ],
        "Figure 8, interrupts by users": column(record("async", 4), sync, "async"),
        "Section 6.3, formulas": [min(formulas), max(formulas)],
        "Section 6.4, overheads": [put[0] - put[1]],
        "Table 1, accuracy": [
            *(column(parallel, "right", side)[0] for side in ("sync", "async")), 46,
            *(column(record("async", 2), "right", side)[0] for side in ("sync", "async")), 99,
        ],
        "load at one latency": [max(borne) / 0.2],
        "requests completed": [max(ratios["completed/s"])],
        "latency per token": [min(ratios[ms]), max(ratios[ms]), real[0] / real[1], 8],
        "waste of vLLM": wasted,
        "each choice alone": [1, (off[-2] - 1) * 100, off[-1]],
        "idle time between steps": [
            column(ideal, f"{guest} 8", "worker idle between plans")[0]
            for guest in ("rust", "python")
        ] + [8],
        "throughput": [min(gains), max(gains), 12],
    }  # fmt: skip


# What is told of tests, or has no number of a record.
NOT_MEASURED = {
    "Table 1, the API",
    "Table 2, applications",
    "Table 3, cost of the model of programs",
    "Section 8, cap of distributions",
    "Figure 7, traps",
    "six augmentations",
    "price",
}


def test_figures_of_the_papers_page_are_those_of_records() -> None:
    text = (DOCS / "papers.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in text.splitlines()
            if line.startswith("| ") and not line.startswith("| |")]  # fmt: skip
    expected = figures_of_papers()
    assert {name for name, *_ in rows} == expected.keys() | NOT_MEASURED
    for name, _, told in rows:
        if name in NOT_MEASURED:
            continue
        plain = re.sub(r"`[^`]*`|\]\([^)]*\)|[A-Za-z]+\d+", "", told)
        stated = re.findall(r"\d+(?:\.\d+)?", plain)
        found = [f"{number:.{len(one.partition('.')[2])}f}"
                 for one, number in zip(stated, expected[name], strict=True)]  # fmt: skip
        assert stated == found, f"docs/papers.md: {name}"


def test_the_comparison_of_the_readme_is_that_of_its_record() -> None:
    text = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    told = ("tiny", 4), ("tiny", 32), ("small", 8), ("small", 32)
    rows = [row for row in record("compare") if (row["model"], row["at once"]) in told]
    ours = [r for r in rows if r["side"] in ("rust", "python")]
    of_ideal = [row["× ideal"] for row in ours]
    of_vllm = [
        row["ms per token"] / other["ms per token"]
        for row in ours
        for other in rows
        if other["side"] in ("vllm", "vllm-compiled")
        and (other["model"], other["at once"]) == (row["model"], row["at once"])
    ]
    for ratios, what in ((of_ideal, "of the time of a"), (of_vllm, "of vLLM's")):
        assert f"{min(ratios):.2f} to {max(ratios):.2f} {what}" in text
    decode = [row["pie_py ÷ llama.cpp"] for row in record("laptop", 2)
              if re.fullmatch(r"decode × \d+", row[""])]  # fmt: skip
    assert f"{min(decode):.1f} to {max(decode):.1f} times the tokens per second" in text
