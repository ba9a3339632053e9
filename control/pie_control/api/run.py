"""Trait `sample`: runs, which choose token after token in one call."""

from __future__ import annotations

from functools import partial
from typing import Any

from pie_control.api.adapter import find_adapter, used_by
from pie_control.api.binder import check_ids, queue_of, run_of, waiting_run_of
from pie_control.errors import exceeded, invalid
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_control.models.model import OpenQueue
from pie_control.resources.run_pages import Ask, RunPages
from pie_control.scheduler.commands.run import FirstToken, RunCommand
from pie_control.scheduler.commands.sample import SampleCommand, TokenMask, only
from pie_control.wasm.linker import SUSPENDED

MOST_GUESSED = 16  # tokens at a time


def start_run(
    instance: Instance,
    queue: int,
    sampler: int,
    embed: int,
    position: int,
    own_embed: int,
    input_pages: list[int],
    output_pages: list[int],
    adapter: str,
    most: int,
    stops: list[int],
) -> int:
    """Queues a run and returns its handle."""
    target = queue_of(instance, queue, "sample")
    space = target.space
    found = space.samplers.find(sampler)
    source, own = space.embeds.find_one(embed), space.embeds.find_one(own_embed)
    if not space.embed_pool.written.item(source):
        raise invalid(f"embed {embed} holds nothing yet; give it to a forward as output")
    if source == own:
        raise invalid("a run needs an embed of its own, besides `embed`")
    if found.mixes:
        raise invalid("a run goes on by itself: its sampler can't read contexts beside")
    found.check_choice()
    check_ids(stops, target.model.description.vocab_size, "stop")
    _check_length(target, position, most)
    through = find_adapter(instance, target, adapter) if adapter else None
    reclaim = partial(target.model.reclaim.end_younger, instance)
    pages = RunPages(
        space,
        input_pages,
        output_pages,
        _asking(instance, target),
        reclaim,
        target.model.has_spare_page,
    )
    target.queue.check_room(2)
    if len(target.runs) >= instance.limits.samplers:
        raise exceeded(f"{len(target.runs)} runs of the queue; end some first")
    slot = used_by(instance, through)
    run = RunCommand(found, own, position, pages, most, frozenset(stops), slot)
    run.own_version = None if through is None else through.version
    run.note_version(target.model.weights)
    mask = None
    if instance.durable is not None and not found.has_state:
        run.know(instance.durable.tokens_of_next())
        if run.known:
            mask = TokenMask(only(run.known[0], target.model.description.vocab_size))
    first = SampleCommand(source, found, found.steps, mask, FirstToken(run))
    pages.begin()
    target.queue.sees = input_pages, output_pages
    target.scheduler.start(target.queue, first, run)
    found.steps += 1
    return target.runs.add(run)


def _check_length(target: OpenQueue, position: int, most: int) -> None:
    longest = target.model.description.max_position
    if most < 1 or position + most - 1 > longest:
        raise invalid(
            f"{most} tokens from position {position} on: at least one, and the model's context has"
            f" {longest} positions"
        )


def _asking(instance: Instance, target: OpenQueue) -> Ask:
    """Takes a page for a run as a call of the guest would."""
    model = target.model

    def ask(take: Any, answer: Any) -> int | None:
        target.space.check_new_pages(1)
        page = model.take_pages(instance, 1, take, answer)
        return None if page is SUSPENDED else page

    return ask


def _check_count(count: int) -> None:
    if count < 1:
        raise invalid("0 tokens asked for; ask for at least one")


def speculate(instance: Instance, queue: int, run: int, text: list[int], most: int) -> None:
    """Has a run guess its next tokens."""
    target, found = run_of(instance, queue, run)
    facts = target.model.description
    _check_guesses(found, most)
    if len(text) > facts.max_position:
        raise invalid(
            f"a text of {len(text)} tokens; the model's context has {facts.max_position} positions"
        )
    if text and (largest := max(text)) >= facts.vocab_size:
        raise invalid(f"{largest} is no token of the model")
    found.guesses = True
    target.scheduler.speculate(found, text, most)


def speculate_with(
    instance: Instance, queue: int, run: int, draft_queue: int, draft_run: int, most: int
) -> None:
    """Has a run guess what another one chooses."""
    target, found = run_of(instance, queue, run)
    small, drafts = run_of(instance, draft_queue, draft_run)
    _check_guesses(found, most)
    sizes = [one.model.description.vocab_size for one in (target, small)]
    if sizes[0] != sizes[1]:
        raise invalid(
            f"run {draft_run} is of a model of {sizes[1]} tokens, and run {run} of {sizes[0]}: a"
            " drafter has the same vocabulary"
        )
    if drafts is found or drafts.guesses or drafts.is_draft:
        raise invalid(f"run {draft_run} guesses, or drafts for another run")
    if drafts.taken or drafts.waiting:
        raise invalid(f"tokens of run {draft_run} were waited for; a drafter's cannot be")
    found.guesses = True
    target.scheduler.speculate_with(found, drafts, most)


def _check_guesses(run: RunCommand, most: int) -> None:
    if not 1 <= most <= MOST_GUESSED:
        raise invalid(f"{most} tokens to guess at a time; 1 to {MOST_GUESSED} can be")
    if run.is_draft:
        raise invalid("the run's tokens are another run's guesses")


def run_progress(instance: Instance, queue: int, run: int, count: int) -> int:
    """Opens a future that is ready when tokens can be taken."""
    _, found = waiting_run_of(instance, queue, run)
    _check_count(count)
    future = instance.futures.create(FutureKind.DONE)
    if found.ask(count):
        future.resolve()
    else:
        found.when(found.taken + count, future)
    return future.handle


def take_tokens(instance: Instance, queue: int, run: int) -> Any:
    """Tokens that are there."""
    return run_of(instance, queue, run)[1].take()


def next_tokens(instance: Instance, queue: int, run: int, count: int) -> Any:
    """Suspends the guest until tokens can be taken, and takes them."""
    _, found = waiting_run_of(instance, queue, run)
    _check_count(count)
    if found.ask(count):
        return found.take()
    future = instance.futures.create(FutureKind.DONE)
    found.when(found.taken + count, future)

    def answer(instance: Instance, future: int) -> Any:
        instance.futures.take(future, FutureKind.DONE)
        return found.take()

    instance.turn.wait_for([future.handle], answer)
    return SUSPENDED


def run_logprobs(instance: Instance, queue: int, run: int, first: int, count: int) -> Any:
    """Log-probabilities of tokens that were taken."""
    _, found = run_of(instance, queue, run)
    if first + count > found.taken:
        raise invalid(
            f"tokens {first} to {first + count} of a run of which {found.taken} were taken"
        )
    return found.logprobs[first : first + count]


def run_versions(instance: Instance, queue: int, run: int) -> list[tuple[str, int]]:
    """Versions of the weights, and the first token that each has computed."""
    return run_of(instance, queue, run)[1].versions


def end_run(instance: Instance, queue: int, run: int, count: int) -> list[int]:
    """Ends a run, of which the first tokens stand; spans of the pages that it has taken."""
    target, found = run_of(instance, queue, run)
    if count > len(found.tokens):
        raise invalid(f"{count} tokens to keep of a run that has {len(found.tokens)}")
    del target.runs[run]
    return target.end_run(found, count)
