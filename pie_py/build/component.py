"""Makes a component of the world `inferlet` from a core WebAssembly module.

The core module speaks the canonical ABI: it imports functions of `pie:inferlet/...` in lowered form
and exports `run`, `cabi_post_run`, `cabi_realloc` and `memory`. A component around it says so in
types. It is written here as text for the functions that the module uses, with the types taken
from the contract itself, and assembled by Wasmtime.

A lowered function needs the module's memory, and the module needs the lowered functions to be
instantiated. The knot is cut in the usual way: the module imports trampolines that call through a
table, and the table is filled once the memory is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import wasmtime

from pie_py.build import wit
from pie_py.build.image import CORE_MODULE, CUSTOM, read_leb, sections

WORLD = "inferlet"
_MAIN = 2  # index of the core module `$main` in the text below


class ComponentError(Exception):
    """The core module can't become an inferlet; the text says why and how to mend it."""


@dataclass(frozen=True, slots=True)
class _Import:
    """A function that the core module imports: where from, and its core type as text."""

    interface: str
    name: str
    core_type: str


def make_component(core: bytes) -> bytes:
    """Wraps a core module into a component that imports what the module uses, and exports `run`.
    Raises `ComponentError`: the bytes are no core module, it imports what the contract does not
    have, or it lacks an export.
    """
    try:
        module = wasmtime.Module(wasmtime.Engine(), core)
    except wasmtime.WasmtimeError as error:
        raise ComponentError(f"not a WebAssembly module: {error}") from None
    imports = _imports(module, wit.contract())
    present = {item.name for item in module.exports}
    if "run" not in present:
        raise ComponentError(
            "the module exports no `run`: mark the inferlet's function with #[inferlet::main]"
        )
    missing = sorted({"memory", "cabi_realloc", "cabi_post_run"} - present)
    if missing:
        raise ComponentError(
            f"the module exports no {', '.join(f'`{name}`' for name in missing)}: the canonical"
            " ABI needs it, and the SDK of this installation gives it"
        )
    skeleton = bytes(wasmtime.wat2wasm(_text(wit.contract(), imports)))
    out = bytearray(skeleton[:8])
    modules = 0
    for section, body, end in sections(skeleton, 0, len(skeleton)):
        content = skeleton[body:end]
        if section == CORE_MODULE:
            if modules == _MAIN:
                content = core
            modules += 1
        out.append(section)
        out += _leb(len(content))
        out += content
    return bytes(out)


def _imports(module: wasmtime.Module, package: wit.Package) -> list[_Import]:
    world = package.worlds[WORLD]
    interfaces = {package.import_name(name): name for name in world.imports}
    found, foreign = [], []
    for item in module.imports:
        interface = interfaces.get(item.module)
        known = interface is not None and item.name in package.interfaces[interface].functions
        if interface is not None and known and isinstance(item.type, wasmtime.FuncType):
            found.append(_Import(interface, item.name or "", _core_type(item.type)))
        else:
            foreign.append(f"{item.module} {item.name}")
    if foreign:
        raise ComponentError(
            f"the module imports what {package.name}@{package.version} does not offer: "
            f"{', '.join(foreign)}. An inferlet may use nothing else; remove the dependency that "
            "needs it, or build with the SDK of this installation"
        )
    return found


def _core_type(function: wasmtime.FuncType) -> str:
    params = " ".join(str(kind) for kind in function.params)
    results = " ".join(str(kind) for kind in function.results)
    return f"(param {params}) (result {results})"


def _value_type(kind: wit.Type | None, enums: dict[str, str]) -> str:
    """Component text of a type; `enums` gives the identifier of each enum."""
    if kind is None:
        raise AssertionError("only a result has absent types")
    if kind.name in wit.PRIMITIVES:
        return kind.name
    if kind.name == "result":
        ok, error = kind.arguments
        ok_text = "" if ok is None else _value_type(ok, enums)
        error_text = "" if error is None else f"(error {_value_type(error, enums)})"
        return f"(result {ok_text} {error_text})"
    if kind.arguments:
        inner = " ".join(_value_type(argument, enums) for argument in kind.arguments)
        return f"({kind.name} {inner})"
    return enums[kind.name]


def _function_type(function: wit.Function, enums: dict[str, str]) -> str:
    params = " ".join(f'(param "{name}" {_value_type(t, enums)})' for name, t in function.params)
    if function.result is None:
        return params
    return f"{params} (result {_value_type(function.result, enums)})"


