"""Other weights for a model that is served, and pauses of what it computes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio

from pie_control.errors import ApiError, invalid
from pie_py.wire.plan import ReplaceWeights, WeightsDone

if TYPE_CHECKING:
    from pie_control.instances.instance import Ends
    from pie_control.models.served import ServedModels

log = structlog.get_logger("pie.weights")

PAUSED, REPLACED = "paused", "its weights are replaced"  # why a model's plans are held back
STEP_SECONDS = 0.001  # from one look whether the last step is done to the next


@dataclass(slots=True, eq=False)
class _Coming:
    """Weights that the worker is reading."""

    version: str
    done: trio.Event = field(default_factory=trio.Event)
    error: ApiError | None = None


def _read(file: Path) -> None:
    """Has a file in the system's memory: the worker, which maps it, waits for no disk then, and no
    other model for the worker. What is wrong with it the worker says. Blocking.
    """
    with suppress(OSError):
        if file.is_file():
            shutil.copyfile(file, os.devnull)


class Weights:
    """Replaces weights between two steps."""

    def __init__(
        self,
        models: ServedModels,
        send: Callable[[ReplaceWeights], None],
        go_on: Callable[[], None],
        ends: Ends,
        begin_again: Callable[[], None],
    ) -> None:
        """Takes how to send to the worker, which does what it is sent in order; what has plans
        formed again; what ends instances; and what has durable ones begin another life.
        """
        self._models = models
        self._send, self._go_on = send, go_on
        self._ends, self._begin_again = ends, begin_again
        self._coming: dict[str, _Coming] = {}  # by model
        self._count = 0
        self._versions: dict[str, str] = {}  # by model

    async def pause(self, model: str, *, keep: bool) -> None:
        """Returns once a model computes nothing more, or at `resume`. Instances that use it keep
        what they have and go on then; unless `keep`, they end, and durable ones begin again. It
        stays paused when its worker is another one.

        Raises:
            ApiError: `unknown-model`.
        """
        service = self._models.service(model)
        scheduler = service.scheduler
        scheduler.holds.add(PAUSED)
        if not keep:
            self._begin_again()
            for instance in [*service.spaces]:
                self._ends.fail(instance, f"cancelled: the operator has paused model {model!r}")
        # A result sets no event of its own.
        while PAUSED in scheduler.holds and scheduler.in_flight.steps:  # noqa: ASYNC110
            await trio.sleep(STEP_SECONDS)

    def resume(self, model: str) -> None:
        """Has a model go on; does nothing if it is not paused.

        Raises:
            ApiError: `unknown-model`.
        """
        if model not in self._models.holds:
            raise self._models.unknown(model)
        self._models.holds[model].discard(PAUSED)
        self._go_on()

    async def replace(self, model: str, file: str, version: str) -> str:
        """Puts tensors of a file in place of a model's, all or none, and returns the version that
        the model has then: the one given, or a number. It goes on if the caller gives up.

        Raises:
            ApiError: `unknown-model`; `busy`: others are on their way; `worker-lost`;
                `invalid-argument`: the file, or what in it cannot be used.
        """
        service = self._models.service(model)
        if model in self._coming:
            raise ApiError("busy", f"model {model!r} is getting other weights; wait for that")
        self._count += 1
        coming = self._coming[model] = _Coming(version or str(self._count))
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_read, Path(file))
        if coming.error is None:  # the worker is there
            service.scheduler.holds.add(REPLACED)
            self._send(ReplaceWeights(model, file))
        await coming.done.wait()
        if coming.error is not None:
            raise coming.error
        return coming.version

    def on_done(self, answer: WeightsDone) -> None:
        """Takes the worker's answer."""
        coming = self._coming.pop(answer.model)
        service = self._models.services[answer.model]
        if answer.error is None:
            service.renew(coming.version)
            self._versions[answer.model] = coming.version
            log.info("weights replaced", model=answer.model, version=coming.version)
        else:
            text = f"model {answer.model!r}: {answer.error}"
            coming.error = invalid(text)
        service.scheduler.holds.discard(REPLACED)
        self._go_on()
        coming.done.set()

    def on_lost(self, models: Collection[str]) -> None:
        """The worker of these models is gone: the next one has the weights of their checkpoints."""
        for model in models:
            if (version := self._versions.pop(model, None)) is not None:
                log.error("a model has lost its weights with its worker", model=model, lost=version)
            if (coming := self._coming.pop(model, None)) is not None:
                text = f"the inference worker was lost while {model!r} got other weights"
                coming.error = ApiError("worker-lost", text)
                self._models.holds[model].discard(REPLACED)
                coming.done.set()
