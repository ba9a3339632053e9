"""The needs of a function that runs elsewhere: source, modules, data, types.

Found from the values that its names have now, as the caller's own call would find them: modules and
what comes from them are imported again, functions and classes of the same module go as source, and
plain data as data. Anything else goes as the statement of its module that made it.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, overload

from pie_py.build.modules import imported_names, imports_in
from pie_py.client.remote.source import (
    LAMBDA,
    Definition,
    Excerpt,
    definition,
    file_of,
    names_used,
    parsed,
)
from pie_py.client.remote.values import CannotTravel, dumps
from pie_py.config.printable import printable
from pie_py.wire.modules import is_taken, pack


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


GUEST = Path(__file__).parent / "guests" / "main.py"
SHARED = "pie_py/client/remote/values.py"  # path of the module that both sides have


def guest_modules() -> dict[str, bytes]:
    """The modules of every program that is sent; the first is its main one."""
    folder = GUEST.parents[4]
    return {GUEST.name: GUEST.read_bytes(), SHARED: (folder / SHARED).read_bytes()}


class Reach:
    """All that one function or class reaches. It grows with the types of what is sent to it."""

    def __init__(self, target: Callable[..., Any]) -> None:
        """Looks at what it uses. Raises `CannotTravel`: it, or what it uses, cannot be sent."""
        named: tuple[str, ...] = ()
        if isinstance(target, Inferlet):
            named = target.modules
            target = target.target
        if not isinstance(target, FunctionType | type):
            raise CannotTravel(
                f"{target!r} is not a function or a class written in Python; of an object's method"
                " send a function that makes the object, or `create` an object of its class"
            )
        self.target = target
        self._named = named
        self._home = target.__module__
        # Of the function, as the program is called.
        self.name = re.sub(r"\W", "", target.__name__)[:64]
        self.program_name = f"function-{self.name}"[:64]
        self.module = _module_name(self._home)  # what the caller's module is called in the inferlet
        # That may come back, by the names that they have on the way.
        self.types: dict[str, type] = {}
        self._bound: dict[str, Any] = {}  # global names in the inferlet, and what they mean here
        self._excerpts: dict[str, Excerpt] = {}  # by file
        self._files: dict[str, Path] = {}  # whole modules, by path in the program
        self._imports: dict[str, tuple[str, str]] = {}
        self._aliases: dict[str, str] = {}
        self._given: dict[str, str] = {}
        self._models: dict[str, list[tuple[str, str | None]]] = {}
        self._add_definition(target)
        for module in named:
            self._add_module(module, self.name)

    @property
    def streams(self) -> bool:
        """True if it yields."""
        target = self.target
        return inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target)

    @property
    def waits(self) -> bool:
        """True if it is asynchronous: then it can wait while others go on."""
        return inspect.iscoroutinefunction(self.target)

    def encoded(self, value: Any, what: str) -> str:
        """A value as it travels; its types go along. Raises `CannotTravel`: it is no data."""
        return dumps(value, what, self._name_of)

    def program(self) -> bytes:
        """The program that is uploaded."""
        modules = guest_modules()
        for path, excerpt in zip(self._pieces(), self._excerpts.values(), strict=True):
            modules[path] = excerpt.text().encode()
        modules |= {path: file.read_bytes() for path, file in self._files.items()}
        return pack(modules)

    def request(self) -> dict[str, Any]:
        """The facts for the program beside the arguments."""
        return {
            "module": self.module,
            "pieces": list(self._pieces()),
            "imports": self._imports,
            "aliases": self._aliases,
            "given": self._given,
            "models": self._models,
            "entry": self._entry(self.target),
        }

    def origin(self, file: str) -> str:
        """The caller's file that a file of the inferlet's tracebacks comes from.

        Only files that were sent are named: lines of one are shown, whatever an inferlet says.
        """
        path = file.removeprefix(f"{self.program_name}/")
        here = dict(zip(self._pieces(), self._excerpts, strict=True))
        sent = here.get(path) or self._files.get(path)
        return f"<inferlet {printable(path)}>" if sent is None else str(sent)

    def _pieces(self) -> Iterable[str]:
        """Paths of the excerpts in the program."""
        base = self.module.replace(".", "/")
        for number in range(len(self._excerpts)):
            yield f"{base}_{number}.py" if number else f"{base}.py"

    def _entry(self, thing: FunctionType | type) -> str:
        return LAMBDA if thing.__name__ == "<lambda>" else thing.__name__

    # What is reached

    def _add_definition(self, thing: FunctionType | type) -> None:
        """A function or class as source, with what it uses."""
        if not self._bind(self._entry(thing), thing):
            return
        if isinstance(thing, type):
            self.types[f"{self.module}:{thing.__name__}"] = thing
            if hasattr(thing, "model_fields"):
                fields: list[tuple[str, str | None]] = []
                for name, field in thing.model_fields.items():
                    default = None
                    if not field.is_required():
                        value = field.get_default(call_default_factory=True)
                        default = self.encoded(value, f"the default of {thing.__name__}.{name}")
                    fields.append((name, default))
                self._models[thing.__name__] = fields
                return
        if getattr(sys.modules.get(thing.__module__), thing.__name__, None) is thing:
            thing = inspect.unwrap(thing)  # its decorators are in its source
        node = definition(thing)
        space = _space(thing)
        marks = [one for one in getattr(node, "decorator_list", []) if _is_mark(one, space)]
        self._check(node, thing)
        self._add_statement(node, file_of(thing), space, thing.__name__, marks)

    def _add_statement(
        self,
        node: ast.stmt | ast.Lambda,
        file: str,
        space: Mapping[str, Any],
        user: str,
        without: list[ast.expr],
    ) -> None:
        marked = {name for one in without for name in names_used(one)}
        for name in sorted(names_used(node) - marked):
            if name in space and (name in self._bound or not hasattr(builtins, name)):
                self._add_value(name, space[name], user, file, space)
        for module in imports_in(node):
            self._add_module(module, user)
        self._excerpts.setdefault(file, Excerpt(file)).add(node, without)

    def _add_value(
        self, name: str, value: Any, user: str, file: str, space: Mapping[str, Any]
    ) -> None:
        if isinstance(value, Inferlet):
            value = value.target
        if isinstance(value, ModuleType):
            if self._bind(name, value):
                self._imports[name] = (value.__name__, "")
                self._add_module(value.__name__, user)
        elif isinstance(value, FunctionType | type) and value.__module__ == self._home:
            self._add_definition(value)
            if self._entry(value) != name and self._bind(name, value):
                self._aliases[name] = self._entry(value)
        elif isinstance(value, type) and hasattr(value, "model_fields"):
            self._add_definition(value)
        elif (module := _exporter(value)) is not None:
            if self._bind(name, value):
                self._imports[name] = (module, value.__qualname__)
                self._add_module(module, user)
        elif self._bind(name, value):
            self._add_data(name, value, user, file, space)

    def _add_data(
        self, name: str, value: Any, user: str, file: str, space: Mapping[str, Any]
    ) -> None:
        """Data, or what a statement of the module makes."""
        try:
            self._given[name] = self.encoded(value, f"`{name}`, which {user} uses,")
        except CannotTravel as error:
            made = [node for node in parsed(file, user).body if _binds(node, name)]
            if len(made) != 1:
                raise CannotTravel(f"{error}; make it inside of {user}") from None
            try:
                self._add_statement(made[0], file, space, name, [])
            except CannotTravel as inner:
                raise CannotTravel(
                    f"{user} uses `{name}` ({file}:{made[0].lineno}), which can't travel: {inner}."
                    f" Make it inside of {user}, or give {user} plain data"
                ) from None

    def _add_module(self, name: str, user: str) -> None:
        """A module that is imported: the runtime's own, the caller's, or a named package's."""
        top = name.partition(".")[0]
        if is_taken(top):
            return
        if top == "pie_py":
            raise CannotTravel(f"{user} uses {name}, which an inferlet does not have: use inferlet")
        origin = _origin(name)
        if origin is None:
            return  # whether the import is reached, and what it finds, the inferlet will see
        if origin.suffix != ".py" or not _is_pure(top):
            raise CannotTravel(
                f"{user} uses {top}, which has compiled parts: an inferlet can't import it"
            )
        if _is_installed(origin) and top not in self._named:
            raise CannotTravel(
                f"{user} uses {top}, an installed package: name it, @inferlet(modules=['{top}'])"
            )
        self._add_file(name)

    def _add_file(self, name: str) -> None:
        """A whole module, its packages and what it imports of the same kind."""
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            found = _origin(".".join(parts[:depth]))
            if found is None or found.suffix != ".py":
                continue
            package = "/__init__" if found.name == "__init__.py" else ""
            path = "/".join(parts[:depth]) + package + ".py"
            if path in self._files:
                continue
            self._files[path] = found
            for other in imported_names(found.read_bytes(), path):
                top = other.partition(".")[0]
                file = None if is_taken(top) or top == "pie_py" else _origin(other)
                if file is not None and (top in self._named or not _is_installed(file)):
                    self._add_file(other)

    def _name_of(self, kind: type) -> str:
        local = kind.__module__ == self._home or "<locals>" in kind.__qualname__
        if local or hasattr(kind, "model_fields"):
            self._add_definition(kind)
            return f"{self.module}:{kind.__name__}"
        self._add_module(kind.__module__, kind.__name__)
        self.types[f"{kind.__module__}:{kind.__qualname__}"] = kind
        return f"{kind.__module__}:{kind.__qualname__}"

    def _bind(self, name: str, value: Any) -> bool:
        """Gives a global name its meaning; whether it had none yet."""
        if name not in self._bound:
            self._bound[name] = value
            return True
        if self._bound[name] is not value:
            raise CannotTravel(f"{self.name} reaches two different things called `{name}`")
        return False

    def _check(self, node: Definition, thing: FunctionType | type) -> None:
        names = {n for one in ast.walk(node) if isinstance(one, ast.Nonlocal) for n in one.names}
        code = getattr(thing, "__code__", None)
        changed = names & set(code.co_freevars if isinstance(code, CodeType) else ())
        if changed:
            raise CannotTravel(
                f"{thing.__name__} changes {', '.join(sorted(changed))} of the function around it,"
                " which stays here: return the new value instead"
            )


