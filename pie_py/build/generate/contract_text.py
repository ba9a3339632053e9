"""The part of the contract's text that follows from the table of a sampler's operations."""

from __future__ import annotations

import json
import textwrap

from pie_py.wire.operations import DEFAULT_ORDER, PARAMETERS, Kind, Parameter

_FIRST, _LAST = "    /// - `mix`", "    ///\n    /// This is the order of `transformers`"


def with_parameters(wit: str) -> str:
    """The contract, with the steps and parameters that the table has."""
    start, end = wit.index(_FIRST), wit.index(_LAST)
    lines = []
    for operation in DEFAULT_ORDER:
        said = "; ".join(f"`{p.name}`{_default(p)}: {p.doc}" for p in PARAMETERS[operation])
        said = said or "the one of `sample-masked` and `grammar`"
        alone = [p.name for p in PARAMETERS[operation]] == [operation.label]
        text = f"- {said}" if alone else f"- `{operation.label}`: {said}"
        wrapped = textwrap.wrap(text, 92, subsequent_indent="  ", break_on_hyphens=False)
        lines += [f"    /// {line}\n" for line in wrapped]
    return wit[:start] + "".join(lines) + wit[end:]


def number(value: object) -> str:
    """A default as JSON has it."""
    return json.dumps(value).replace(".0", "")


def _default(parameter: Parameter) -> str:
    listed = parameter.kind in (Kind.TOKENS, Kind.BIASES)
    return "" if listed else f" ({number(parameter.default)})"
