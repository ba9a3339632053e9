"""Pages of the site made from the code: every function of the contract with its conformance cases,
operations of device programs, and the methods of the protocol."""

from __future__ import annotations

import importlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from codegen.source import REPOSITORY, field_comments, imported
from pie_py.device_programs.fields import FIELDS
from pie_py.device_programs.language import ATTEND, OPERATIONS
from pie_py.wire.methods import OF_ALL_NODES, OF_GATEWAYS, OF_INSTANCES, Method, name_of

IN_PAPER = 42  # functions of the paper's API
SHOWN = 5  # cases of a function

_KINDS = {"f": "float", "i": "int", "b": "bool"}
_API = """\
# The functions of the contract

There are {count} functions in {traits} traits; the paper (Pie, table 1) has {paper}. *Queue* says
whether a function goes through a command queue of a model. *Cases* lists the first few conformance
cases by file and number; those in *italics* make the function fail.
"""


def render_api() -> str:
    """Text of the page."""
    cases = _cases_of_functions()
    count = sum(len(interface.functions) for interface in imported().values())
    lines = [_API.format(count=count, traits=len(imported()), paper=IN_PAPER)]
    for trait, interface in imported().items():
        lines += [
            f"## {trait} ({len(interface.functions)})",
            "",
            "| function | what it does | queue | cases |",
            "|---|---|---|---|",
        ]
        for name, function in interface.functions.items():
            params = ", ".join(f"{name}: {of}" for name, of in function.params)
            returns = f" → {function.result}" if function.result else ""
            queue = "yes" if function.params and function.params[0][0] == "queue" else ""
            does = " ".join([_sentence(function.doc), *re.findall(r"Gives: .+", function.doc)])
            lines.append(
                f"| `{name}`<br>`({params}){returns}` | {does} | {queue} | {_cases(cases[name])} |"
            )
        lines.append("")
    return "\n".join(lines)


def operations() -> str:
    """Table of what device programs are made of."""
    lines = ["| operation | of | gives | cost | what |", "|---|---|---|---|---|"]
    for name, operation in [*OPERATIONS.items(), *ATTEND.items()]:
        of = " or ".join(_KINDS[letter] for letter in operation.takes)
        of = of if operation.operands < 2 else f"{operation.operands} × {of}"
        gives = _KINDS.get(operation.gives, "the same" if operation.takes else "as given")
        doc = f"Stage `attend`: {operation.doc}" if name in ATTEND else operation.doc
        lines.append(f"| `{name}` | {of} | {gives} | {operation.cost:g} | {doc} |")
    return "\n".join(lines)


def fields() -> str:
    """Table of a sampler's parameters."""
    lines = ["| parameter | default | range | what |", "|---|---|---|---|"]
    for name, field in FIELDS.items():
        numbers = field.kind in ("float", "int")
        bounds = f"{field.least:g} to {field.most:g}" if numbers else field.kind
        lines.append(f"| `{name}` | {field.default} | {bounds} | {field.doc} |")
    return "\n".join(lines)


def methods_of_servers() -> str:
    """Table of what a client may ask of a server."""
    return _methods("method", OF_ALL_NODES + OF_INSTANCES)


def methods_of_gateways() -> str:
    """Table of what a client may ask of a cluster's gateway in addition."""
    return _methods("method of a gateway", OF_GATEWAYS)


def _methods(title: str, methods: Iterable[type[Method[Any]]]) -> str:
    return "\n".join([f"| {title} | params | value |", "|---|---|---|", *map(_method_row, methods)])


def _cases_of_functions() -> dict[str, dict[str, bool]]:
    """The names of the cases that call a function, by function, and whether it only fails there."""
    folder = str(REPOSITORY / "tests")
    if folder not in sys.path:
        sys.path.append(folder)
    load: Any = importlib.import_module("conformance.case_files").load
    found: dict[str, dict[str, bool]] = defaultdict(dict)
    numbers: dict[str, int] = defaultdict(int)
    for case in load():
        numbers[case.file] += 1
        name = f"{case.file} {numbers[case.file]}"
        for step in case.steps:
            if step.function:
                fails = step.error is not None
                found[step.function][name] = found[step.function].get(name, True) and fails
    return found


def _cases(cases: dict[str, bool]) -> str:
    """The first cases, failures among them, and the number of the others."""
    order = sorted(cases, key=lambda name: not cases[name])  # those that fail are fewer
    shown = [f"*{name}*" if cases[name] else name for name in order[:SHOWN]]
    more = [f"and {len(order) - SHOWN} more"] if len(order) > SHOWN else []
    return ", ".join(shown + more)


def _sentence(doc: str) -> str:
    """First sentence of a doc comment."""
    doc = doc.replace("\n", " ")
    end = doc.find(". ")
    return (doc if end < 0 else doc[: end + 1]).replace("|", "\\|")


def _method_row(method: type[Method[Any]]) -> str:
    value = " ".join((method.__doc__ or "").split()).removesuffix(".")
    notes: dict[str, str] = {}
    for one in reversed(method.__mro__):
        notes |= field_comments(one) if issubclass(one, Method) else {}
    params = [f"`{name}`: {notes[name]}".removesuffix(": ") for name in method.__struct_fields__]
    joint = "; " if any(notes.values()) else ", "
    return f"| `{name_of(method)}` | {joint.join(params)} | {value} |"
