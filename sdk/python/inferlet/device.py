"""Device programs: a rule for choosing tokens, in plain Python, that runs where the model runs.

::

    from inferlet import device

    @device.program
    def mirostat(logits, state):
        surprise = -logits.log_softmax() / math.log(2)
        token = device.draw(logits.where(surprise <= state.mu, -math.inf))
        state.mu -= 0.1 * (surprise[token] - 5.0)
        return token

    text = await context.generate(mirostat(mu=10.0), max_tokens=64).collect_text()

The function is never called here. Its text, that of functions that it calls, and the plain values
that it names go to the server, which reads them once and runs the program for each token, of all
generations at once that have the same one. Tensors have kinds (float, int, bool) and sizes; `if`
and loops are of plain values, and are gone when it is read. A mistake is a PieError with the file,
line and column. `docs/device-programs.md` has examples and the operations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias, overload

from inferlet._generated import device_words
from inferlet._generated.device_words import *  # noqa: F403
from inferlet._generated.device_words import Tensor
from inferlet._program_text import Said, said

__all__ = [
    "Attend",
    "DeviceProgram",
    "ProgramSampler",
    "attend",
    "layers",
    "named",
    "per_token",
    "program",
    "uploaded",
]
__all__ += device_words.__all__

Function: TypeAlias = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class ProgramSampler:
    """A device program with what it was given: `context.generate` takes it as a sampler.

    Attributes:
        program: its name in the server's library, or its texts with their constants.
        given: values by name.
        seed: same seed (modulo 2^64), same tokens; without one the server draws it.
        logprobs: how many of the most likely tokens each step returns as well.
    """

    program: str | Said
    given: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    logprobs: int = 0

    def seeded(self, seed: int | None) -> ProgramSampler:
        """The same sampler with another seed."""
        return replace(self, seed=seed)

    def given_again(self, values: Mapping[str, Any]) -> ProgramSampler:
        """The same sampler with other values of some names."""
        return replace(self, given={**self.given, **values})

    def to_json(self) -> str:
        """The parameters, as `raw.create_sampler` takes them."""
        sent = {**_sent(self.program), "given": _finite(self.given)}
        if self.logprobs:
            sent["logprobs"] = self.logprobs
        if self.seed is not None:  # of another type the server says so
            sent["seed"] = self.seed % 2**64 if isinstance(self.seed, int) else self.seed
        return json.dumps(sent)


class DeviceProgram:
    """A function that chooses tokens where the model runs; made by `program`."""

    def __init__(self, program: str | Said, name: str = "program", doc: str | None = None) -> None:
        """The program of a name in the server's library, or of texts."""
        self._program = program
        self.__doc__ = doc
        self.__name__ = name

    def __call__(
        self, *, seed: int | None = None, logprobs: int = 0, **given: Any
    ) -> ProgramSampler:
        """A sampler of the program.

        Args:
            seed: same seed, same tokens.
            logprobs: how many of the most likely tokens each step returns as well.
            given: state by name: a number, a bool, or a list (of lists) of one kind.
        """
        return ProgramSampler(self._program, given, seed, logprobs)


def program(function: Function | str) -> DeviceProgram:
    """Makes a device program of a function of `logits` and, if it has any, `state`; or of its text.

    `logits` is float `[vocabulary]`, with minus infinity where a grammar rules a token out. The
    function returns the token.

    Raises:
        TypeError: the text of the function, or of one that it calls, is not known here.
    """
    own = said(function)
    if isinstance(function, str):
        return DeviceProgram(own)
    return DeviceProgram(own, function.__name__, function.__doc__)


def named(name: str) -> DeviceProgram:
    """A program of the server's library, or a sampler that the user has uploaded."""
    return DeviceProgram(name, name)


# The stage `attend`


