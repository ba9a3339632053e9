"""`@inferlet`: says of a function or a class what it takes along."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, overload


class Inferlet:
    """A function or a class that is meant for `Client.run` and `Client.spawn`.

    Called here, it is what it was before.

    Attributes:
        target: the function or the class.
        modules: names of installed pure-Python modules that go with it.
    """

    def __init__(self, target: Callable[..., Any], modules: Sequence[str] = ()) -> None:
        functools.update_wrapper(self, target)
        self.target = target
        self.modules = tuple(modules)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Calls it in this process."""
        return self.target(*args, **options)


@overload
def inferlet(target: Callable[..., Any]) -> Inferlet: ...
@overload
def inferlet(*, modules: Sequence[str]) -> Callable[[Callable[..., Any]], Inferlet]: ...
def inferlet(
    target: Callable[..., Any] | None = None, *, modules: Sequence[str] = ()
) -> Inferlet | Callable[[Callable[..., Any]], Inferlet]:
    """Marks a function or a class that runs in an inferlet: `@inferlet`.

    `@inferlet(modules=["markdown"])` sends installed packages with it, which must be pure Python.
    Your own modules, those that are not installed, go with it by themselves.
    """
    if target is None:
        return functools.partial(Inferlet, modules=modules)
    return Inferlet(target, modules)
