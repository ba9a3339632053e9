"""Figures that the READMEs of the library state are those of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from support.library import LIBRARY, Library

NUMBERS = [12, 34, 56, 78, 11, 23, 45, 67]
SUM, DIFFERENCE = {"numbers": NUMBERS}, {"question": "What is 880 - 826?"}
RANDOM = {"delta": 4, "max_tokens": 80, "model_name": "test", "prompt": "The quick"}
COLOURS = {"options": [" black.", " white.", " red."]}
SMALL = {"drafter": "pie-tiny-draft"}
# Logits in bfloat16 may be equal; which token then wins, and how many drafts hold, depends on what
# else is in the batch.
TIES = 2
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
    ("tree_speculation", SMALL, r"(\d+) forwards for 64", lambda f: f["forwards"], TIES),
    ("thinking_budget", {}, r"thoughts to (\d+);", lambda found: int(found["answer"]), 0),
    ("thinking_budget", {}, r"takes (\d+) tokens", lambda found: found["tokens"], 0),
    ("tree_of_thought", DIFFERENCE, r"with (\d+) to \d+ pages", lambda f: f["pages"], 4),
    ("tree_of_thought", DIFFERENCE, r"texts hold (\d+)\.", lambda found: found["alone"], 0),
    ("tree_of_thought", DIFFERENCE, r"finds (\d+),", lambda f: int(f["answer"].split()[-1]), 0),
)


def test_figures(library: Library) -> None:
    launched = [library.launch(name, (), **options) for name, options, *_ in FIGURES]
    for (name, _, pattern, figure, off), instance in zip(FIGURES, launched, strict=True):
        text = (LIBRARY / name / "README.md").read_text(encoding="utf-8")
        expected = " ".join(text.partition("## What to expect\n")[2].partition("\n##")[0].split())
        stated = re.search(pattern, expected)
        assert stated is not None, (name, pattern)
        found = figure(json.loads(instance.result()))
        assert float(stated[1]) == pytest.approx(found, abs=off + 1e-9), (name, expected)
