"""What the worker's answers, and failures, do to commands and their futures."""

from __future__ import annotations

from typing import cast

import numpy as np

from pie_control.errors import ApiError, Code
from pie_control.scheduler.command import (
    Command,
    ForwardCommand,
    NextDistCommand,
    SampleCommand,
)
from pie_py.wire.plan import BatchResult

# Errors of rows that the worker could not carry out though it carried out the others.
_REFUSED: dict[str, Code] = {
    "sample": "invalid-argument",
    "embed_sampled": "failed-dependency",
    "embed_image": "invalid-argument",
    "forward": "out-of-resources",
}


def deliver(commands: list[Command], answer: BatchResult) -> None:
    """Gives the futures of a batch that has run their values. Batches without results pass."""
    if answer.distributions is not None:
        _deliver_distributions(commands, answer)
    elif answer.samples is not None:
        _deliver_samples(cast(list[SampleCommand], commands), answer)
    elif answer.attention is not None:
        _deliver_attention(cast(list[ForwardCommand], commands), answer)


def _deliver_distributions(commands: list[Command], answer: BatchResult) -> None:
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


def _deliver_samples(commands: list[SampleCommand], answer: BatchResult) -> None:
    """Gives every command its token, its log-probability, and the most likely tokens with theirs."""
    samples = answer.samples
    assert samples is not None
    tokens, logprobs = samples.tokens.tolist(), samples.logprobs.tolist()
    top_tokens, top_logprobs = samples.top_tokens.view(np.uint32), samples.top_logprobs
    for i, command in enumerate(commands):
        if command.queue.failure is None and tokens[i] >= 0:
            top = command.sampler.top
            if command.on_token is not None:
                command.on_token(tokens[i])
            command.future.resolve(
                (tokens[i], logprobs[i], top_tokens[i, :top], top_logprobs[i, :top])
            )


def _deliver_attention(commands: list[ForwardCommand], answer: BatchResult) -> None:
    """Gives every command that observes its rows, and their numbers."""
    attention = answer.attention
    assert attention is not None
    starts = attention.starts.tolist()
    for i, command in enumerate(commands):
        wanted = command.observation
        if wanted is not None and command.queue.failure is None:
            wanted.future.resolve((wanted.rows, attention.values[starts[i] : starts[i + 1]]))


def refusal(command: Command, text: str) -> ApiError:
    """The error of a command that the worker refused while it carried out the others of its batch."""
    if isinstance(command, SampleCommand) and command.mask is not None and command.mask.error:
        return ApiError("limit-exceeded", command.mask.error)
    return ApiError(_REFUSED.get(command.kind, "internal"), text)


def fail(command: Command, error: ApiError) -> None:
    """Fails a command. Nothing depends on a distribution but its future.

    Nor does anything on a sample: the worker refuses to embed a token that was not chosen.
    """
    if isinstance(command, NextDistCommand):
        command.future.fail(error)
    elif isinstance(command, SampleCommand):
        _fail_sample(command, error)
    else:
        if isinstance(command, ForwardCommand) and command.observation is not None:
            command.observation.future.fail(error)
        command.queue.fail(error)


def fail_dependant(command: Command) -> None:
    """Fails a command for what an earlier one of its queue did."""
    if isinstance(command, NextDistCommand) and not command.future.ready:
        command.future.fail(command.queue.dependency_error())
    elif isinstance(command, SampleCommand):
        _fail_sample(command, None if command.future.ready else command.queue.dependency_error())
    elif isinstance(command, ForwardCommand):
        wanted = command.observation
        if wanted is not None and not wanted.future.ready:
            wanted.future.fail(command.queue.dependency_error())


def _fail_sample(command: SampleCommand, error: ApiError | None) -> None:
    if command.on_token is not None:
        command.on_token(None)
    if error is not None:
        command.future.fail(error)
