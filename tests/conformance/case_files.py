"""Reads the conformance cases; `README.md` says how they are written."""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

CASES = Path(__file__).parent / "cases"

_STEP = re.compile(
    r"(?:(?P<actor>[a-z]+): )?"
    r"(?:repeat (?P<times>\d+) )?"
    r"(?:(?P<name>[a-z_]\w*) = )?"
    r"(?P<function>(?:client\.)?[a-z][a-z0-9-]*)\((?P<arguments>.*?)\)"
    r"(?: ! (?P<error>[a-z-]+)| == (?P<equal>.+))?"
)


class CaseError(ValueError):
    """A case can't be read; the text says where and why."""


@dataclass(frozen=True)
class Step:
    """One line of a case: a call, or something that must hold.

    A call has a `function`; a check has none, and `equal` is what must be true.
    """

    text: str
    line: int  # within the case, from 1
    actor: str = "a"
    times: int = 1
    name: str | None = None  # what the result is called from here on
    function: str | None = None
    arguments: tuple[ast.expr, ...] = ()
    error: str | None = None  # the code that the call must fail with
    equal: ast.expr | None = None  # what the result must be


@dataclass(frozen=True)
class Case:
    """A list of steps, and the rules that it holds the server to."""

    file: str
    name: str
    rules: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def id(self) -> str:
        """Name for test reports."""
        return f"{self.file}: {self.name}"


def load() -> list[Case]:
    """All cases, in the order of the files and within them.

    Raises:
        CaseError: a case is not written as it should be.
    """
    return [case for path in sorted(CASES.glob("*.toml")) for case in _file(path)]


def _file(path: Path) -> list[Case]:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    given = content.get("given", {})
    cases = []
    for fields in content["case"]:
        unknown = set(fields) - {"name", "rules", "given", "steps"}
        if unknown:
            raise CaseError(f"{path.name}: {fields.get('name')}: unknown {sorted(unknown)}")
        text = "\n".join([*(given[name] for name in fields.get("given", [])), fields["steps"]])
        where = f"{path.name}: {fields['name']}"
        steps = tuple(
            step(line.strip(), number, where)
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.strip().startswith("#")
        )
        cases.append(Case(path.stem, fields["name"], tuple(fields["rules"]), steps))
    return cases


def step(text: str, line: int, where: str) -> Step:
    """Reads one step.

    Raises:
        CaseError: with the place.
    """
    try:
        if text.startswith("assert "):
            return Step(text, line, equal=_expression(text.removeprefix("assert ")))
        found = _STEP.fullmatch(text)
        if found is None:
            raise CaseError("neither a call nor an `assert`")
        arguments = _expression(f"[{found['arguments']}]")
        assert isinstance(arguments, ast.List)
        return Step(
            text,
            line,
            found["actor"] or "a",
            int(found["times"] or 1),
            found["name"],
            found["function"],
            tuple(arguments.elts),
            found["error"],
            _expression(found["equal"]) if found["equal"] else None,
        )
    except (SyntaxError, CaseError) as error:
        raise CaseError(f"{where}: line {line}: {text}: {error}") from None


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
