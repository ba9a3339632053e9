"""A client that works without end, in a process of its own, and writes down what was acknowledged.

Its lines are: the machine's monotonic clock, a tab, and `program NAME`, `value KEY VALUE`, `right`
(a text was), `wrong …`, or `told …` (an error that it was told).
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count
from pathlib import Path

from pie_py.client.errors import ClientError
from pie_py.client.sync import Client

GUESTS = Path(__file__).parent / "guests"
TOKENS = 16
PATIENCE = 20.0  # seconds, while a server starts again


def main(endpoint: str, file: str, name: str) -> None:
    """Works until it is killed."""
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(text: str) -> None:
        os.write(log, f"{time.monotonic()}\t{text}\n".encode())

    numbers = count(1)
    right: str | None = None
    while True:
        try:
            with Client(endpoint, patience=PATIENCE) as client:
                keeper = client.upload(GUESTS / "keeper.py")
                bystander = client.upload(GUESTS / "bystander.py")
                while True:
                    number = next(numbers)
                    source = f"async def main(args):\n    return '{name}-{number}'\n"
                    client.upload(source.encode(), name=f"{name}-{number}")
                    say(f"program {name}-{number}")
                    key, value = f"{name}/{number}", f"{number * number}"
                    if client.launch(keeper, ["keep", key, value]).result(60) == "kept":
                        say(f"value {key} {value}")
                    text = client.launch(bystander, [str(TOKENS)]).result(60)
                    right = right or text
                    say("right" if text == right else f"wrong {text!r}")
        except (ClientError, TimeoutError) as error:
            say(f"told {type(error).__name__}: {str(error)[:150]!r}")
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
