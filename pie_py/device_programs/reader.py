"""Reads the text of a device program: a subset of Python, walked and never executed.

A program is one or more texts and the constants that they name. The last function at the top of the
first text is the program; all functions see each other, and those of the library of rules. A value
is a tensor, which has a kind and sizes and no elements, or a constant: `if`, `while`, `for` and
comprehensions are of constants, and gone when the program is recorded.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pie_py.device_programs import functions
from pie_py.device_programs.functions import METHODS, PLAIN, Word
from pie_py.device_programs.language import HEADS, SIZES, TOKENS, Kind, Mistake, Type
from pie_py.device_programs.library import IMPORTED, language, library
from pie_py.device_programs.program import MOST_TEXT, ProgramFault, kept_axes
from pie_py.device_programs.recording import Recorded, Recording, Size, Tensor, check_known
from pie_py.device_programs.scope import (
    Function,
    InLayers,
    Module,
    Scope,
    State,
    Text,
    expression_of,
    indent,
    meant,
    parsed,
)

MOST_STEPS = 50_000  # evaluated parts of a text: loops and calls end here
_MOST_CALLS = 32  # functions within functions
_BINARY: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add),
    ast.Sub: ("sub", operator.sub),
    ast.Mult: ("mul", operator.mul),
    ast.Div: ("div", operator.truediv),
    ast.FloorDiv: ("floordiv", operator.floordiv),
    ast.Mod: ("mod", operator.mod),
    ast.Pow: ("pow", operator.pow),
    ast.MatMult: ("matvec", operator.matmul),
    ast.BitAnd: ("and", operator.and_),
    ast.BitOr: ("or", operator.or_),
    ast.BitXor: ("xor", operator.xor),
    ast.LShift: ("shl", operator.lshift),
    ast.RShift: ("shr", operator.rshift),
    ast.Lt: ("lt", operator.lt),
    ast.LtE: ("le", operator.le),
    ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge),
    ast.Eq: ("eq", operator.eq),
    ast.NotEq: ("ne", operator.ne),
}


LAYERS = "_layers"  # the constant that tells a sampler of the program in the layers
_LAYER_INPUTS = {"weights", "scores", "residual"}  # of which a program has one at most


class _Returned(Exception):
    """A function has come to its `return`."""

    def __init__(self, value: Any) -> None:
        self.value = value


def read_texts(
    texts: Sequence[Text],
    constants: Mapping[str, Any],
    types: Mapping[str, Type],
    *,
    attends: bool = False,
) -> Recorded:
    """Reads a program of some texts.

    Args:
        texts: the program's own first, then those of functions that it calls.
        constants: values of names, the program's parameters behind `*` among them: numbers, bools,
            texts, None, lists and objects of them.
        types: of what the program is given by name.
        attends: reads one of the stage `attend`. The parameter `window` of one that takes weights
            is how many of a prompt's last inputs it takes those of, 0 for all; without it, 1.

    Raises:
        ProgramFault: with the place in the text, and the name that was probably meant.
    """
    if (size := sum(len(one.text) for one in texts)) > MOST_TEXT:
        raise ProgramFault(f"{size} characters; {MOST_TEXT} at most")
    reader = _Reader(Recording(types, attends=attends))
    try:
        return reader.read(texts, constants)
    except (Mistake, ArithmeticError, ValueError, LookupError, TypeError) as error:
        if isinstance(error, ProgramFault):
            raise
        place = reader.recording.place
        raise ProgramFault(f"{place}: {error}" if place else str(error)) from None
    except RecursionError:
        raise ProgramFault(f"{reader.recording.place}: nested too deep") from None


def check_text(text: Text) -> None:
    """Checks the form of a text, whose last function is a program.

    Raises:
        ProgramFault: with the place.
    """
    if len(text.text) > MOST_TEXT:
        raise ProgramFault(f"{text.file}: {len(text.text)} characters; {MOST_TEXT} at most")
    if not any(isinstance(node, ast.FunctionDef) for node in parsed(text).body):
        raise ProgramFault(f"{text.file}: no function: the last one of a text is the program")


class _Reader:
    """Walks the functions of one program."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._residual: tuple[int, ...] = ()  # what one in the layers is given
        self._steps = 0
        self._depth = 0

    def read(self, texts: Sequence[Text], constants: Mapping[str, Any]) -> Recorded:
        top = Scope(texts[0] if texts else None, library(), dict(constants))
        program: Function | None = None
        for text in texts:
            scope = Scope(text, top, top.names)
            for node in parsed(text).body:
                self._at(node, scope)
                found = self._declare(node, scope)
                if text is texts[0] and found is not None:
                    program = found
        if program is None:
            raise ProgramFault("no function: the last one of a text is the program")
        named = self._named(program, constants)
        values = self._inputs(program, {**constants, **named})
        return self._finish(program, self.call(program, values, named))

    def _named(self, program: Function, constants: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a program's parameters behind `*`."""
        given = program.node.args
        found = {}
        for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            if one.arg in constants:
                found[one.arg] = constants[one.arg]
            elif default is None:
                raise Mistake(f"{program.name} wants a constant `{one.arg}`")
            else:
                found[one.arg] = self._value(default, program.scope)
        return found

    def _inputs(self, program: Function, constants: Mapping[str, Any]) -> list[Any]:
        """The kinds of a program's parameters, by their names."""
        window = constants.get("window", 1)
        r, names = self.recording, [one.arg for one in program.node.args.args]
        if not r.attends:
            if not 1 <= len(names) <= 3:
                raise Mistake(
                    f"{program.name} takes logits and, if it has any, state; third, what a program"
                    " in the layers keeps"
                )
            return [r.add("logits"), State(), InLayers(constants.get(LAYERS, {}))][: len(names)]
        if set(names) - {*_LAYER_INPUTS, "state"} or len(_LAYER_INPUTS & set(names)) > 1:
            raise Mistake(
                f"{program.name} takes {', '.join(names)}: there are weights or scores,"
                " and state, or a residual and state"
            )
        attributes: dict[str, tuple[int, ...]] = {"weights": (window,)}
        if "residual" in names:
            # The server knows these of its model; where a text is checked alone, any will do.
            at = constants.get("at")
            r.vocabulary = constants["vocabulary"] if isinstance(at, list) else 2
            self._residual = (2, 0, 0)
            if isinstance(at, list):
                self._residual = (constants["hidden"], int(constants["prompt"]), *at)
            attributes["residual"] = self._residual
        return [
            State() if name == "state" else r.add(name, attributes=attributes.get(name, ()))
            for name in names
        ]

    def _finish(self, program: Function, result: Any) -> Recorded:
        self._at(program.node, program.scope)
        if not self.recording.attends:
            if not isinstance(result, Tensor) or result.type != Type(Kind.INT):
                kind = "" if isinstance(result, Tensor) else ", no tensor"
                raise Mistake(
                    f"{program.name} returned {result!r:.60}{kind}: a program returns a token,"
                    " int []"
                )
            return self.recording.finish(result)
        found = self.recording.finish(result) if isinstance(result, Tensor) else None
        if any(one.arg == "residual" for one in program.node.args.args):
            given = self.recording.add("residual", attributes=self._residual)
            if found is None or result.type != given.type or "residual" not in found.operations:
                raise Mistake(
                    f"{program.name} returned {result!r:.60}: a program in the layers makes of the"
                    f" residual what the layer is given, {given.type}"
                )
            return found
        axes = kept_axes(found.operations) if found is not None else (TOKENS,)
        kinds = [Type(Kind.BOOL, shape) for axis in axes for shape in ((axis,), (HEADS, axis))]
        if found is None or result.type not in kinds:
            raise Mistake(f"{program.name} returned {result!r:.60}: what is kept is {kinds[0]}")
        return found

    def _declare(self, node: ast.stmt, scope: Scope) -> Function | None:
        """A statement at the top of a text; the function that it makes, if it makes one."""
        match node:
            case ast.FunctionDef(name):
                scope.names[name] = found = Function(name, node, scope)
                return found
            case ast.Assign([ast.Name(name)], ast.Lambda() as value):
                scope.names[name] = found = Function(name, value, scope)
                return found
            case _:
                self._do(node, scope)
                return None

    # Statements

    def _do(self, node: ast.stmt, scope: Scope) -> None:
        self._count(node, scope)
        match node:
            case ast.Expr(ast.Constant()) | ast.Pass():
                pass  # a docstring
            case ast.Assign(targets, value):
                found = self._value(value, scope)
                for target in targets:
                    self._assign(target, found, scope)
            case ast.AnnAssign(target, _, value) if value is not None:
                self._assign(target, self._value(value, scope), scope)
            case ast.AugAssign(target, of, value):
                before = self._value(target, scope)
                self._assign(
                    target, self._binary(node, scope, of, before, self._value(value, scope)), scope
                )
            case ast.If(test, then, other):
                self._all(then if self._truth(test, scope) else other, scope)
            case ast.While(test, body, []):
                while self._truth(test, scope):
                    self._all(body, scope)
            case ast.For(target, items, body, []):
                for item in self.items(self._value(items, scope), node, scope):
                    self._assign(target, item, scope)
                    self._all(body, scope)
            case ast.FunctionDef(name):
                scope.names[name] = Function(name, node, scope)
            case ast.Return(value) if value is not None and self._depth:
                raise _Returned(self._value(value, scope))
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope)
            case _:
                raise self._refused(node, scope)

    def _all(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for one in body:
            self._do(one, scope)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        """`import math`, `from inferlet import device`, `from inferlet.device import draw`."""
        module = getattr(node, "module", None)
        for one in node.names:
            own = one.name if one.asname is None else one.asname
            if isinstance(node, ast.Import):
                found = one.name.removeprefix("inferlet.")
                fits = found in IMPORTED and (one.asname is not None or "." not in one.name)
                value: Any = Module(found)
            elif module == "inferlet":
                fits, value = one.name in IMPORTED, Module(one.name)
            else:
                of = Module(str(module).removeprefix("inferlet."))
                fits = of.name in IMPORTED
                value = self._of_module(of, one.name, node, scope) if fits else None
            if module == "__future__":
                continue
            if not fits:
                raise self._refused(node, scope)
            scope.names[own] = value

    def _assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        match target:
            case ast.Name(name):
                scope.names[name] = value
            case ast.Tuple(parts) | ast.List(parts):
                values = list(self.items(value, target, scope))
                if len(values) != len(parts):
                    raise self._fault(f"{len(values)} values for {len(parts)} names", target, scope)
                for part, each in zip(parts, values, strict=True):
                    self._assign(part, each, scope)
            case ast.Attribute(of, field) if isinstance(self._value(of, scope), State):
                self._at(target, scope)
                self.recording.assign(field, value)
            case _:
                raise self._fault(
                    f"nothing can be assigned to `{ast.unparse(target)}`", target, scope
                )

    # Expressions

    def _value(self, node: ast.expr, scope: Scope) -> Any:
        self._count(node, scope)
        match node:
            case ast.Constant(found) if found is None or isinstance(found, int | float | str):
                return found
            case ast.Name(name):
                try:
                    return scope.find(name)
                except KeyError:
                    known = scope.known()
                raise self._fault(f"there is no name `{name}`{meant(name, known)}", node, scope)
            case ast.BinOp(left, of, right):
                return self._binary(
                    node, scope, of, self._value(left, scope), self._value(right, scope)
                )
            case ast.UnaryOp(of, operand):
                return self._unary(node, of, operand, scope)
            case ast.Compare(left, [of], [right]):
                a, b = self._value(left, scope), self._value(right, scope)
                if isinstance(of, ast.Is | ast.IsNot):
                    return (a is b) is isinstance(of, ast.Is)
                if isinstance(of, ast.In | ast.NotIn) and isinstance(b, list | dict | str):
                    return (a in b) is isinstance(of, ast.In)
                return self._binary(node, scope, of, a, b)
            case ast.BoolOp(of, values):
                return self._together(values, isinstance(of, ast.And), scope)
            case ast.IfExp(test, then, other):
                return self._value(then if self._truth(test, scope) else other, scope)
            case ast.Subscript(of, place):
                return self._subscript(node, self._value(of, scope), place, scope)
            case ast.Attribute(of, name):
                return self._attribute(node, self._value(of, scope), name, scope)
            case ast.Call():
                return self._call(node, scope)
            case ast.Lambda():
                return Function("lambda", node, scope)
            case ast.Tuple(parts) | ast.List(parts):
                return [self._value(one, scope) for one in parts]
            case ast.ListComp(part, [turn]) | ast.GeneratorExp(part, [turn]):
                return list(self._comprehended(part, turn, scope))
        raise self._refused(node, scope)

    def _binary(self, node: ast.AST, scope: Scope, of: ast.AST, a: Any, b: Any) -> Any:
        if type(of) not in _BINARY:
            raise self._refused(node, scope)
        self._at(node, scope)
        operation, plain = _BINARY[type(of)]
        return functions.binary(self.recording, operation, a, b, plain)

    def _unary(self, node: ast.expr, of: ast.unaryop, operand: ast.expr, scope: Scope) -> Any:
        if isinstance(of, ast.Not):
            return not self._truth(operand, scope)
        value = self._value(operand, scope)
        self._at(node, scope)
        if isinstance(of, ast.UAdd):
            return value
        made = functions.negative if isinstance(of, ast.USub) else functions.inverted
        return made(self.recording, value)

    def _together(self, values: Sequence[ast.expr], wanted: bool, scope: Scope) -> Any:
        """`and` and `or` of constants."""
        found: Any = wanted
        for one in values:
            found = self._value(one, scope)
            if self._true(found, one, scope) is not wanted:
                break
        return found

    def _subscript(self, node: ast.expr, of: Any, place: ast.expr, scope: Scope) -> Any:
        named = (place.lower, place.upper, place.step) if isinstance(place, ast.Slice) else (place,)
        parts = [None if one is None else self._value(one, scope) for one in named]
        at: Any = slice(*parts) if isinstance(place, ast.Slice) else parts[0]
        self._at(node, scope)
        check_known(*parts)
        if isinstance(of, Tensor):
            return functions.item(self.recording, of, at)
        if isinstance(of, list | dict | str) and not isinstance(at, Tensor):
            return of[at]
        raise self._fault(f"{of!r:.40} has no places: only tensors and lists have", node, scope)

    def _attribute(self, node: ast.expr, of: Any, name: str, scope: Scope) -> Any:
        self._at(node, scope)
        match of:
            case State():
                return self.recording.read(name)
            case InLayers(names):
                if name not in names:
                    there = ", ".join(names) or "nothing: the generation has none"
                    raise Mistake(f"the program in the layers keeps no {name}, but {there}")
                number, kind, sizes = names[name]
                return self.recording.add("in_layers", attributes=(number, kind, *sizes))
            case Module():
                return self._of_module(of, name, node, scope)
            case Tensor() if name == "shape":
                return [Size(size) if size in SIZES else size for size in of.type.shape]
            case Tensor() if name in PLAIN:
                return Word(name, lambda r, own: r.add(name, own), (of,))
            case Tensor() if name in METHODS:
                return Word(name, METHODS[name], (of,))
            case Tensor():
                hint = meant(name, [*PLAIN, *METHODS])
                raise self._fault(f"a tensor has no `{name}`{hint}", node, scope)
        raise self._fault(f"{of!r:.40} has no `{name}`", node, scope)

    def _of_module(self, of: Module, name: str, node: ast.AST, scope: Scope) -> Any:
        if of.name in ("samplers", "attention"):
            names: Mapping[str, Any] = library().names
        else:
            names = language().names
        if name in names and not isinstance(names[name], Module):
            return names[name]
        raise self._fault(f"{of.name} has no `{name}`{meant(name, names)}", node, scope)

    def _comprehended(self, part: ast.expr, turn: ast.comprehension, scope: Scope) -> Iterator[Any]:
        inner = Scope(scope.text, scope, {})
        for item in self.items(self._value(turn.iter, scope), turn.iter, scope):
            self._assign(turn.target, item, inner)
            if all(self._truth(test, inner) for test in turn.ifs):
                yield self._value(part, inner)

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        found = self._value(node.func, scope)
        values: list[Any] = []
        for one in node.args:
            if isinstance(one, ast.Starred):
                values += self.items(self._value(one.value, scope), one, scope)
            else:
                values.append(self._value(one, scope))
        named = {one.arg: self._value(one.value, scope) for one in node.keywords if one.arg}
        if len(named) < len(node.keywords) or not isinstance(found, Function | Word):
            raise self._fault(f"`{ast.unparse(node.func)}` is nothing to be called so", node, scope)
        self._at(node, scope)
        if isinstance(found, Function):
            return self.call(found, values, named)
        return found.call(self if found.reads else self.recording, values, named)

    def call(self, function: Function, values: Sequence[Any], named: Mapping[str, Any] = {}) -> Any:
        if self._depth >= _MOST_CALLS:
            raise Mistake(f"functions call each other more than {_MOST_CALLS} deep")
        given = function.node.args
        if given.vararg or given.kwarg or given.posonlyargs:
            raise Mistake(f"{function.name}: parameters have names, and no stars")
        parameters = [one.arg for one in given.args]
        own = {**dict(zip(parameters, values, strict=False)), **named}
        defaults = [*zip(reversed(parameters), reversed(given.defaults), strict=False)]
        keyed = zip([one.arg for one in given.kwonlyargs], given.kw_defaults, strict=True)
        for name, default in [*defaults, *keyed]:
            if name not in own and default is not None:
                own[name] = self._value(default, function.scope)
        wanted = {*parameters, *(one.arg for one in given.kwonlyargs)}
        if named.keys() & set(parameters[: len(values)]):
            raise Mistake(f"{function.name} takes {', '.join(sorted(wanted))}, each once")
        if len(values) > len(parameters) or own.keys() != wanted:
            raise Mistake(f"{function.name} takes {', '.join(sorted(wanted)) or 'nothing'}")
        scope = Scope(function.scope.text, function.scope, own)
        self._depth += 1
        try:
            if isinstance(function.node, ast.Lambda):
                return self._value(function.node.body, scope)
            self._all(function.node.body, scope)
        except _Returned as returned:
            return returned.value
        finally:
            self._depth -= 1
        raise self._fault(f"{function.name} returns nothing", function.node, scope)

    # Constants

    def _truth(self, test: ast.expr, scope: Scope) -> bool:
        return self._true(self._value(test, scope), test, scope)

    def _true(self, value: Any, node: ast.AST, scope: Scope) -> bool:
        if isinstance(value, Tensor):
            raise self._fault(
                f"{value} is neither true nor false while a program is read: use"
                " `where(condition, a, b)`, and `&`, `|`, `~` between conditions",
                node,
                scope,
            )
        return bool(value)

    def items(self, value: Any, node: ast.AST, scope: Scope) -> Iterator[Any]:
        """The elements of a list, or the rows of a tensor of a known size."""
        if isinstance(value, Tensor):
            for i in range(value.size):
                self._count(node, scope)
                yield functions.item(self.recording, value, i)
        elif isinstance(value, list | dict):
            for one in value:
                self._count(node, scope)
                yield one
        else:
            raise self._fault(f"{value!r:.40} has no elements", node, scope)

    # Places and faults

    def _count(self, node: ast.AST, scope: Scope) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise self._fault(f"the text takes more than {MOST_STEPS} steps to read", node, scope)

    def _at(self, node: ast.AST, scope: Scope) -> None:
        """Notes where the text is read; within the library it is where that was called."""
        text = scope.text
        if text is not None:
            line = text.line + getattr(node, "lineno", 1) - 1
            column = getattr(node, "col_offset", 0) + indent(text.text) + 1
            self.recording.place = f"{text.file}:{line}:{column}"
            self.recording.expression = expression_of(text, node)

    def _fault(self, message: str, node: ast.AST, scope: Scope) -> Mistake:
        self._at(node, scope)
        return Mistake(message)

    def _refused(self, node: ast.AST, scope: Scope) -> Mistake:
        source = ast.unparse(node).splitlines()[0]
        return self._fault(f"`{source:.60}` is no part of the language", node, scope)
