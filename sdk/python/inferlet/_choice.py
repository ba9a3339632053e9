"""How a generation's tokens are chosen: by the server, or by a function of the program's own, from
distributions. A `Generator` has one `DeviceChoice`, made for the first token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Tokens
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple

from inferlet import raw
from inferlet._drafts import Drafts
from inferlet._run import NO_GUESSES, Guessing, Run
from inferlet._sequence import Sequence
from inferlet._walk import Walk
from inferlet.device import Attend, ProgramSampler, values_json
from inferlet.errors import PieError
from inferlet.grammar import Grammar, Matcher
from inferlet.sample import DISTRIBUTION_SIZE, Distribution, Sampler

_ALL = 1 << 30  # tokens, more than a context has
# A program's own rule: a token, of the most likely ones and their probabilities at temperature 1.
Rule = Callable[[list[int], list[float]], int]


class Choice(NamedTuple):
    """A token, and what is known about it."""

    token: int | None  # None where a grammar has come to its end
    # The most likely tokens, as many as the chooser looked at or was asked for.
    distribution: Distribution
    # The token's log-probability at temperature 1, if the server chose it.
    logprob: float | None = None


@dataclass(frozen=True, slots=True)
class Choosing:
    """How the tokens of a generation are to be chosen.

    Attributes:
        sampler: the rule.
        grammar: what the text has to look like.
        forced: whether tokens that the grammar leaves no choice about are taken without the model.
        beside: other texts, which get the same tokens; the sampler reads their logits.
        choose: the program's own rule, instead of a sampler.
        guessing: how the server may guess tokens.
        drafts: of a smaller model, which guesses them instead.
        attend: a program that chooses what layers read.

    Raises:
        ValueError: a rule of the program beside a grammar, which the server holds the text to.
    """

    sampler: Sampler | ProgramSampler
    grammar: Grammar | None = None
    forced: bool = True
    beside: Tokens[Sequence] = ()
    choose: Rule | None = None
    guessing: Guessing = NO_GUESSES
    drafts: Drafts | None = None
    attend: Attend | None = None

    def __post_init__(self) -> None:
        if self.choose is not None and self.grammar is not None:
            raise ValueError(
                "`choose` and a grammar: within a grammar the server chooses. Leave one out, or"
                " walk through the grammar yourself: `matcher = await grammar.matcher(model)`"
            )

    @property
    def on_server(self) -> bool:
        """True if only the server can choose so: tokens may be accepted in its steps alone."""
        return (
            self.attend is not None
            or self.grammar is not None
            or not isinstance(self.sampler, Sampler)
        )

    async def chooser(self, sequence: Sequence) -> DeviceChoice:
        """Makes the chooser of a generation that continues a text. Raises PieError:
        `invalid-argument` for wrong parameters or a wrong grammar, `unsupported`, `limit-exceeded`,
        `out-of-resources`.
        """
        matcher = None if self.grammar is None else await self.grammar.matcher(sequence.model)
        return DeviceChoice(sequence, self, matcher)


def _chosen(rule: Rule, seen: Distribution) -> int:
    """The token that a rule of the program returns. Raises TypeError if it is none."""
    token = rule(seen.tokens, seen.probabilities)
    found = index(token) if hasattr(token, "__index__") else -1
    if not 0 <= found < 2**32:  # what the bindings can't convert ends the instance
        raise TypeError(
            f"`choose` returned {token!r:.60}: it must return a token's id, such as one of `tokens`"
        )
    return found


# The facts of a sampler that nothing needs.
_NONE: dict[str, Any] = {
    **dict.fromkeys(("looks_back", "counts", "has_state", "in_layers"), False),
    "beside": 0,
    "window": None,
}


class DeviceChoice:
    """The server's choice, within a grammar if there is one, or the program's own.

    Attributes:
        tells: True if choices are taken one by one: more than the token is to be known of each.
    """

    def __init__(self, sequence: Sequence, choosing: Choosing, matcher: Matcher | None) -> None:
        """Makes the sampler on the server, and feeds it the tokens so far. Raises PieError: as
        `Choosing.chooser`; ValueError: it reads the logits of more or fewer contexts beside.
        """
        self._sequence = sequence
        self._choosing = choosing
        self._sampler = choosing.sampler
        # With `attend` each token is to go through the model by itself.
        forced = choosing.forced and choosing.attend is None
        self._walk = None if matcher is None else Walk(matcher, forced=forced)
        self._looked = False  # the last token has run, and no choice has followed
        self._logprob = math.nan  # of the last choice by itself
        self._run = Run(sequence)
        self._given = len(sequence.known_tokens())  # before the first choice
        own = choosing.choose is not None
        self._handle, self._facts = -1, _NONE
        if not own or choosing.attend is not None:  # not every model has samplers
            self._handle = sequence.open_sampler(self._parameters())
            self._facts = json.loads(raw.sampler_facts(sequence.queue, self._handle))
        # Log-probabilities were asked for, or a step that is undone would have been counted: the
        # draws that follow were others.
        self.tells = own or self._sampler.logprobs > 0 or bool(self._facts["counts"])
        window = self._facts["window"]
        self._told = 0 if window is None else window or _ALL  # tokens that have to run for it
        beside = choosing.beside
        if (wanted := self._facts["beside"]) != len(beside):
            sequence.close_sampler(self._handle)
            raise ValueError(
                f"the sampler reads the logits of {wanted} contexts beside this one (by"
                f" `device.beside`), and there are {len(beside)}"
            )
        self._feed_all()

    def _parameters(self) -> str:
        text = self._sampler.to_json()
        attend = self._choosing.attend
        if attend is None:
            return text
        return json.dumps({**json.loads(text), "attend": attend.to_dict()})

    @property
    def is_complete(self) -> bool:
        """True if the text may end here: always without a grammar, never after a cancelled step."""
        return self._walk is None or self._walk.is_complete

    async def next_token(self, most: int, stops: frozenset[int]) -> int | None:
        """The next token; None at the end of the grammar.

        Args:
            most: tokens that the server may go on to by itself.
            stops: tokens that end the generation.

        Raises:
            RuntimeError: a step within a grammar was cancelled before.
        """
        if not (self._run.goes_on() or await self._start(most, stops)):
            return (await self.choose()).token
        token = await self._run.next()
        return await self.next_token(most, stops) if token is None else token

    async def next_tokens(self, most: int, stops: frozenset[int]) -> list[int]:
        """All tokens up to the generation's end, or the next one. Raises as `next_token`."""
        runs = self._run.goes_on() or await self._start(most, stops)
        if runs and (tokens := await self._run.rest()):
            return tokens
        token = await self.next_token(most, stops)
        return [] if token is None else [token]

    async def whole_text(
        self, most: int, stops: frozenset[int], ends: Tokens[str], *, to_client: bool
    ) -> tuple[list[int], str] | None:
        """All tokens at once with their text (`Run.text`); None if each token is needed first."""
        before = self._sequence.tail()
        if not await self._start(most, stops):
            return None
        return await self._run.text(before, ends, to_client=to_client)

    def scores(self, count: int) -> tuple[list[float], list[str]]:
        """Log-probabilities at temperature 1 of the last tokens, all of them of one call, not a
        number for a token that a grammar has forced; and the versions of the weights of each.
        Raises ValueError: the program chooses itself.
        """
        if self._choosing.choose is not None:
            raise ValueError("`choose` is the program's own: its `logprobs` are those that it gets")
        if (found := self._run.logprobs(count)) is not None:
            return found, self._run.versions(count)
        name, adapter = self._sequence.model.name, self._sequence.adapter
        return [self._logprob], [raw.weights_version(name, adapter or "")]

    async def _start(self, most: int, stops: frozenset[int]) -> bool:
        """Starts a run after all that is pending; whether there is one now."""
        # Each token's mask depends on the one before; and a run goes on with one text alone.
        choosing = self._choosing
        if self._walk is not None or choosing.beside or choosing.choose or most < 2:
            return False
        drafts = choosing.drafts
        if drafts is not None:
            self._run.retract()
            await drafts.follow(self._sequence.known_tokens())
        await self._prepare()
        started = self._run.start(self._handle, most, stops, choosing.guessing)
        if started and drafts is not None:
            drafts.start(self._run, self._parameters())
        return started

    async def choose(self) -> Choice:
        """The next token, and what the server reports about it. Raises as `next_token`.

        A program's own choice the server does not need to know, unless a program in the layers
        follows it: then it "chooses" the only token that it may.
        """
        walk, beside, own = self._walk, self._choosing.beside, None
        if (rule := self._choosing.choose) is not None:
            seen = await self.look(DISTRIBUTION_SIZE)
            own = Choice(_chosen(rule, seen), seen)
            if self._choosing.attend is None:
                return own
        if walk is not None:
            self._feed(walk.ask())
            if walk.waiting:
                self._logprob = math.nan
                return Choice(walk.waiting.popleft(), Distribution([], []))
            if walk.matcher.is_finished:
                return Choice(None, Distribution([], []))
        future = await self._queue_choice(own)
        try:
            answer = await self._sequence.outcome(future, raw.take_sample)
        except PieError as error:
            for other in beside:
                other.recover(error)
            raise
        except BaseException:
            if walk is not None:
                walk.lose()
            raise
        for other in beside:
            other.ran(0)
        token, logprob, top, logprobs = answer
        self._logprob = logprob
        return Choice(token, Distribution(top, [math.exp(one) for one in logprobs]), logprob)

    async def _prepare(self) -> int:
        """The embed after which the next token is chosen, after all that is pending."""
        self._run.retract()
        if self._run.undone:
            self._run.undone = False
            if self._facts["counts"]:
                self._renew()
        embed = await self._read()
        self._looked = False
        return embed

    async def _read(self) -> int:
        """The embed after all that is pending, of which `attend` has the last choice alone."""
        reads = self._choosing.attend is not None and not self._looked
        embed = await self._sequence.output_embed(self._told, self._handle if reads else None)
        self._told = 0
        return embed

    async def look(self, k: int) -> Distribution:
        """The `k` most likely next tokens, without a choice."""
        await self._read()
        self._looked = True
        return await self._sequence.next_distribution(k)

    async def _queue_choice(self, own: Choice | None) -> int:
        """The future of the next token, after all that is pending has been queued."""
        embed = await self._prepare()
        others = [(other.queue, await other.output_embed()) for other in self._choosing.beside]
        for queue, hidden in others:
            raw.mix_logits(queue, hidden, self._sequence.queue, self._handle)
        queue = self._sequence.queue
        if own is not None and own.token is not None:
            mask = self._sequence.mask_of(own.token)
            return raw.sample_masked(queue, embed, self._handle, mask)
        if self._walk is None:
            return raw.sample(queue, embed, self._handle)
        return raw.sample_constrained(queue, embed, self._handle, self._walk.matcher.handle)

    def _renew(self) -> None:
        """Replaces the sampler, which has counted choices that were undone. Raises RuntimeError: a
        device program's state would begin again with it.
        """
        if self._facts["has_state"] or self._choosing.attend is not None:
            raise RuntimeError(
                "tokens of this generation were undone, and its device program counts tokens and"
                " has state: begin a new generation"
            )
        seed = self._sampler.seed
        if seed is not None:  # not the same draws again
            self._sampler = self._sampler.seeded((seed + 1) % 2**64)
        self._sequence.close_sampler(self._handle)
        self._handle = self._sequence.open_sampler(self._parameters())
        self._feed_all()

    async def state(self) -> dict[str, Any]:
        """The state of the device program that chooses, by name, after the tokens so far; or of the
        one in the layers, if that alone has some. Raises ValueError: no device program chooses.
        """
        own, attend = self._sampler, self._choosing.attend
        if attend is not None and self._facts["in_layers"]:
            given = attend.given
        elif isinstance(own, ProgramSampler):
            given = own.given
        else:
            raise ValueError("no device program has chosen a token of this generation")
        self._run.retract()
        future = raw.read_state(self._sequence.queue, self._handle)
        found = json.loads(await self._sequence.outcome(future, raw.take_text))
        return {**given, **found}

    def put(self, values: Mapping[str, Any]) -> None:
        """Gives the device program that chooses other values of some names, from the next token on.
        Raises ValueError: no device program chooses; PieError: `invalid-argument`.
        """
        if not isinstance(self._sampler, ProgramSampler):
            raise ValueError("no device program has chosen a token of this generation")
        self._run.retract()
        raw.write_state(self._sequence.queue, self._handle, values_json(values))
        self._sampler = self._sampler.given_again(values)

    def end(self) -> None:
        """Ends the run, if there is one."""
        self._run.retract()
        if self._choosing.drafts is not None:
            self._choosing.drafts.end(self._sequence.known_tokens())

    # Tokens of the program's own

    def check(self, tokens: Tokens[int]) -> None:
        """Refuses tokens that the grammar does not allow, or beside `attend`. As `Walk.check`."""
        if self._choosing.attend is not None:
            raise ValueError(
                "`attend` follows the tokens that the server chooses: accept none, but"
                " `await step.execute()`; or write the rule as a `device.program`"
            )
        if self._walk is not None:
            self._walk.check(tokens)

    def note(self, tokens: Tokens[int]) -> None:
        """Takes note of tokens of the program's own choice, after `check`."""
        if self._walk is not None:
            self._walk.matcher.advance(tokens)
        self._feed(tokens)

    def _feed(self, tokens: Tokens[int]) -> None:
        if tokens and self._facts["looks_back"]:
            raw.feed_sampler(self._sequence.queue, self._handle, list(tokens), True)

    def _feed_all(self) -> None:
        """Feeds a new sampler all tokens of the context."""
        if self._facts["looks_back"]:
            queue, known = self._sequence.queue, self._sequence.known_tokens()
            raw.feed_sampler(queue, self._handle, known[: self._given], False)
            raw.feed_sampler(queue, self._handle, known[self._given :], True)

    def close(self) -> None:
        """Gives the sampler and the matcher back. A second call does nothing."""
        self.end()
        self._sequence.close_sampler(self._handle)
        if self._walk is not None:
            self._walk.matcher.close()

    def __del__(self) -> None:
        # Half made, or gone with its context or its worker.
        with suppress(AttributeError, PieError):
            self.close()
