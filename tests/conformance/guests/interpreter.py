"""Performs the contract's functions as its client tells it; see `tests/conformance/README.md`.

The same program as `tests/conformance/rust`, in Python. Its arguments say what it is: `serve`
calls, `return TEXT` or `fail TEXT`.
"""

import json

from inferlet import PieError, raw


class NoValue(Exception):
    """An argument refers to a call that failed."""


def main(args):
    mode, *rest = args or ["serve"]
    if mode == "return":
        return " ".join(rest)
    if mode == "fail":
        raise RuntimeError(" ".join(rest))
    while True:
        future = raw.receive()
        while not raw.wait([future]):
            pass
        text = raw.take_text(future)
        if not text:
            return "done"
        raw.send(json.dumps(perform(json.loads(text))))


def perform(calls):
    """Performs calls, `[function, arguments]` each; what came of each."""
    outcomes: list[dict[str, object]] = []
    for name, arguments in calls:
        try:
            values = [resolve(argument, outcomes) for argument in arguments]
            answer = getattr(raw, name.replace("-", "_"))(*values)
            outcomes.append({"ok": plain(answer)})
        except (PieError, NoValue) as error:
            outcomes.append({"error": str(error)})
    return outcomes


def resolve(argument, outcomes):
    """An argument as the SDK wants it: references become what earlier calls returned."""
    if isinstance(argument, list):
        return [resolve(item, outcomes) for item in argument]
    if not isinstance(argument, dict):
        return argument
    if "bytes" in argument:
        return bytes(argument["bytes"])
    if "repeat" in argument:
        return resolve(argument["repeat"], outcomes) * argument["times"]
    if "tuple" in argument:
        return tuple(resolve(item, outcomes) for item in argument["tuple"])
    outcome = outcomes[argument["of"]]
    if "ok" not in outcome:
        raise NoValue(f"no-value: call {argument['of']} failed: {outcome['error']}")
    value = outcome["ok"]
    for index in argument["at"]:
        value = value[index]
    return value + argument["add"] if argument["add"] else value


def plain(value):
    """A result as JSON has it."""
    if isinstance(value, bytes):
        return list(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
