"""Python for models: expressions and short programs, walked as a syntax tree within limits.

Python itself compiles and executes nothing. There are values, operators, comprehensions, `if`,
`for`, `while`, assignments, and the functions and methods of `vocabulary`; no imports, classes,
attributes, or access to the inferlet. Steps and the size of values are bounded.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from asynclm.cml.nesting import is_too_deep
from asynclm.tools.vocabulary import (
    BINARY,
    COMPARE,
    CONSTANTS,
    FUNCTIONS,
    METHODS,
    UNARY,
    EvaluationError,
    check_length,
    weigh,
)

MOST_STEPS = 100_000
MOST_BITS = 4096  # of a whole number
LONGEST_SOURCE = 1 << 14  # characters
DEEPEST_BLOCK = 40  # columns of indentation


def evaluate(source: str, variables: Mapping[str, Any] | None = None) -> Any:
    """The value of the last expression of a program, or of the variable `result`.

    Args:
        source: the program.
        variables: what it starts with.

    Raises:
        EvaluationError: it is wrong, uses something that is not there, or goes over a limit.
    """
    if len(source) > LONGEST_SOURCE:
        raise EvaluationError(f"a program of {len(source)} characters; {LONGEST_SOURCE} at most")
    if is_too_deep(source) or _indents(source) > DEEPEST_BLOCK:
        raise EvaluationError("the program is nested too deeply")
    try:
        tree = ast.parse(source.strip())
        found = _Evaluation(dict(variables or {})).run(tree)
        weigh(found)
        return found
    except EvaluationError:
        raise
    except SyntaxError as error:
        raise EvaluationError(f"not Python: {error.msg} (line {error.lineno})") from None
    except RecursionError:
        raise EvaluationError("the program is nested too deeply") from None
    except MemoryError:
        raise EvaluationError("the program needs too much memory") from None
    except Exception as error:
        raise EvaluationError(f"{type(error).__name__}: {error}") from None


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class _Evaluation:
    """One run: its variables and how many steps it has left."""

    def __init__(self, variables: dict[str, Any]) -> None:
        self._variables = variables
        self._steps = MOST_STEPS
        self._last: Any = None

    def run(self, tree: ast.Module) -> Any:
        """Walks all statements; the value of the last expression, or `result`."""
        self._block(tree.body)
        if "result" in self._variables and not (tree.body and isinstance(tree.body[-1], ast.Expr)):
            return self._variables["result"]
        return self._last

    def _block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        self._tick()
        match node:
            case ast.Expr(value=value):
                self._last = self._value(value)
            case ast.Assign(targets=targets, value=value):
                found = self._value(value)
                for target in targets:
                    self._assign(target, found)
            case ast.AugAssign(target=target, op=op, value=value):
                old = self._value(target)
                self._assign(target, self._binary(op, old, self._value(value)))
            case ast.If(test=test, body=body, orelse=orelse):
                self._block(body if self._value(test) else orelse)
            case ast.For(target=target, iter=iterable, body=body, orelse=[]):
                self._loop(self._assignments(target, iterable), body)
            case ast.While(test=test, body=body, orelse=[]):
                self._loop(iter(lambda: bool(self._value(test)), False), body)
            case ast.Break():
                raise _Break
            case ast.Continue():
                raise _Continue
            case ast.Pass():
                pass
            case _:
                raise _refused(node)

    def _assignments(self, target: ast.expr, iterable: ast.expr) -> Iterator[object]:
        for item in self._items(iterable):
            self._assign(target, item)
            yield item

    def _loop(self, turns: Iterator[object], body: list[ast.stmt]) -> None:
        for _ in turns:
            self._tick()
            try:
                self._block(body)
            except _Continue:
                continue
            except _Break:
                break

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self._variables[name] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values = list(value)
                if len(values) != len(targets):
                    raise EvaluationError(f"{len(values)} values for {len(targets)} names")
                for one, part in zip(targets, values, strict=True):
                    self._assign(one, part)
            case ast.Subscript(value=owner, slice=index):
                self._checked(self._value(owner))[self._value(index)] = value
            case _:
                raise _refused(target)

    def _value(self, node: ast.expr) -> Any:
        self._tick()
        return self._checked(self._evaluate(node))

    def _evaluate(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value) if isinstance(value, str | int | float | bool | None):
                return value
            case ast.Name(id=name):
                return self._variable(name)
            case ast.List(elts=items):
                return [self._value(item) for item in items]
            case ast.Tuple(elts=items):
                return tuple(self._value(item) for item in items)
            case ast.Set(elts=items):
                return {self._value(item) for item in items}
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                return {self._key(key): self._value(value) for key, value in pairs}
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self._value(left), self._value(right))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
                return UNARY[type(op)](self._value(operand))
            case ast.BoolOp(op=op, values=values):
                return self._boolean(isinstance(op, ast.And), values)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                return self._compare(left, ops, comparators)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._value(body if self._value(test) else orelse)
            case ast.Subscript(value=owner, slice=ast.Slice(lower=low, upper=high, step=step)):
                parts = (None if part is None else self._value(part) for part in (low, high, step))
                return self._value(owner)[slice(*parts)]
            case ast.Subscript(value=owner, slice=index):
                return self._value(owner)[self._value(index)]
            case ast.JoinedStr(values=values):
                return "".join(self._formatted(value) for value in values)
            case ast.ListComp(elt=element, generators=generators):
                return list(self._comprehended(generators, lambda: self._value(element)))
            case ast.GeneratorExp(elt=element, generators=generators):
                return list(self._comprehended(generators, lambda: self._value(element)))
            case ast.SetComp(elt=element, generators=generators):
                return set(self._comprehended(generators, lambda: self._value(element)))
            case ast.DictComp(key=key, value=value, generators=generators):
                return dict(
                    self._comprehended(generators, lambda: (self._value(key), self._value(value)))
                )
            case ast.Attribute() if (name := _dotted(node)) in CONSTANTS:
                return CONSTANTS[name]
            case ast.Call():
                return self._call(node)
            case _:
                raise _refused(node)

    def _variable(self, name: str) -> Any:
        if name not in self._variables:
            raise EvaluationError(f"there is no variable {name}")
        return self._variables[name]

    def _key(self, node: ast.expr | None) -> Any:
        if node is None:
            raise EvaluationError("`**` is not possible here")
        return self._value(node)

    def _items(self, node: ast.expr) -> list[Any]:
        return list(self._value(node))

    def _boolean(self, conjunction: bool, values: list[ast.expr]) -> Any:
        found: Any = conjunction
        for value in values:
            found = self._value(value)
            if bool(found) is not conjunction:
                return found
        return found

    def _compare(self, left: ast.expr, ops: list[ast.cmpop], others: list[ast.expr]) -> bool:
        first = self._value(left)
        for op, other in zip(ops, others, strict=True):
            second = self._value(other)
            self._steps -= weigh(first) + weigh(second)
            if not COMPARE[type(op)](first, second):
                return False
            first = second
        return True

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        function = BINARY.get(type(op))
        if function is None:
            raise EvaluationError(f"the operator {type(op).__name__} is not possible here")
        if isinstance(op, ast.Mod) and isinstance(left, str):
            raise EvaluationError("texts are formatted with f-strings here")
        self._steps -= sum(len(side) // 16 for side in (left, right) if hasattr(side, "__len__"))
        if isinstance(op, ast.Mult):
            for times, what in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(what, str | list | tuple):
                    check_length(times * len(what))
        if isinstance(op, ast.Pow) and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * max(right, 0)
            if bits > MOST_BITS:
                raise EvaluationError(f"a number of {bits} bits; {MOST_BITS} at most")
        return function(left, right)

    def _formatted(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=str() as text):
                return text
            case ast.FormattedValue(value=value, format_spec=spec):
                form = "" if spec is None else str(self._value(spec))
                if sum(map(str.isdigit, form)) > 3:  # a width
                    raise EvaluationError("the format is too wide")
                found = self._value(value)
                self._steps -= weigh(found)
                return format(found, form)
            case _:
                raise _refused(node)

    def _comprehended(
        self, generators: list[ast.comprehension], element: Callable[[], Any]
    ) -> Iterator[Any]:
        first, *rest = generators
        for item in self._items(first.iter):
            self._tick()
            self._assign(first.target, item)
            if all(self._value(test) for test in first.ifs):
                if rest:
                    yield from self._comprehended(rest, element)
                else:
                    yield element()

    def _call(self, node: ast.Call) -> Any:
        if any(isinstance(arg, ast.Starred) for arg in node.args):
            raise EvaluationError("`*` is not possible here")
        args = [self._value(arg) for arg in node.args]
        named = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise EvaluationError("`**` is not possible here")
            named[keyword.arg] = self._value(keyword.value)
        name = _dotted(node.func)
        self._steps -= sum(map(weigh, args))
        if name in FUNCTIONS:
            return FUNCTIONS[name](*args, **named)
        if isinstance(node.func, ast.Attribute):
            return self._method(self._value(node.func.value), node.func.attr, args, named)
        raise EvaluationError(f"there is no function {name or 'like this'}")

    def _method(self, owner: Any, name: str, args: list[Any], named: dict[str, Any]) -> Any:
        if name not in METHODS.get(type(owner), "").split():
            raise EvaluationError(f"there is no method {name} of a {type(owner).__name__}")
        if name == "replace" and isinstance(owner, str) and len(args) > 1:
            check_length(len(owner) + (len(owner) + 1) * len(str(args[1])))
        if name == "join":
            check_length((len(owner) + 1) * len(args[0]) + sum(map(len, args[0])))
        self._steps -= weigh(owner)
        found = getattr(owner, name)(*args, **named)
        self._checked(owner)
        return list(found) if isinstance(owner, dict) and name in _VIEWS else found

    def _checked(self, value: Any) -> Any:
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise EvaluationError(f"a number of {value.bit_length()} bits; {MOST_BITS} at most")
        if isinstance(value, str | list | tuple | dict | set):
            check_length(len(value))
        return value

    def _tick(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise EvaluationError(f"the program takes more than {MOST_STEPS} steps")


_VIEWS = ("items", "keys", "values")


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="math"), attr=name):
            return f"math.{name}"
        case _:
            return ""


def _indents(source: str) -> int:
    """How many columns the deepest line is indented, tabs counted as one."""
    return max((len(line) - len(line.lstrip()) for line in source.splitlines()), default=0)


def _refused(node: ast.AST) -> EvaluationError:
    return EvaluationError(f"{type(node).__name__} is not possible here")
