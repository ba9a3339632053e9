"""Trait `runtime`: queues, futures, time, randomness, logging, child instances; and `source`, by
which the Python runtime component gets the program that it is to run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pie_control.api.binder import queue_of
from pie_control.errors import ApiError, exceeded, invalid, unsupported
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance, InstanceEnded, InstanceState, Turns
from pie_control.instances.launcher import Launcher
from pie_control.instances.turns import SlowCalls
from pie_control.models.served import ServedModels, traits_of
from pie_control.programs.guests import Unclaimed
from pie_control.timers import Timers
from pie_control.wasm.linker import SUSPENDED
from pie_py import __version__
from pie_py.config.limits import MAX_PRIORITY

if TYPE_CHECKING:
    from pie_control.models.tokenizer import TextCodec
    from pie_py.wire.plan import ModelDescription


MAX_RANDOM_BYTES = 65536


@dataclass(frozen=True)
class GuestClocks:
    """The clocks that guests read, in nanoseconds."""

    date_ns: Callable[[], int]  # since the Unix epoch
    monotonic_ns: Callable[[], int]  # of a clock that never goes back


class RuntimeCalls:
    """The functions of the trait. Those that need the instance alone are plain functions below."""

    def __init__(
        self,
        models: ServedModels,
        load: Callable[[str], Awaitable[None]],
        answers: SlowCalls,
        launcher: Launcher,
        turns: Turns,
        timers: Timers,
        clocks: GuestClocks,
    ) -> None:
        self._models = models
        self._load = load
        self._answers = answers
        self._launcher = launcher
        self._turns = turns
        self._timers = timers
        self._clocks = clocks
        self._infos: dict[str, tuple[ModelDescription, str]] = {}

    def available_models(self, instance: Instance) -> list[str]:
        """Names of the models being served."""
        return self._models.names

    def available_traits(self, instance: Instance, model: str) -> list[str]:
        """Names of the traits that a model offers."""
        return traits_of(self._models.description(model))

    def model_info(self, instance: Instance, model: str) -> Any:
        """Facts about a model, as JSON."""
        if self._models.is_away(model) and model not in self._models.seen:
            return self._once_loaded(instance, model, self.model_info)
        facts = self._models.description(model)
        if (found := self._infos.get(model)) is None or found[0] is not facts:
            found = self._infos[model] = facts, _describe(facts, self._models.codec(model))
        return found[1]

    def create_queue(self, instance: Instance, model: str) -> Any:
        """Creates a command queue and returns its handle."""
        if self._models.is_away(model):
            return self._once_loaded(instance, model, self.create_queue)
        service = self._models.service(model)
        if len(instance.queues) >= instance.limits.queues:
            raise exceeded(
                f"{instance.limits.queues} queues are open, one for each context: free what is not"
                " needed"
            )
        return instance.queues.add(service.open_queue(instance, self._clocks.date_ns()))

    def destroy_queue(self, instance: Instance, queue: int) -> None:
        """Destroys a queue; what is in it still takes effect."""
        target = queue_of(instance, queue)
        target.released(instance, queue, self._clocks.date_ns())
        target.close()
        del instance.queues[queue]

    def _once_loaded(
        self, instance: Instance, model: str, call: Callable[[Instance, str], Any]
    ) -> Any:
        """Suspends the guest until a model is loaded, and answers the call then."""
        instance.log.add("info", f"waits for the model {model}, which is being loaded")

        async def loaded() -> Any:
            await self._load(model)
            return call(instance, model)

        return self._answers.start(instance, loaded)

    def wait(self, instance: Instance, futures: list[int]) -> Any:
        """Suspends the guest until one of the futures is ready; see `TurnState`."""
        most = instance.limits.futures
        if len(futures) > most:  # each future that becomes ready is looked for among them
            raise exceeded(f"a wait for {len(futures)} futures; {most} at most, each named once")
        ready = instance.futures.ready_of(futures)
        if ready:
            return ready
        instance.turn.wait_for(futures)
        if not futures:
            self._turns.give_turn(instance)
        return SUSPENDED

    def now(self, instance: Instance) -> int:
        """Nanoseconds since the Unix epoch."""
        return self._clocks.date_ns()

    def monotonic_now(self, instance: Instance) -> int:
        """Nanoseconds of a clock that never goes back."""
        return self._clocks.monotonic_ns()

    def sleep(self, instance: Instance, nanoseconds: int) -> int:
        """Opens a future that is ready after a time."""
        future = instance.futures.create_outside(FutureKind.DONE, "sleep", nanoseconds / 1e9)
        timer = self._timers.call_later(nanoseconds / 1e9, future.resolve)
        future.on_cancel = timer.cancel
        return future.handle

    def launch(self, instance: Instance, program: str, args: list[str]) -> int:
        """Starts a child instance and opens a future of its result."""
        limits = instance.limits
        if self._launcher.children_of(instance) >= limits.children:
            raise exceeded(f"{limits.children} children are alive; wait for some first")
        if instance.depth >= limits.child_depth:
            raise exceeded(
                f"this instance is a child of generation {instance.depth}, the last that is allowed"
            )
        self._launcher.check_waiting(instance.user)
        found = self._launcher.find(program, instance.user)
        future = instance.futures.create_outside(FutureKind.TEXT, f"child {found.name}")

        def done(ended: InstanceEnded | ApiError) -> None:
            if isinstance(ended, ApiError):
                future.fail(ended)
            elif ended.state is InstanceState.FINISHED:
                future.resolve(ended.text)
            else:
                killed = ended.state is InstanceState.KILLED
                future.fail(ApiError("cancelled" if killed else "failed-dependency", ended.text))

        future.on_cancel = self._launcher.start_child(instance, found, args, done)
        return future.handle


def _describe(facts: ModelDescription, codec: TextCodec) -> str:
    # Some models name a BOS token that their tokenizers do not add: the tokenizer decides.
    begins = facts.bos_token is not None and codec.around[0][:1] == [facts.bos_token]
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
            "begin_token": facts.bos_token,
            "stop_tokens": facts.stop_tokens,
            "around": codec.around,
            "task": facts.task,
            "width": facts.hidden_size,
            "labels": facts.labels,
            "prompts": list(facts.prompts),
            "pooling": facts.pooling,
            "has_chat_template": codec.has_chat_template,
            "chat_arguments": codec.chat_arguments,
            "chat_markers": codec.chat_markers,
            "generation_defaults": codec.generation_defaults,
        }
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


def synchronize(instance: Instance, queue: int) -> int:
    """Opens a future that is ready when the queue's commands so far have taken effect."""
    target = queue_of(instance, queue)
    future = instance.futures.create(FutureKind.DONE)
    target.scheduler.synchronize(target.queue, future)
    return future.handle