def _module_name(home: str) -> str:
    """The name of the caller's module in the inferlet: the script's name if it is one."""
    name = home
    if home == "__main__":
        name = Path(getattr(sys.modules[home], "__file__", None) or "notebook").stem
        name = re.sub(r"\W|^(?=\d)", "_", name)
    top, dot, rest = name.partition(".")
    return f"{top}_{dot}{rest}" if is_taken(top) or top == "main" else name


def _space(thing: FunctionType | type) -> dict[str, Any]:
    """Global names and those of functions around, with their values now."""
    functions = [thing] if isinstance(thing, FunctionType) else _methods(thing)
    space = dict(vars(sys.modules[thing.__module__])) if thing.__module__ in sys.modules else {}
    for function in functions:
        space |= function.__globals__
    for function in functions:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        space |= {name: cell.cell_contents for name, cell in cells if _is_full(cell)}
    return {name: value for name, value in space.items() if name != "__class__"}


def _is_full(cell: Any) -> bool:
    """True if a variable of a function around has a value yet."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _methods(kind: type) -> list[FunctionType]:
    found = [inspect.unwrap(getattr(one, "__func__", one)) for one in vars(kind).values()]
    return [
        one for one in found if isinstance(one, FunctionType) and one.__module__ == kind.__module__
    ]


def _is_mark(decorator: ast.expr, space: Mapping[str, Any]) -> bool:
    """True if it is `@inferlet`, in any spelling."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    path = ast.unparse(called).split(".")
    found = space.get(path[0])
    for name in path[1:]:
        found = getattr(found, name, None)
    return found is inferlet


def _exporter(value: Any) -> str | None:
    """The module from which a function or a class is imported: the shortest that has it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not callable(value):
        return None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        short = ".".join(parts[:depth])
        found: Any = sys.modules.get(short)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is value:
            return short
    return None


def _binds(node: ast.stmt, name: str) -> bool:
    """True if a statement is an assignment to a name."""
    if isinstance(node, ast.AnnAssign):
        targets: list[ast.expr] = [node.target] if node.value is not None else []
    else:
        targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(one, ast.Name) and one.id == name for one in targets)


def _origin(name: str) -> Path | None:
    """The file of a module; None if there is none, or no such module."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _is_installed(file: Path) -> bool:
    return bool({"site-packages", "dist-packages"} & set(file.parts))


def _is_pure(top: str) -> bool:
    """True if a package has no compiled parts."""
    origin = _origin(top)
    if origin is None or origin.name != "__init__.py":
        return True
    return not any(origin.parent.rglob("*.so"))
