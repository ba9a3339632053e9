"""Tasks to be done with function calls: chains of dependent calls, and the request that asks for
them.

A task is what a user says in one sentence: a call, then perhaps another that needs the first one's
result, and so on. Tasks do not depend on each other. A request has one or several (AsyncLM, section
4.2: the graphs of multi-turn scenarios are chains, independent ones are combined).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from examples.pie_tiny.corpus.functions import (
    Function,
    Value,
    draw_functions,
    draw_value,
    write_call,
    write_value,
)
from examples.pie_tiny.corpus.sample import Split

RESULT = object()
"""Stands for the previous call's result where an argument's value would be."""

ERRORS = ("timeout", "not found", "no access", "try later")


@dataclass(frozen=True)
class Call:
    """One call of a chain.

    Attributes:
        function: what is called.
        arguments: a value for each of its parameters, or `RESULT`.
        result: what it will return; an `error: ...` ends its chain.
        failed: whether the result is an error.
        answered: whether the user wants the result; a call without an answer ends its chain.
    """

    function: Function
    arguments: tuple[object, ...]
    result: Value
    failed: bool = False
    answered: bool = True

    def text(self, previous: Value | None) -> str:
        """The call as the model has to write it, given the previous call's result."""
        values = [previous if value is RESULT else value for value in self.arguments]
        return write_call(
            self.function.name,
            [(key, value) for key, value in zip(self.function.parameters, values, strict=True)],  # type: ignore[misc]
        )

    @property
    def written_result(self) -> str:
        """The result as it stands in an interrupt."""
        return str(self.result) if self.failed else write_value(self.result)


Chain = tuple[Call, ...]


@dataclass(frozen=True)
class Request:
    """A prompt's request: the functions it offers and the chains to be called."""

    functions: tuple[Function, ...]
    chains: tuple[Chain, ...]


def draw_request(random: Random, split: Split, lengths: Sequence[int], distractors: int) -> Request:
    """A request of `len(lengths)` chains, with so many calls each."""
    calls = sum(lengths)
    # Now and then one function serves several chains, as when the weather of three cities is asked
    # for.
    shared = calls > 1 and random.random() < 0.2
    needed = max(1, calls - random.randrange(1, calls)) if shared else calls
    functions = draw_functions(random, split, needed + distractors)
    used = functions[:needed]
    order = used + [random.choice(used) for _ in range(calls - needed)]
    random.shuffle(order)
    remaining = iter(order)
    chains = tuple(_chain(random, split, [next(remaining) for _ in range(n)]) for n in lengths)
    random.shuffle(functions)
    return Request(tuple(functions), chains)


def draw_lengths(random: Random, large: bool) -> list[int]:
    """How many calls each chain has: 1 to 5 in 1 to 3 chains, or 3 chains of 1 to 5 if `large`."""
    if large:
        return [random.randint(1, 5) for _ in range(3)]
    calls = random.randint(1, 5)
    if random.random() < 0.25:
        return [1] * calls  # all of them independent
    lengths = [1] * random.randint(1, min(3, calls))
    for _ in range(calls - len(lengths)):
        lengths[random.randrange(len(lengths))] += 1
    return lengths


def system_prompt(mode: str, functions: Sequence[Function]) -> str:
    """The system message: how calls are made, then a line for each function."""
    return "\n".join([f"Calls: {mode}.", *(function.specification for function in functions)])


def user_prompt(random: Random, chains: Sequence[Chain], *, listed: bool = False) -> str:
    """The user's message: one sentence, or a list with a line for each chain, if `listed` for one
    alone, too.
    """
    lines = [describe(random, chain) for chain in chains]
    return lines[0] if len(lines) == 1 and not listed else "\n".join(f"- {line}" for line in lines)


def describe(random: Random, chain: Chain) -> str:
    """A chain in words: `fetch the weather with city Paris, then send mail with text the
    result.`
    """
    words = ", then ".join(_describe_call(random, call) for call in chain)
    return words + ("." if chain[-1].answered else ", no answer needed.")


def describe_function(random: Random, name: str) -> str:
    """A function's name as a user may say it: `fetch_weather`, `fetch weather`, `fetch the
    weather`.
    """
    draw = random.random()
    return name if draw < 0.4 else name.replace("_", " the " if draw < 0.7 else " ")


def identifier(chains: Sequence[Chain], chain: int, step: int) -> str:
    """The identifier of a call; empty if it needs no answer (AsyncLM, section 3.1)."""
    return f"{chain_letter(chain)}{step + 1}" if chains[chain][step].answered else ""


def chain_letter(chain: int) -> str:
    """The letter that the identifiers of a chain's calls begin with; their step follows: `b2`."""
    return "abcdefghijklmnopqrstuvwxyz"[chain]


def closing_words(results: Sequence[tuple[int, str]]) -> str:
    """The model's words when all is done: the last result of each chain that has an answer."""
    told = ", ".join(f"{chain_letter(chain)}: {result}" for chain, result in results)
    return f"Done. {told}." if told else "Done."


def _chain(random: Random, split: Split, functions: Sequence[Function]) -> Chain:
    calls = []
    for step, function in enumerate(functions):
        arguments: list[object] = [draw_value(random, split) for _ in function.parameters]
        if step and arguments and random.random() < 0.8:
            arguments[random.randrange(len(arguments))] = RESULT
        failed = random.random() < 0.03
        result = f"error: {random.choice(ERRORS)}" if failed else draw_value(random, split)
        calls.append(Call(function, tuple(arguments), result, failed))
    return tuple(calls)


def _describe_call(random: Random, call: Call) -> str:
    words = describe_function(random, call.function.name)
    if not call.arguments:
        return words
    quoted = random.random() < 0.3
    given = [
        f"{key} {_describe_value(value, quoted)}"
        for key, value in zip(call.function.parameters, call.arguments, strict=True)
    ]
    listed = given[0] if len(given) == 1 else f"{', '.join(given[:-1])} and {given[-1]}"
    return f"{words} with {listed}"


def _describe_value(value: object, quoted: bool) -> str:
    if value is RESULT:
        return "the result"
    if isinstance(value, str) and (quoted or " " in value):
        return f'"{value}"'
    return str(value)