def _instance(package: wit.Package, name: str, imports: list[_Import]) -> Iterator[str]:
    """The import of one interface, with the functions that are used and the enums they use."""
    interface = package.interfaces[name]
    used = [interface.functions[item.name] for item in imports if item.interface == name]
    named = {kind.name for function in used for _, kind in function.params}
    enums = {enum: f"${name}-{enum}" for enum in interface.enums if enum in named}
    yield f'(import "{package.import_name(name)}" (instance ${name}'
    for enum, identifier in enums.items():
        cases = " ".join(f'"{case}"' for case in interface.enums[enum])
        yield f"(type {identifier}-cases (enum {cases}))"
        yield f'(export "{enum}" (type {identifier} (eq {identifier}-cases)))'
    for item in imports:
        if item.interface == name:
            kind = _function_type(interface.functions[item.name], enums)
            yield f'(export "{item.name}" (func {kind}))'
    yield "))"


def _text(package: wit.Package, imports: list[_Import]) -> str:
    """The component as text, with an empty module in the place of the core module."""
    names = list(dict.fromkeys(item.interface for item in imports))
    numbered = list(enumerate(imports))
    lines = ["(component"]
    for name in names:
        lines += _instance(package, name, imports)

    lines += _trampolines(imports)
    lines += _fill(imports)
    lines += _main(package, imports)

    lines.append("(core instance $t (instantiate $trampolines))")
    lines.append("(core instance $m (instantiate $main")
    for name in names:
        lines.append(f'(with "{package.import_name(name)}" (instance')
        lines += [
            f'(export "{item.name}" (func $t "{i}"))'
            for i, item in numbered
            if item.interface == name
        ]
        lines.append("))")
    lines.append("))")
    lines.append('(alias core export $m "memory" (core memory $memory))')
    lines.append('(alias core export $m "cabi_realloc" (core func $realloc))')
    options = "(memory $memory) (realloc $realloc) string-encoding=utf8"
    for i, item in numbered:
        lines.append(f'(alias export ${item.interface} "{item.name}" (func $f{i}))')
        lines.append(f"(core func $l{i} (canon lower (func $f{i}) {options}))")
    lines.append('(core instance (instantiate $fill (with "" (instance')
    lines.append('(export "table" (table $t "table"))')
    lines += [f'(export "{i}" (func $l{i}))' for i, _ in numbered]
    lines.append("))))")

    lines.append('(alias core export $m "run" (core func $run))')
    lines.append('(alias core export $m "cabi_post_run" (core func $post))')
    run = _function_type(package.worlds[WORLD].exports["run"], {})
    lines.append(
        f'(func (export "run") {run} (canon lift (core func $run) {options} (post-return $post)))'
    )
    lines.append(")")
    return "\n".join(lines)


def _trampolines(imports: list[_Import]) -> list[str]:
    """A module that calls each import through a table, which is filled later."""
    count = len(imports)
    lines = ["(core module $trampolines", f'(table (export "table") {count} {count} funcref)']
    for i, item in enumerate(imports):
        arity = len(item.core_type.partition(")")[0].split()) - 1
        arguments = " ".join(f"local.get {n}" for n in range(arity))
        lines.append(f"(type $t{i} (func {item.core_type}))")
        lines.append(
            f'(func (export "{i}") (type $t{i}) {arguments}'
            f" i32.const {i} call_indirect (type $t{i}))"
        )
    return [*lines, ")"]


def _fill(imports: list[_Import]) -> list[str]:
    count = len(imports)
    return [
        "(core module $fill",
        f'(import "" "table" (table {count} {count} funcref))',
        *(f'(import "" "{i}" (func {item.core_type}))' for i, item in enumerate(imports)),
        f"(elem (i32.const 0) func {' '.join(map(str, range(count)))})",
        ")",
    ]


def _main(package: wit.Package, imports: list[_Import]) -> list[str]:
    names = [(package.import_name(item.interface), item) for item in imports]
    return [
        "(core module $main",
        *(f'(import "{name}" "{item.name}" (func {item.core_type}))' for name, item in names),
        '(memory (export "memory") 0)'
        '(func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) unreachable)'
        '(func (export "run") (param i32 i32) (result i32) unreachable)'
        '(func (export "cabi_post_run") (param i32))'
        ")",
    ]


def without_lines(core: bytes) -> bytes:
    """A core module without its debug information; names of functions stay."""
    out = bytearray(core[:8])
    at = len(out)
    for section, body, end in sections(core, 0, len(core)):
        length, name = read_leb(core, body)
        if section != CUSTOM or not core[name : name + length].startswith(b".debug_"):
            out += core[at:end]
        at = end
    return bytes(out)


def _leb(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
