"""Reads texts that could exhaust a parser's stack: all of them are errors, or values."""

from asynclm.choices import Syntax
from asynclm.cml.calls import CallError, parse_call
from asynclm.tools.evaluator import evaluate
from asynclm.tools.vocabulary import EvaluationError


def attempt(read, text: str) -> bool:
    try:
        read(text)
    except (CallError, EvaluationError):
        return True
    return False


def main(args: list[str]) -> str:
    count = 16_000
    texts = [
        "[" * count + "]" * count,
        "(" * count,
        "1" + "+1" * (count // 2 - 1),
        "1" + "if 1 else 1" * 1000,
        "1" + " if 1 else 1" * 1000,
        "-" * count + "1",
        "not " * 3000 + "1",
        "x" + ".a" * 8000,
        "lambda: " * 1500 + "1",
        "1" + "**1" * 5000,
        "x" + "[0]" * 5000,
        "f(" * 5000 + ")" * 5000,
        "await " * 2000 + "x",
        "1" + " and 1" * 2500,
        "1" + "<1" * 8000,
        "f'" + "{x}" * 5000 + "'",
        "\x00",
    ]
    seen = []
    flat = ", ".join(["-1.5e-3", "'a' 'b'", "[1]", '{"k": 2}'] * 100)
    for flatly in (
        lambda: parse_call(f"f({flat})", Syntax.PYTHON).positional,
        lambda: parse_call(f"f(x=[{flat}])", Syntax.PYTHON).arguments["x"],
        lambda: parse_call(
            '{"name": "f", "arguments": {"x": [' + "[1]," * 399 + "1]}}", Syntax.JSON
        ).arguments["x"],
        lambda: evaluate(f"[{flat}]"),
    ):
        assert len(flatly()) == 400
        seen.append("flat")
    for number, text in enumerate(texts):
        for name, read in (
            ("python", lambda t: parse_call(f"f({t})", Syntax.PYTHON)),
            ("bare", lambda t: parse_call(t, Syntax.PYTHON)),
            ("json", lambda t: parse_call(t, Syntax.JSON)),
            ("evaluate", evaluate),
        ):
            if not attempt(read, text):
                seen.append(f"{name}{number}")
    return " ".join(seen)
