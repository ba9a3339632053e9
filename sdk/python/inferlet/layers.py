"""Programs of the literature in a model's layers, given as
`context.generate(layers=layers.steer(vector, at=[12]))`.

Each is a short program of `device.layers`, whose text the server has
(`pie_py/device_programs/rules/layers.py`), to be read, changed, or put together with others in one.
`at` are numbers of layers, before which it runs; -1 is the last one. With `prompt` it runs for the
tokens of the prompt, too, which then go through the model again. Vectors are lists, or
`device.uploaded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from inferlet.device import Attend

Given: TypeAlias = Sequence[float] | Sequence[Sequence[float]] | dict[str, Any]


def _floats(given: Any) -> Any:
    """Uploaded vectors, or lists of floats."""
    if isinstance(given, dict):
        return given
    several = isinstance(given, Sequence) and not isinstance(given, str)
    return [_floats(one) for one in given] if several else float(given)


def steer(
    vector: Given, at: Sequence[int], strength: float = 1.0, *, prompt: bool = True
) -> Attend:
    """Adds a vector `[hidden]` to the residual stream (Turner et al., Activation Addition, 2023;
    Rimsky et al., Contrastive Activation Addition, 2024).
    """
    return Attend(
        "steer", {"strength": float(strength)}, {"vector": _floats(vector)}, tuple(at), prompt
    )


def ablate(direction: Given, at: Sequence[int], *, prompt: bool = True) -> Attend:
    """Takes a direction `[hidden]`, of any length, out of the residual stream (Arditi et al.,
    Refusal in Language Models Is Mediated by a Single Direction, 2024).
    """
    return Attend("ablate", {}, {"direction": _floats(direction)}, tuple(at), prompt)


def probe(
    weights: Given,
    at: Sequence[int],
    bias: Sequence[float] | None = None,
    *,
    prompt: bool | Literal["last"] = False,
) -> Attend:
    """Keeps the scores of linear classifiers `[n, hidden]` (Alain and Bengio, 2016): `scores` of
    the newest token that has gone through the model, and the `sums` of all, in
    `await generation.state()`. Beside uploaded weights the bias has to be given.
    """
    zeros = [0.0] * len(weights if bias is None else bias)
    given = {
        "weights": _floats(weights),
        "bias": zeros if bias is None else _floats(bias),
        "scores": zeros,
        "sums": zeros,
    }
    return Attend("probe", {}, given, tuple(at), prompt)


def logit_lens(at: Sequence[int], *, prompt: bool = False) -> Attend:
    """Keeps what each of some layers would say (nostalgebraist, The Logit Lens, 2020): `tokens`,
    and their `logprobs`, of the newest token that has gone through the model, in
    `await generation.state()`.
    """
    given = {"tokens": [0] * len(at), "logprobs": [0.0] * len(at)}
    return Attend("logit_lens", {}, given, tuple(at), prompt)


def early(at: Sequence[int], hidden: int) -> Attend:
    """Keeps the residual stream before some layers, of a model of `hidden` numbers, for a sampler
    such as `samplers.dola`.
    """
    return Attend("early", {}, {"early": [[0.0] * hidden] * len(at)}, tuple(at), "last")
