"""Calls of durable instances about samplers and runs, whose tokens are chosen once and for all."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from pie_control.api.binder import run_of
from pie_control.durable.waits import Call, durable_of, error_of, note_answer, noted, quiet, until
from pie_control.errors import ApiError
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_control.journal.past import Call as PastCall
from pie_control.models.served import ServedModels
from pie_control.scheduler.commands.run import RunCommand
from pie_control.wasm.linker import HostFunction

# Of the files whose fingerprint a model has: another one's tokens would not be those of a journal.
SUFFIXES = (".json", ".safetensors", ".gguf", ".model", ".jinja")
_BEGINS = re.compile(r"[ \t\n\r]*\{[ \t\n\r]*")  # an object in JSON
PART_BYTES = 64 << 10  # of the beginning and of the end of each large file


def run_calls(models: ServedModels) -> dict[str, Callable[[HostFunction], Call]]:
    """Makes the functions about models that need more than others."""
    return {
        "runtime.create-queue": partial(_create_queue, models),
        "sample.create-sampler": _create_sampler,
        "sample.start-run": _start_run,
        "sample.take-tokens": partial(_take_tokens, "sample.take-tokens"),
        "sample.next-tokens": partial(_take_tokens, "sample.next-tokens"),
        "sample.end-run": _end_run,
    }


def _create_queue(models: ServedModels, function: HostFunction) -> Call:
    """The model is the one that the instance had before."""
    asked = quiet(function)

    def call(instance: Instance, model: str) -> Any:
        def note(handle: Any) -> None:
            if not isinstance(handle, ApiError):
                folder = models.service(model).description.folder
                durable_of(instance).uses(model, fingerprint(folder))

        return noted(note, asked, instance, model)

    return call


def _create_sampler(function: HostFunction) -> Call:
    """A sampler without a seed gets one that is the same in each life."""
    asked = quiet(function)

    def call(instance: Instance, queue: int, parameters: str) -> Any:
        seed = durable_of(instance).seed()
        parameters = parameters or "{}"
        if begins := _BEGINS.match(parameters):
            # Of two seeds the last one counts, which is the program's own.
            rest = parameters[begins.end() :]
            parameters = f'{{"seed": {seed}{"" if rest[:1] == "}" else ", "}{rest}'
        return asked(instance, queue, parameters)

    return call


def _start_run(function: HostFunction) -> Call:
    asked = quiet(function)

    def call(instance: Instance, queue: int, *args: Any) -> Any:
        handle = asked(instance, queue, *args)
        durable = durable_of(instance)
        durable.runs[run_of(instance, queue, handle)[1]] = durable.open()
        return handle

    return call


def _take_tokens(name: str, function: HostFunction) -> Call:
    """As many tokens as an earlier life took, which are the same; or those that are there."""
    real = function.call

    def again(instance: Instance, run: RunCommand, before: PastCall) -> Any:
        durable = durable_of(instance)
        end = run.taken + len(before.value)
        tokens = run.tokens[run.taken : end].tolist()
        if tokens != before.value:
            why = f"the model chose {tokens[:8]}, not {before.value[:8]}"
            raise durable.departs(name, before.key, why)
        run.taken = end
        durable.took(run, len(tokens))
        return before.value

    def note(instance: Instance, run: RunCommand, key: int, tokens: Any) -> None:
        failed = isinstance(tokens, ApiError)
        note_answer(instance, name, key, tokens if failed else list(tokens))
        if not failed:
            durable_of(instance).took(run, len(tokens))

    def call(instance: Instance, queue: int, run: int, *count: int) -> Any:
        durable = durable_of(instance)
        found = run_of(instance, queue, run)[1]
        key = durable.runs[found]
        before = durable.next_call(name, key)
        if before is not None and not before.ok:
            raise error_of(before.value)
        if before is not None:
            count_then = found.taken + len(before.value)
            return _with_tokens(
                instance, found, count_then, partial(again, instance, found, before)
            )
        return noted(partial(note, instance, found, key), real, instance, queue, run, *count)

    return call


def _end_run(function: HostFunction) -> Call:
    """Ends a run, once it has the tokens that it had in an earlier life."""
    asked = quiet(function)

    def call(instance: Instance, queue: int, run: int, count: int) -> Any:
        durable = durable_of(instance)
        found = instance.queues[queue].runs.get(run) if queue in instance.queues else None
        ready = partial(asked, instance, queue, run, count)
        if found is None or not durable.goes_over:
            return ready()
        return _with_tokens(instance, found, count, ready)

    return call


def _with_tokens(instance: Instance, run: RunCommand, count: int, make: Callable[[], Any]) -> Any:
    """Calls `make` once a run has so many tokens, or is over."""
    if run.over or len(run.tokens) >= count:
        return make()
    future = instance.futures.create(FutureKind.DONE)
    run.allow(count)
    run.when(count, future)

    def made() -> Any:
        instance.futures.cancel(future.handle)
        return make()

    return until(instance, [future.handle], made)


@cache
def fingerprint(folder: str) -> str:
    """That of the files of a model: weights, tokenizer, templates. Large ones count by their size,
    their beginning, where the tensors' names and shapes are, and their end.
    """
    found = hashlib.sha256()
    place = Path(folder)
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    for path in files:
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        size = path.stat().st_size
        found.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            found.update(file.read(PART_BYTES))
            file.seek(max(0, size - PART_BYTES))
            found.update(file.read())
    return found.hexdigest()[:32]