def set_queue_priority(instance: Instance, queue: int, priority: int) -> None:
    """Sets a queue's priority."""
    target = queue_of(instance, queue)
    most = instance.quota.priority
    if not -MAX_PRIORITY <= priority <= most:
        raise invalid(
            f"priority {priority} is not within {-MAX_PRIORITY} to {most}, which the operator has"
            " given you: lower that of your other queues instead"
        )
    target.queue.priority = priority


def cancel(instance: Instance, future: int) -> None:
    """Gives a future up."""
    instance.futures.cancel(future)


def random_bytes(instance: Instance, count: int) -> bytes:
    """Random bytes from the operating system."""
    if count > MAX_RANDOM_BYTES:
        raise invalid(f"{count} random bytes asked for; {MAX_RANDOM_BYTES} at most a call")
    return os.urandom(count)


def last_checkpoint(instance: Instance) -> bytes:
    """That of a durable instance, which has functions of its own; of others none."""
    return b""


def checkpoint(instance: Instance, state: bytes) -> None:
    """As `durable.service`."""
    raise unsupported("this instance is not durable: launch it with `durable`")


def log(instance: Instance, level: str, message: str) -> None:
    """Writes a line to the instance's log."""
    instance.log.add(level, message)


class SourceCalls:
    """Programs for the Python runtime."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def is_early(self, state: Instance | Unclaimed) -> bool:
        """True if a guest of the Python runtime has no program yet."""
        return isinstance(state, Unclaimed)

    def read(self, state: Instance | Unclaimed) -> Any:
        """The Python program for the Python runtime; suspends a warm instance until it has one."""
        if isinstance(state, Unclaimed):
            return SUSPENDED
        return self._launcher.source(state)

    def keep(self, instance: Instance, code: str) -> None:
        """Keeps what the Python runtime has compiled."""
        self._launcher.codes.keep(instance, instance.program, code)