@dataclass(frozen=True, slots=True)
class Attend:
    """A program of the stage `attend` with what it was given: `context.generate(attend=...)`.

    Attributes:
        program: its name in the server's library, or its texts.
        constants: values that it names.
        given: state by name.
        at: of a program in the layers, those before which it runs.
        prompt: whether such a one runs for the prompt's tokens, too, or "last": for the last one.
    """

    program: str | Said
    constants: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    at: tuple[int, ...] = ()
    prompt: bool | Literal["last"] = False

    def to_dict(self) -> dict[str, Any]:
        """The parameter `attend` of `raw.create_sampler`."""
        sent = _sent(self.program)
        constants = {**sent.get("constants", {}), **self.constants}
        layers = {"at": self.at, "prompt": self.prompt} if self.at else {}
        return {**sent, "constants": constants, "given": _finite(self.given), **layers}


def per_token(value: float | bool, *, by_head: bool = False) -> dict[str, Any]:
    """State that has a value for each token of the vocabulary; in the stage `attend` for each one
    of the context, or of each head's: at first, and of new ones.
    """
    return {"per_token": value, "by_head": by_head}


@overload
def attend(function: Function | str) -> Callable[..., Attend]: ...


@overload
def attend(*, window: int = 1) -> Callable[[Function], Callable[..., Attend]]: ...


def attend(function: Function | str | None = None, *, window: int | None = None) -> Any:
    """Makes a program of the stage `attend`: called once for each layer and generated token. What
    it gives takes the program's state, by name: a number, a bool, a list of one kind, `per_token`.

    The function's parameters say what it is given. `scores`, float `[heads, pages]`: the largest
    product of the query with a key that each page can have; it returns which pages the layer reads,
    bool `[pages]`. `weights`, float `[heads, tokens]`: what the layer has just given each token; it
    returns which tokens the layer still reads in the steps that follow, bool `[tokens]`, and what
    it drops does not come back. Neither: it returns which tokens a layer reads. What it returns may
    be by head, `[heads, pages]` or `[heads, tokens]`: heads that share keys read what one of them
    keeps. Beside them, `state`. The newest token is always read.

    A prompt reads all. With `weights` the program is called for it, too, once in each layer, as
    `step()` is 0: they are then those of the prompt's last `window` inputs, added up; with 0, of
    all. Tokens among these that have run before run again.

    Raises:
        TypeError: the text of the function, or of one that it calls, is not known here.
    """
    if function is None:
        return partial(_attend, window=window)
    return _attend(function, window)


def _attend(function: Function | str, window: int | None) -> Callable[..., Attend]:
    own = said(function)
    constants = {} if window is None else {"window": window}
    return lambda **given: Attend(own, constants, given)


def layers(
    at: List[int], *, prompt: bool | Literal["last"] = False
) -> Callable[[Function | str], Callable[..., Attend]]:
    """Makes a program in the layers: called before each of the layers `at` (-1 is the last one),
    once for each generated token, and with `prompt` for each of the prompt, or its "last" one. What
    it gives takes the program's state, by name: a number, a bool, lists (of lists) of one kind; all
    its layers have one state together. `await generation.state()` tells it, and a `program` whose
    third parameter is `layers` has `layers.NAME`.

    The function takes `residual`, float `[hidden]`, the residual stream there, and `state` if it
    has any; it returns what the layer is given instead. `device.lens(residual)` are the logits that
    the last norm and the head would make of it, float `[vocabulary]`.

    Raises:
        TypeError: the text of the function, or of one that it calls, is not known here.
    """

    def made(function: Function | str) -> Callable[..., Attend]:
        own = said(function)
        return lambda **given: Attend(own, {}, given, tuple(at), prompt)

    return made


def uploaded(file: str, tensor: str) -> dict[str, Any]:
    """State from a file of tensors that the user has uploaded (`client.upload_tensors`)."""
    return {"tensor": f"{file}/{tensor}"}


def _sent(program: str | Said) -> dict[str, Any]:
    """A program, as `raw.create_sampler` takes it."""
    if isinstance(program, str):
        return {"program": program}
    return {"program": program.texts, "constants": program.constants}


def values_json(values: Mapping[str, Any]) -> str:
    """Values by name, as `raw.write_state` takes them."""
    return json.dumps(_finite(dict(values)), allow_nan=False)


def _finite(value: Any) -> Any:
    """With None for minus infinity, which JSON has not."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if value == -math.inf else value
