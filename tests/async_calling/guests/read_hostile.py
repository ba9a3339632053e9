"""Reads texts that could exhaust a parser's stack: all of them are errors, or values."""

from asynclm.cml.calls import CallError, parse_call


def attempt(read, text: str) -> bool:
    try:
        read(text)
    except CallError:
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
    assert len(parse_call(f"f(x=[{flat}])").arguments["x"]) == 400
    for number, text in enumerate(texts):
        for name, read in (("python", lambda t: parse_call(f"f(x={t})")), ("bare", parse_call)):
            if not attempt(read, text):
                seen.append(f"{name}{number}")
    return " ".join(seen)
