"""Writes `docs/api.md`: every function of the contract, and the conformance cases that hold it.

    python docs/make_api.py

A test compares the committed file with what this writes.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
OUTPUT = REPOSITORY / "docs" / "api.md"
IN_PAPER = 42  # functions of the paper's API

HEAD = """\
# The functions of the contract

Written by `docs/make_api.py` from `sdk/wit/inferlet.wit` and the conformance cases; do not edit.

There are {count} functions in {traits} traits; the paper (Pie, table 1) has {paper}. *Queue* says
whether a function goes through a command queue of a model. Cases are named by file and number within
it, the first few of them; those in *italics* make the function fail.
"""
SHOWN = 5  # cases of a function


def main() -> None:
    """Writes the file."""
    OUTPUT.write_text(render(), encoding="utf-8")
    print(f"wrote {OUTPUT.relative_to(REPOSITORY)}")


def render() -> str:
    """The table's text."""
    from case_files import load  # of the tests

    from pie_py.build.wit import parse

    text = (REPOSITORY / "sdk" / "wit" / "inferlet.wit").read_text(encoding="utf-8")
    contract = parse(text)
    traits = contract.worlds["inferlet"].imports
    tests: dict[str, dict[str, bool]] = defaultdict(dict)  # function -> case -> only fails there
    numbers: dict[str, int] = defaultdict(int)
    for case in load():
        numbers[case.file] += 1
        name = f"{case.file} {numbers[case.file]}"
        for step in case.steps:
            if step.function:
                fails = step.error is not None
                tests[step.function][name] = tests[step.function].get(name, True) and fails
    count = sum(len(contract.interfaces[trait].functions) for trait in traits)
    lines = [HEAD.format(count=count, traits=len(traits), paper=IN_PAPER)]
    for trait in traits:
        functions = contract.interfaces[trait].functions
        lines += [
            f"## {trait} ({len(functions)})",
            "",
            "| function | what it does | queue | cases |",
            "|---|---|---|---|",
        ]
        for name, function in functions.items():
            params = ", ".join(f"{name}: {of}" for name, of in function.params)
            returns = f" → {function.result}" if function.result else ""
            queue = "yes" if function.params and function.params[0][0] == "queue" else ""
            lines.append(
                f"| `{name}`<br>`({params}){returns}` | {_sentence(function.doc)} | {queue}"
                f" | {_cases(tests[name])} |"
            )
        lines.append("")
    return "\n".join(lines)


def _cases(cases: dict[str, bool]) -> str:
    """The first cases, failures among them, and how many there are besides."""
    order = sorted(cases, key=lambda name: not cases[name])  # those that fail are fewer
    shown = [f"*{name}*" if cases[name] else name for name in order[:SHOWN]]
    more = [f"and {len(order) - SHOWN} more"] if len(order) > SHOWN else []
    return ", ".join(shown + more)


def _sentence(doc: str) -> str:
    """First sentence of a doc comment."""
    doc = doc.replace("\n", " ")
    end = doc.find(". ")
    return (doc if end < 0 else doc[: end + 1]).replace("|", "\\|")


sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests" / "conformance")]

if __name__ == "__main__":
    main()
