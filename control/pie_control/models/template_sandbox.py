"""Jinja for strangers' chat templates: sandboxed, and bounded in time, size and recursion.

A template comes with a checkpoint from anywhere. Jinja's sandbox keeps it away from Python. Here it
is also kept from taking all time and memory. Loops and macros look at the clock. Operations whose
result can be much larger than what they are given are checked before they run, for no thread can be
stopped within one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jinja2
import jinja2.sandbox
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.visitor import NodeTransformer

MAX_SOURCE = 1 << 20  # characters of a template
MAX_TEXT = 16 << 20  # characters of what is rendered, and of any text on the way
MAX_PARTS = 1 << 18  # values within one value
_MAX_PRODUCT = 1 << 27  # length of a text times what a method is given
_MAX_BITS = 4096  # of a number that is multiplied
_WIDE = re.compile(r"\d{5,}|\*")  # in a format: a width that would fill the memory

_SCOPES = ("_loop_vars", "_block_vars")  # Jinja's own arguments of a call
_deadline: ContextVar[float] = ContextVar("deadline")

# Filters that look at few of a list's items, or hand them on one by one.
_LIGHT_FILTERS = {"batch", "count", "d", "default", "first", "items", "last", "length", "list"}
_LIGHT_FILTERS |= {"map", "random", "reject", "rejectattr", "reverse", "select", "selectattr"}


class TemplateTooSlow(jinja2.TemplateError):
    """The time is up."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Ends the templates rendered within with `TemplateTooSlow` after this time of the CPU."""
    token = _deadline.set(time.thread_time() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


class _Bounds(Extension):
    """Functions that a checked template calls, and the tag `generation`, whose body is rendered.

    Training marks the assistant's tokens with the tag.
    """

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Any) -> nodes.Node:
        """Makes a block of its own, so that what is set within does not reach beyond."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("body_of"), [], [], body).set_lineno(line)

    def body_of(self, caller: Any) -> Any:
        """The text of a block."""
        return caller()

    def tick(self) -> str:
        """Looks at the clock."""
        if time.thread_time() > _deadline.get():
            raise TemplateTooSlow("the chat template takes too long")
        return ""

    def join(self, *parts: Any) -> str:
        """Joins texts, as `~` does."""
        return _joined(str(light(part)) for part in parts)

    def light(self, value: Any) -> Any:
        """A value, if it is small enough to be compared."""
        return light(value)


class TemplateEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment that chat templates are written for, with bounds."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        # Without the optimizer, which would compute constants before any bound holds.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=light,
            extensions=[_Bounds, "jinja2.ext.loopcontrols"],
        )
        del self.filters["urlize"]  # its expressions can take quadratic time
        del self.globals["lipsum"]
        self.filters = {
            name: _bounded_filter(name, function) for name, function in self.filters.items()
        }

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Joins the texts of a template, a macro, or a block."""
        return _joined(parts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        bounds = self.extensions[_Bounds.identifier]
        for node in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
            tick = nodes.ExprStmt(bounds.call_method("tick", lineno=node.lineno))
            assert isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
            node.body.insert(0, tick.set_lineno(node.lineno))
        for compared in list(tree.find_all(nodes.Compare)):
            compared.expr = bounds.call_method("light", [compared.expr], lineno=compared.lineno)
        checked: nodes.Template = _Joins(bounds).visit(tree)
        return checked

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Computes what can grow."""
        if operator == "%" and isinstance(left, str):
            _check_format(left)
            light(right)
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (abs(right) if operator == "**" else 1)
            if operator in ("*", "**") and max(bits, right.bit_length()) > _MAX_BITS:
                raise jinja2.TemplateError("the chat template multiplies too large numbers")
        elif operator == "*":
            _check_product(left, (right,))
            _check_product(right, (left,))
        elif operator == "+":
            size = sum(len(side) for side in (left, right) if hasattr(side, "__len__"))
            _check_size(size)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Any:
        """`str.format`, of formats that name no large widths."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped

    def call(self, context: Any, function: Any, /, *args: Any, **named: Any) -> Any:
        """Calls a function or a method of a value."""
        owner = getattr(function, "__self__", None)
        theirs = {name: value for name, value in named.items() if name not in _SCOPES}
        if isinstance(owner, _Bounds):
            return function(*args, **theirs)
        given = [*args, *theirs.values()]
        for value in given:
            light(value)
        _check_product(owner, given)
        return super().call(context, function, *args, **named)


def light(value: Any) -> Any:
    """The value as it is, if it has few enough parts.

    A template can nest a list in itself many times in a few lines. Writing or comparing such a
    value would never end.
    """
    if isinstance(value, list | tuple | dict):
        left, waiting = MAX_PARTS, [value]
        while waiting:
            part = waiting.pop()
            left -= 1 + len(part)
            if left < 0:
                raise jinja2.TemplateError(f"a value of more than {MAX_PARTS} parts")
            inner = part.values() if isinstance(part, dict) else part
            waiting += [item for item in inner if isinstance(item, list | tuple | dict)]
    return value


def _bounded_filter(name: str, function: Any) -> Any:
    """A filter, with the arguments of Jinja's own protocol before the value."""
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0

    def checked(*args: Any, **named: Any) -> Any:
        value, given = args[passed], (*args[passed + 1 :], *named.values())
        if name not in _LIGHT_FILTERS:
            light(value)
        if name == "format":
            _check_format(str(value))
        _check_product(value, given)
        return function(*args, **named)

    if passed:
        checked.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return checked


class _Joins(NodeTransformer):
    """Has `~` checked as well."""

    def __init__(self, bounds: Extension) -> None:
        self._bounds = bounds

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - as Jinja calls it
        """Makes a call of it."""
        self.generic_visit(node)
        return self._bounds.call_method("join", node.nodes, lineno=node.lineno)


def _joined(parts: Iterable[str]) -> str:
    texts = list(parts)
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _check_size(size: int) -> None:
    if size > MAX_TEXT:
        raise jinja2.TemplateError(f"the chat template makes more than {MAX_TEXT} characters")


def _check_product(value: Any, given: Iterable[Any]) -> None:
    """Refuses what a text's method could make by repeating what it is given."""
    if not isinstance(value, str | list | tuple):
        return
    size = 1
    for each in given:
        size += abs(each) if isinstance(each, int) else len(each) if hasattr(each, "__len__") else 0
    if (len(value) + 1) * size > _MAX_PRODUCT:
        raise jinja2.TemplateError("the chat template makes too long a text or list")


def _check_format(text: str) -> None:
    if _WIDE.search(text):
        raise jinja2.TemplateError("the chat template's format names a large width")
