"""Trait `runtime`: queues, futures, time, randomness, logging, child instances."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from pie_control.api.binder import implement
from pie_control.errors import ApiError
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Ended, Instance, State
from pie_control.wasm import SUSPENDED
from pie_py import __version__

if TYPE_CHECKING:
    from pie_control.models.tokenizer import TextCodec
    from pie_control.scheduler.queue import CommandQueue
    from pie_py.wire.plan import ModelDescription

MAX_RANDOM_BYTES = 65536
MAX_PRIORITY = 100
# Hold for every model.
CONTROL_TRAITS = (
    "runtime",
    "session",
    "grammar",
    "messaging",
    "store",
    "http",
    "mcp",
    "prefix-cache",
)


def get_arg(instance: Instance) -> list[str]:
    """The arguments given at launch."""
    return instance.args


def instance_id(instance: Instance) -> str:
    """The instance's identifier."""
    return instance.id


def user(instance: Instance) -> str:
    """The user who launched the instance."""
    return instance.user


def version(instance: Instance) -> str:
    """The server's version."""
    return __version__


def available_models(instance: Instance) -> list[str]:
    """Names of the models being served."""
    return list(instance.host.services)


def available_traits(instance: Instance, model: str) -> list[str]:
    """Names of the traits that a model offers."""
    return traits_of(instance.host.service(model).description)


def traits_of(model: ModelDescription) -> list[str]:
    """Names of the traits that a model offers, those of the control layer first."""
    return [*CONTROL_TRAITS, *model.traits]


def model_info(instance: Instance, model: str) -> str:
    """Facts about a model, as JSON."""
    service = instance.host.service(model)
    if service.info is None:
        service.info = _describe(service.description, instance.host.codec(model))
    return service.info


def _describe(facts: ModelDescription, codec: TextCodec) -> str:
    # Models name a token of beginning that their tokenizers do not use: what was trained counts.
    begins = facts.bos_token is not None and codec.first_token == facts.bos_token
    return json.dumps(
        {
            "name": facts.name,
            "architecture": facts.architecture,
            "page_size": facts.page_size,
            "vocab_size": facts.vocab_size,
            "max_position": facts.max_position,
            "max_batch_tokens": facts.max_batch_tokens,
            "layers": facts.layers,
            "heads": facts.heads,
            "bos_token": facts.bos_token if begins else None,
            "stop_tokens": facts.stop_tokens,
            "has_chat_template": codec.has_chat_template,
        }
    )


def queue_of(instance: Instance, handle: int, trait: str | None = None) -> CommandQueue:
    """The queue behind a handle, of a model that has a trait.

    Raises:
        ApiError: `invalid-handle`, `unsupported`.
    """
    try:
        queue = instance.queues[handle]
    except KeyError:
        raise ApiError("invalid-handle", f"{handle} is no queue of this instance") from None
    if trait is not None and trait not in queue.service.traits:
        queue.service.check_trait(trait)
    return queue


def create_queue(instance: Instance, model: str) -> int:
    """Creates a command queue and returns its handle."""
    service = instance.host.service(model)
    if len(instance.queues) >= instance.limits.queues:
        raise ApiError(
            "limit-exceeded", f"{instance.limits.queues} queues are open; destroy one first"
        )
    handle = instance.next_queue
    instance.next_queue += 1
    instance.queues[handle] = service.create_queue(instance)
    return handle


def destroy_queue(instance: Instance, queue: int) -> None:
    """Destroys a queue; what is in it still takes effect."""
    queue_of(instance, queue).close()
    del instance.queues[queue]


def synchronize(instance: Instance, queue: int) -> int:
    """Opens a future that is ready when the queue's commands so far have taken effect."""
    target = queue_of(instance, queue)
    future = instance.futures.create(FutureKind.DONE)
    target.synchronize(future)
    return future.handle


def set_queue_priority(instance: Instance, queue: int, priority: int) -> None:
    """Sets a queue's priority."""
    target = queue_of(instance, queue)
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise ApiError("invalid-argument", f"priority {priority} is not within ±{MAX_PRIORITY}")
    target.priority = priority


