"""Synchronous tool calls: one at a time (`Sync`), or all that are ready in one turn
(`Sync-Parallel`).

The model ends its turn after the calls; a tool message brings the results (AsyncLM, section 6,
baselines). Calls and results have CML's form here too, so that one model and one parser serve all
forms (AsyncLM, section 6.5: the syntax makes no difference to accuracy).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from examples.pie_tiny.corpus.functions import Value
from examples.pie_tiny.corpus.sample import (
    BEGIN,
    CALL,
    CLOSE,
    END,
    HEAD,
    INTR,
    Piece,
    Sample,
    Split,
    turn,
)
from examples.pie_tiny.corpus.tasks import (
    Chain,
    Request,
    chain_letter,
    closing_words,
    draw_lengths,
    draw_request,
    system_prompt,
    user_prompt,
)

SEQUENTIAL, PARALLEL = "one at a time", "in parallel"


def sequential(random: Random, split: Split) -> Sample:
    """Calls one at a time: the first chain to its end, then the next."""
    request = draw_request(
        random, split, draw_lengths(random, random.random() < 0.08), random.randrange(4)
    )
    return conversation("sequential", SEQUENTIAL, random, request, one_by_one(request))


def one_by_one(request: Request) -> list[list[tuple[int, int]]]:
    """Waves of one call each: the first chain to its end, then the next."""
    return [
        [(chain, step)] for chain, calls in enumerate(request.chains) for step in range(len(calls))
    ]


def parallel(random: Random, split: Split) -> Sample:
    """Calls in waves: the next one of every chain, all in one turn."""
    request = draw_request(
        random, split, draw_lengths(random, random.random() < 0.12), random.randrange(4)
    )
    longest = max(len(calls) for calls in request.chains)
    waves = [
        [(chain, step) for chain, calls in enumerate(request.chains) if step < len(calls)]
        for step in range(longest)
    ]
    return conversation("parallel", PARALLEL, random, request, waves)


def call_block(identifier: str, call: str) -> str:
    """`[CALL]a1[HEAD]fetch_weather(city="Paris")[END]`; the identifier may be empty."""
    return f"{CALL}{identifier}{HEAD if identifier else ''}{call}{CLOSE}"


def interrupt_block(identifier: str, value: str) -> str:
    """`[INTR]a1[HEAD]"mild"[END]`."""
    return f"{INTR}{identifier}{HEAD}{value}{CLOSE}"


def final_results(chains: Sequence[Chain]) -> list[tuple[int, str]]:
    """The end of each chain with an answer: its last result, or the error that stopped it."""
    ends = []
    for number, calls in enumerate(chains):
        last = next((call for call in calls if call.failed), calls[-1])
        if last.answered:
            ends.append((number, last.written_result))
    return ends


def conversation(
    kind: str,
    mode: str,
    random: Random,
    request: Request,
    waves: Sequence[Sequence[tuple[int, int]]],
    *,
    listed: bool = False,
) -> Sample:
    """Turns that make calls in waves of (chain, step); `listed` as in `user_prompt`."""
    prompt = turn("system", system_prompt(mode, request.functions))
    prompt += turn("user", user_prompt(random, request.chains, listed=listed))
    pieces = [Piece(f"{BEGIN}{prompt}<|assistant|>\n", False)]
    for wave in waves:
        alive = [(chain, step) for chain, step in wave if not _stopped(request.chains[chain], step)]
        if not alive:
            continue
        calls, results = "", ""
        for chain, step in alive:
            identifier = f"{chain_letter(chain)}{step + 1}"
            call = request.chains[chain][step]
            calls += call_block(identifier, call.text(_previous(request.chains[chain], step)))
            results += interrupt_block(identifier, call.written_result)
        pieces.append(Piece(calls + END, True))
        pieces.append(Piece("\n" + turn("tool", results) + "<|assistant|>\n", False))
    pieces.append(Piece(closing_words(final_results(request.chains)) + END, True))
    return Sample(kind, tuple(pieces), request)


def _previous(calls: Chain, step: int) -> Value | None:
    return calls[step - 1].result if step else None


def _stopped(calls: Chain, step: int) -> bool:
    return any(call.failed for call in calls[:step])
