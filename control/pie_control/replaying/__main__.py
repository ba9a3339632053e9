"""`python -m pie_control.replaying FILE`: as `pie-py replay` starts it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from pie_control.errors import ProgramRejected
from pie_control.replaying.player import Player, described
from pie_control.replaying.run import Outcome, replay
from pie_py.build import BuildError
from pie_py.config.server import ServerConfig
from pie_py.wire.record import BadRecord, Call, read_record

FAILED = 1
INTERRUPTED = 130


class Output:
    """Messages and the result on standard output, all else on standard error, as `run` does."""

    def __init__(self, calls: bool) -> None:
        """Takes whether each call is shown."""
        self._calls = calls
        self._open_line = False

    def called(self, number: int, call: Call) -> None:
        """A call of the record has been replayed."""
        if self._calls:
            say(f"{number:5} {call.ms:10.1f} ms  {described(call)}")

    def sent(self, message: str | bytes) -> None:
        """The program has sent its client a message."""
        data = message.encode("utf-8", "replace") if isinstance(message, str) else message
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        if data:
            self._open_line = isinstance(message, str) and not message.endswith("\n")

    def end_line(self) -> None:
        """Ends the last line."""
        if self._open_line:
            self.sent("\n")

    def logged(self, level: str, text: str) -> None:
        """The program has printed or logged a line."""
        say(text)

    def ask(self) -> str:
        """The next command for pdb."""
        return sys.stdin.readline()

    def debugs(self, text: str) -> None:
        """Shows what pdb says."""
        print(text, end="", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Tells the user something."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Replays a record; returns 1 if the program fails, or departs from it."""
    parser = argparse.ArgumentParser(prog="pie-py replay")
    parser.add_argument("file", type=Path)
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--source", type=Path)
    options = parser.parse_args()
    try:
        record = read_record(options.file)
        output = Output(options.calls)
        source = None if options.source is None else options.source.read_bytes().decode()
        player = Player(record, output, source)
        outcome = replay(player, ServerConfig().cache_folder, say)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (BadRecord, BuildError, ProgramRejected, OSError) as error:
        say(f"error: {error}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return _report(player, outcome, output)


def _report(player: Player, outcome: Outcome, output: Output) -> int:
    """Says how the replay ended."""
    record, departure = player.record, player.departure
    if departure is not None:
        output.end_line()
        say(f"departs at call {departure.number} of {player.total}:")
        say(f"  the program  {departure.asks}")
        say(f"  the record   {departure.recorded}")
        if player.last is not None:
            say(f"  before that  {described(player.last)}")
        if not outcome.ok:
            say(outcome.text)
        return FAILED
    if player.over:
        output.end_line()
        say(f"the record ends here, after {player.replayed} calls: {record.end}: {record.text}")
        return FAILED if record.end == "finished" else 0
    if outcome.ok:
        if outcome.text:
            output.end_line()
            output.sent(outcome.text)
        output.end_line()
    else:
        output.end_line()
        say(f"error: {outcome.text}")
    recorded = (record.end, _without_places(record.text))
    same = recorded == ("finished" if outcome.ok else "failed", _without_places(outcome.text))
    end = "the end is the record's" if same else f"the record ended: {record.end}: {record.text}"
    say(f"replayed {player.replayed} calls; {end}")
    return 0 if outcome.ok else FAILED


def _without_places(text: str) -> str:
    """A trap's text without its functions: here they have source lines."""
    return text.partition(" (in ")[0] if text.startswith("trap: ") else text


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
