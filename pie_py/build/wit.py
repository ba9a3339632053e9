"""Reads the contract: the part of the WIT language that `sdk/wit/inferlet.wit` uses.

That is: one package with a version, interfaces of functions and enums, worlds of imports, exported
functions and includes. Anything else is an error that names the line, never skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cache

from pie_py.config.shipped_files import shipped_folder

# Spelt the same in component text.
PRIMITIVES = frozenset(
    ("bool", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64", "char", "string")
)
_TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*|/\*.*?\*/)"
    r"|(?P<version>@\d+\.\d+\.\d+)"
    r"|(?P<name>%?[A-Za-z][A-Za-z0-9-]*)"
    r"|(?P<mark>->|[_:;,{}()<>/])",
    re.DOTALL,
)


class WitError(ValueError):
    """The WIT text is wrong, or uses what this reader does not know."""


@dataclass(frozen=True, slots=True)
class Type:
    """A value type: a primitive, an enum's name, or a constructor with arguments.

    `arguments` of `result` are always two, ok and error, of which each may be None.
    """

    name: str
    arguments: tuple[Type | None, ...] = ()

    def __str__(self) -> str:
        """As WIT writes it."""
        if not self.arguments:
            return self.name
        written = ["_" if argument is None else str(argument) for argument in self.arguments]
        return f"{self.name}<{', '.join(written)}>"


@dataclass(frozen=True, slots=True)
class Function:
    """A function's parameters, in order, its result, and its `///` comment, line by line."""

    params: tuple[tuple[str, Type], ...]
    result: Type | None
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Interface:
    """Enums (their cases) and functions, by name, and `///` comments, line by line."""

    enums: dict[str, tuple[str, ...]] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    enum_docs: dict[str, str] = field(default_factory=dict)  # by the enum's name
    doc: str = ""


@dataclass(frozen=True, slots=True)
class World:
    """Names of the interfaces that a world imports, and the functions that it exports."""

    imports: list[str] = field(default_factory=list)
    exports: dict[str, Function] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Package:
    """A WIT package, `pie:inferlet`, and its version, `0.1.0`."""

    name: str
    version: str
    interfaces: dict[str, Interface]
    worlds: dict[str, World]

    def import_name(self, interface: str) -> str:
        """Name by which components import an interface: `pie:inferlet/runtime@0.1.0`."""
        return f"{self.name}/{interface}@{self.version}"


@cache
def contract() -> Package:
    """The contract that this installation builds for and serves."""
    return parse((shipped_folder("wit") / "inferlet.wit").read_text(encoding="utf-8"))


def parse(text: str) -> Package:
    """Parses one WIT file. Raises `WitError` with the line."""
    return _Parser(text).package()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, int]] = []  # and where each begins
        self._docs: dict[int, list[str]] = {}  # by the number of the token that follows
        self._next = 0
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise WitError(f"line {self._line(at)}: {text[at]!r} is not understood")
            if found.lastgroup != "space":
                self._tokens.append((found.group(), at))
            elif found.group().startswith("///"):
                number = len(self._tokens)
                self._docs.setdefault(number, []).append(found.group()[3:].strip())
            at = found.end()

    def _peek(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else "end of file"

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _fail(self, wanted: str) -> WitError:
        at = min(self._next, len(self._tokens) - 1)
        line = self._line(self._tokens[at][1]) if self._tokens else 1
        return WitError(f"line {line}: {wanted} expected, {self._peek()!r} found")

    def _line(self, at: int) -> int:
        return self._text.count("\n", 0, at) + 1

    def _accept(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._next += 1
        return True

    def _expect(self, *tokens: str) -> None:
        for token in tokens:
            if not self._accept(token):
                raise self._fail(repr(token))

    def _name(self) -> str:
        if not re.fullmatch(r"%?[A-Za-z][A-Za-z0-9-]*", self._peek()):
            raise self._fail("a name")
        return self._take().removeprefix("%")

    def package(self) -> Package:
        self._expect("package")
        namespace = self._name()
        self._expect(":")
        package = f"{namespace}:{self._name()}"
        if not self._peek().startswith("@"):
            raise self._fail("a version such as @0.1.0")
        version = self._take()[1:]
        self._expect(";")
        interfaces: dict[str, Interface] = {}
        worlds: dict[str, World] = {}
        while self._next < len(self._tokens):
            doc = self._doc()
            if self._accept("interface"):
                name = self._name()
                interfaces[name] = self._interface(doc)
            elif self._accept("world"):
                name = self._name()
                worlds[name] = self._world(worlds)
            else:
                raise self._fail("`interface` or `world`")
        return Package(package, version, interfaces, worlds)

    def _doc(self) -> str:
        """The `///` comment before the next token."""
        return "\n".join(self._docs.get(self._next, ()))

    def _interface(self, doc: str) -> Interface:
        interface = Interface(doc=doc)
        self._expect("{")
        while not self._accept("}"):
            doc = self._doc()
            if self._accept("enum"):
                name = self._name()
                cases = []
                self._expect("{")
                while not self._accept("}"):
                    cases.append(self._name())
                    if not self._accept(","):
                        self._expect("}")
                        break
                interface.enums[name] = tuple(cases)
                interface.enum_docs[name] = doc
            else:
                name = self._name()
                self._expect(":")
                interface.functions[name] = replace(self._function(), doc=doc)
        return interface

    def _world(self, worlds: dict[str, World]) -> World:
        world = World()
        self._expect("{")
        while not self._accept("}"):
            if self._accept("import"):
                world.imports.append(self._name())
                self._expect(";")
            elif self._accept("include"):
                included = worlds[self._name()]
                world.imports.extend(included.imports)
                world.exports.update(included.exports)
                self._expect(";")
            else:
                self._expect("export")
                name = self._name()
                self._expect(":")
                world.exports[name] = self._function()
        return world

    def _function(self) -> Function:
        self._expect("func", "(")
        params = []
        while not self._accept(")"):
            name = self._name()
            self._expect(":")
            params.append((name, self._type()))
            if not self._accept(","):
                self._expect(")")
                break
        result = self._type() if self._accept("->") else None
        self._expect(";")
        return Function(tuple(params), result)

    def _type(self) -> Type:
        name = self._name()
        if name not in ("list", "option", "tuple", "result"):
            return Type(name)
        arguments: list[Type | None] = []
        if self._accept("<"):
            while True:
                arguments.append(None if self._accept("_") else self._type())
                if not self._accept(","):
                    break
            self._expect(">")
        if name == "result":
            arguments += [None] * (2 - len(arguments))
        elif None in arguments or not arguments:
            raise self._fail(f"the type of a {name}'s elements")
        return Type(name, tuple(arguments))
