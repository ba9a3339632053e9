"""Trait `sample`: the text of a run, which the server reads for the guest."""

from __future__ import annotations

from pie_control.api.binder import waiting_run_of
from pie_control.errors import exceeded, invalid
from pie_control.instances.durable import Durable
from pie_control.instances.futures import Future, FutureKind
from pie_control.instances.instance import Instance, Turns
from pie_control.models.served import ServedModels
from pie_control.models.tokenizer import TokenText
from pie_control.scheduler.commands.run import LEAD, RunCommand

# What the server looks for in the text of each token.
MOST_END_CHARACTERS = 1024
MOST_HIDDEN = 1024  # numbers
MOST_BEFORE = 16  # tokens; a character has four bytes, and some tokens have none


class RunTextCalls:
    """Text of runs, with the tokenizers of the served models."""

    def __init__(self, models: ServedModels, turns: Turns) -> None:
        self._models = models
        self._turns = turns

    def run_text(
        self,
        instance: Instance,
        queue: int,
        run: int,
        before: list[int],
        ends: list[str],
        hidden: list[int],
        to_client: bool,
    ) -> int:
        """Opens a future of a run's text."""
        target, found = waiting_run_of(instance, queue, run)
        target.model.check_trait("tokenize")
        codec = self._models.codec(target.model.description.name)
        if not all(ends):
            raise invalid("an empty string would end the text at once")
        if sum(map(len, ends)) > MOST_END_CHARACTERS or len(hidden) > MOST_HIDDEN:
            raise exceeded(
                f"strings that end a text have {MOST_END_CHARACTERS} characters at most, all"
                f" together, and there are {MOST_HIDDEN // 2} spans of hidden tokens at most"
            )
        if len(hidden) % 2:
            raise invalid(
                f"hidden tokens are spans, pairs of start and count; {len(hidden)} numbers are no"
                " pairs"
            )
        text = TokenText(codec.bytes_of, before[-MOST_BEFORE:], ends, hidden)
        future = instance.futures.create(FutureKind.RUN_TEXT)
        _Reader(instance, found, text, future, self._turns if to_client else None).resolve()
        return future.handle


class _Reader:
    """Reads a run to its end. It waits for tokens as a future does, and for the client's room."""

    def __init__(
        self,
        instance: Instance,
        run: RunCommand,
        text: TokenText,
        future: Future,
        turns: Turns | None,
    ) -> None:
        """Has read nothing yet. Without `turns` nothing is sent to the client."""
        self._instance = instance
        self._run = run
        self._text = text
        self._future = future
        self._turns = turns
        self._read = 0  # tokens
        self._pieces: list[str] = []
        self._unsent = ""
        self._ended = False
        durable = self._durable = instance.durable
        self._key = 0 if durable is None else durable.coming_key
        self._told = 0 if durable is None else durable.told()  # characters, in an earlier life
        future.on_cancel = lambda: instance.outbox.forget(self._room_came)

    @property
    def ready(self) -> bool:
        """True if it is not wanted any more."""
        return self._future.ready

    def resolve(self) -> None:
        """Reads what is there, then waits: tokens have come, the run is over, or there is room."""
        if self._future.ready:
            return
        if not self._ended:
            self._read_on()
        if self._turns is not None and not self._send():
            self._instance.outbox.when_room(self._room_came)
        elif not self._ended:
            run = self._run
            every = self._turns is not None or bool(self._text.ends)
            lead = LEAD if self._turns is not None else run.most
            run.allow(self._read + lead)
            run.when(self._read + 1 if every else run.most, self)
        elif self._run.error is not None:
            self._future.fail(self._run.error)
        else:
            if self._durable is not None:
                self._saw(self._durable, "")
            self._future.resolve(("".join(self._pieces), self._read, self._text.found))

    def _read_on(self) -> None:
        run, text = self._run, self._text
        tokens = run.tokens[self._read :]
        stopped = bool(run.over and tokens and run.error is None and tokens[-1] in run.stops)
        piece, read = text.feed(tokens[:-1] if stopped else tokens)
        self._read += read
        if text.is_ended:
            self._ended = True
            run.end(None)
        elif run.over:
            self._ended = True
            self._read += stopped
            piece += text.finish()
        if piece:
            self._pieces.append(piece)
            self._unsent += piece[self._told :]
            self._told = max(0, self._told - len(piece))

    def _send(self) -> bool:
        """Sends the client what it has room for: all or nothing. Whether all is sent."""
        if not self._unsent:
            return True
        if self._instance.keeps_newest:
            self._instance.make_room()
        if not self._instance.outbox.has_room:
            return False
        if self._durable is not None:
            self._saw(self._durable, self._unsent)
        self._instance.outbox.send(self._unsent)
        if self._durable is not None:
            self._durable.says()
        self._unsent = ""
        return True

    def _saw(self, durable: Durable, text: str) -> None:
        """The program sees the tokens that were read, or the client sees a text of them."""
        durable.saw(self._key, text, self._run, self._run.tokens[: self._read].tolist())

    def _room_came(self) -> None:
        if self._turns is not None and not self._future.ready:
            self.resolve()
            for blocker in tuple(self._instance.turn.blockers):
                blocker.has_work(self._instance)
            self._turns.give_another()
