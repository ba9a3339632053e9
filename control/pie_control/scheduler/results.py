"""What the worker's answers, and failures, do to commands and their futures."""

from __future__ import annotations

import numpy as np

from pie_control.errors import ApiError
from pie_control.scheduler.command import Command, NextDistCommand
from pie_py.wire.plan import BatchResult


def deliver(commands: list[Command], answer: BatchResult) -> None:
    """Gives every command its own part of the distributions: token ids, probabilities."""
    assert answer.distributions is not None
    tokens = answer.distributions.tokens.view(np.uint32)
    probabilities = answer.distributions.probabilities
    for i, command in enumerate(commands):
        assert isinstance(command, NextDistCommand)
        if command.queue.failure is None:
            k = command.k
            command.future.on_cancel = None
            command.future.resolve((tokens[i, :k], probabilities[i, :k]))


def fail(command: Command, error: ApiError) -> None:
    """Fails a command. Nothing depends on a distribution but its future."""
    if isinstance(command, NextDistCommand):
        command.future.fail(error)
    else:
        command.queue.fail(error)


def fail_dependant(command: Command) -> None:
    """Fails a command for what an earlier one of its queue did."""
    if isinstance(command, NextDistCommand) and not command.future.ready:
        command.future.fail(command.queue.dependency_error())
