"""Settings that name code of others: policies, extensions of a server, observers of benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Field

Policy = TypeVar("Policy", bound=Callable[..., Any])
Process: TypeAlias = Literal["control", "worker"]
# Takes the process, the folder for what it finds, and the class or module through whose public
# functions the process exchanges messages: `order` in control; `receive`, `decode` and `send` in
# the worker.
Observer: TypeAlias = Callable[[Process, Path, Any], AbstractContextManager[None]]


class UnknownPolicy(ValueError):
    """A setting names no policy, or no observer."""


def named_policy(name: str, known: Mapping[str, Policy], kind: str) -> Policy:
    """The known policy of a name, or the function at an import path `package.module:function`. The
    kind is what they decide, for messages: "placement". Raises `UnknownPolicy` if there is none.
    """
    if name in known:
        return known[name]
    if not all(name.partition(":")):
        raise UnknownPolicy(
            f"no {kind} policy is called {name!r}; known: {', '.join(known)}, or give"
            " package.module:function"
        )
    policy: Policy = _function(name, f"{kind} policy")
    return policy


def _function(path: str, what: str) -> Any:
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # whatever the module does when it is imported
        raise UnknownPolicy(f"{what} {path!r} can't be loaded: {error}") from error
    if not callable(found):
        raise UnknownPolicy(f"{what} {path!r} is no function")
    return found


@dataclass(frozen=True, slots=True)
class ExtensionConfig:
    """Names the extension of a server. It checks its settings itself."""

    name: str  # of its entry point
    settings: dict[str, Any]  # as JSON has them


@dataclass(frozen=True, slots=True)
class ObserverConfig:
    """A function that watches both processes for a benchmark; without one, nothing does."""

    observer: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]  # `package.module:function`
    folder: Path  # where it writes what it has found; it is there


def observing(
    config: ObserverConfig | None, process: Process, messages: Any
) -> AbstractContextManager[None]:
    """The observer's context; without a configuration one that does nothing. Raises `UnknownPolicy`
    if there is no such function.
    """
    if config is None:
        return nullcontext()
    observer: Observer = _function(config.observer, "observer")
    return observer(process, config.folder, messages)
