"""A child that a tool runs: doubles a number, or fails."""

import json
from typing import Any


def main(input: dict[str, Any]) -> str:  # noqa: A002 - the SDK passes a dict by this name
    if input["number"] < 0:
        raise ValueError("a negative number")
    return json.dumps({"double": input["number"] * 2})
