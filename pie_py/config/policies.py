"""How a setting that names a policy becomes a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

Policy = TypeVar("Policy", bound=Callable[..., Any])


class UnknownPolicy(ValueError):
    """A setting names no policy."""


def named_policy(name: str, known: Mapping[str, Policy], kind: str) -> Policy:
    """The known policy of a name, or the function at an import path `package.module:function`.

    Args:
        name: the setting.
        known: policies by their names.
        kind: what they decide, for messages: "placement".

    Raises:
        UnknownPolicy: if there is none.
    """
    if name in known:
        return known[name]
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise UnknownPolicy(
            f"no {kind} policy is called {name!r}; known: {', '.join(known)}, or give"
            " package.module:function"
        )
    try:
        found: Any = getattr(import_module(module), function)
    except Exception as error:  # whatever the module does when it is imported
        raise UnknownPolicy(f"{kind} policy {name!r} can't be loaded: {error}") from error
    if not callable(found):
        raise UnknownPolicy(f"{kind} policy {name!r} is no function")
    policy: Policy = found
    return policy
