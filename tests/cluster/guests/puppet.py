"""Calls functions of the contract, as its client says."""

import json

from inferlet import PieError, raw


def main(args: list[str]) -> str:
    while True:
        future = raw.receive()
        while not raw.wait([future]):
            pass
        text = raw.take_text(future)
        if text == "end":
            return "done"
        number, name, *rest = json.loads(text)
        call = ready if name == "ready" else getattr(raw, name)
        try:
            answer = {"ok": call(*rest)}
        except PieError as error:
            answer = {"error": str(error)}
        raw.send(json.dumps([number, answer]))


def ready(futures: list[int], seconds: float) -> list[int]:
    """Those of some futures that are ready, as soon as one is; none after some seconds."""
    end = raw.sleep(int(seconds * 1e9))
    found: list[int] = []
    while not found:
        found = raw.wait([*futures, end])
    raw.cancel(end)
    return [future for future in found if future != end]