def wait(instance: Instance, futures: list[int]) -> Any:
    """Suspends the guest until one of the futures is ready; see `Executor`."""
    most = instance.limits.futures
    if len(futures) > most:  # each future that becomes ready is looked for among them
        raise ApiError(
            "limit-exceeded", f"a wait for {len(futures)} futures; {most} at most, each named once"
        )
    ready = instance.futures.ready_of(futures)
    if ready:
        return ready
    instance.awaited = futures
    if not futures:
        instance.host.executor.give_turn(instance)
    return SUSPENDED


def take(instance: Instance, future: int) -> None:
    """Consumes a future without a value."""
    instance.futures.take(future, FutureKind.DONE)


def take_text(instance: Instance, future: int) -> Any:
    """Consumes a future of text."""
    return instance.futures.take(future, FutureKind.TEXT)


def take_texts(instance: Instance, future: int) -> Any:
    """Consumes a future of a list of texts."""
    return instance.futures.take(future, FutureKind.TEXTS)


def take_blob(instance: Instance, future: int) -> Any:
    """Consumes a future of bytes."""
    return instance.futures.take(future, FutureKind.BLOB)


def cancel(instance: Instance, future: int) -> None:
    """Gives a future up."""
    instance.futures.cancel(future)


def now(instance: Instance) -> int:
    """Nanoseconds since the Unix epoch."""
    return time.time_ns()


def monotonic_now(instance: Instance) -> int:
    """Nanoseconds of a clock that never goes back."""
    return time.monotonic_ns()


def sleep(instance: Instance, nanoseconds: int) -> int:
    """Opens a future that is ready after a time."""
    future = instance.open_outside(FutureKind.DONE, "sleep", nanoseconds / 1e9)
    timer = instance.host.timers.call_later(nanoseconds / 1e9, future.resolve)
    future.on_cancel = timer.cancel
    return future.handle


def random_bytes(instance: Instance, count: int) -> bytes:
    """Random bytes from the operating system."""
    if count > MAX_RANDOM_BYTES:
        raise ApiError(
            "invalid-argument", f"{count} random bytes asked for; {MAX_RANDOM_BYTES} at most a call"
        )
    return os.urandom(count)


def log(instance: Instance, level: str, message: str) -> None:
    """Writes a line to the instance's log."""
    instance.add_log(level, message)


def launch(instance: Instance, program: str, args: list[str]) -> int:
    """Starts a child instance and opens a future of its result."""
    limits = instance.limits
    if len(instance.children) + instance.starting >= limits.children:
        raise ApiError(
            "limit-exceeded", f"{limits.children} children are alive; wait for some first"
        )
    if instance.depth >= limits.child_depth:
        raise ApiError(
            "limit-exceeded",
            f"this instance is a child of generation {instance.depth}, the last that is allowed",
        )
    lifecycle = instance.host.lifecycle
    found = lifecycle.programs.find(program, instance.user)
    future = instance.open_outside(FutureKind.TEXT, f"child {found.name}")

    def done(ended: Ended | ApiError) -> None:
        if isinstance(ended, ApiError):
            future.fail(ended)
        elif ended.state is State.FINISHED:
            future.resolve(ended.text)
        else:
            killed = ended.state is State.KILLED
            future.fail(ApiError("cancelled" if killed else "failed-dependency", ended.text))

    future.on_cancel = lifecycle.start_child(instance, found, args, done)
    return future.handle


FUNCTIONS = implement(
    "runtime",
    get_arg,
    instance_id,
    user,
    version,
    available_models,
    available_traits,
    model_info,
    create_queue,
    destroy_queue,
    synchronize,
    set_queue_priority,
    wait,
    take,
    take_text,
    take_texts,
    take_blob,
    cancel,
    now,
    monotonic_now,
    sleep,
    random_bytes,
    log,
    launch,
    suspends=(wait,),
)
