"""Texts of a grammar, each as likely as the model finds it among all of them (ASAp).

To mask what the grammar forbids favours beginnings that the model would not have finished within
it. Each sample tells how much of what follows its beginnings is allowed, and later ones are drawn
by that.
"""

from __future__ import annotations

import json
from random import Random

from inferlet import Context, Grammar, Model


class Place:
    """A beginning of texts: the tokens that may come next.

    Attributes:
        tokens: those that the grammar allows.
        chances: of each, by the model among all tokens.
        worths: the chance of each that a text of the grammar comes of it, at most.
        following: the places behind those that were drawn, by their numbers.
    """

    def __init__(self, tokens: list[int], chances: list[float]) -> None:
        self.tokens, self.chances, self.worths = tokens, chances, chances[:]
        self.following: dict[int, Place] = {}


class Walk:
    """A text that grows where no earlier one has been, with its place in the grammar."""

    def __init__(self, start: Context, grammar: Grammar) -> None:
        self.start, self.grammar = start, grammar
        self.context: Context | None = None
        self.length = 0

    async def look(self, tokens: list[int]) -> Place:
        """The place behind some tokens, which begin with those that were looked behind before."""
        if self.context is None:
            self.context = self.start.fork()
            self.matcher = await self.grammar.matcher(self.start.model)
        new, self.length = tokens[self.length :], len(tokens)
        self.context.append(new)
        self.matcher.advance(new)
        seen = await self.context.distribution(self.start.model.vocab_size)
        mask = self.matcher.mask()
        pairs = zip(seen.tokens, seen.probabilities, strict=True)
        allowed = [(t, p) for t, p in pairs if mask[t // 32] >> t % 32 & 1]
        return Place([t for t, _ in allowed], [p for _, p in allowed])


async def draw(walk: Walk, place: Place, most: int, chance: Random, aligned: bool) -> list[int]:
    """The tokens of one text, none if it does not come to its end; places learn from it."""
    path: list[tuple[Place, int]] = []
    tokens: list[int] = []
    worth = 0.0
    while any(place.worths) and len(path) < most:
        number = chance.choices(range(len(place.tokens)), place.worths)[0]
        path.append((place, number))
        tokens.append(place.tokens[number])
        if tokens[-1] in walk.start.model.stop_tokens:
            worth = 1.0
            break
        if number not in place.following:
            place.following[number] = await walk.look(tokens)
        place = place.following[number]
    ended = worth > 0
    for before, number in reversed(path if aligned else []):
        before.worths[number] = before.chances[number] * worth
        worth = sum(before.worths)
    return tokens if ended else []


async def main(
    prompt: str = "A random number: ",
    ebnf: str = 'start: "0000" | "1" /[01]{3}/',
    samples: int = 64,
    max_tokens: int = 32,
    masked: bool = False,
    seed: int = 1,
    model_name: str | None = None,
) -> str:
    """Returns the texts in their order, and the chance that the model's text is one of the grammar.

    Args:
        prompt: what to continue.
        ebnf: a grammar in Lark's syntax or GBNF.
        samples: how many texts are drawn; those that do not end are not returned.
        max_tokens: most tokens of a text, its end included.
        masked: whether nothing is learned: plain masks.
        seed: makes it repeatable.
        model_name: the model; by default the first that is served.
    """
    model = Model.load(model_name)
    start, grammar, chance = Context(model).fill(prompt), Grammar.lark(ebnf), Random(seed)
    await start.flush()
    first = await Walk(start, grammar).look([])
    texts = []
    for _ in range(samples):
        tokens = await draw(Walk(start, grammar), first, max_tokens, chance, not masked)
        if tokens:
            texts.append(model.tokenizer.decode(tokens[:-1]))
    return json.dumps({"texts": texts, "share": sum(first.worths)})
