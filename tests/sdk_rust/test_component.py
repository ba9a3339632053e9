"""Core modules to components: the types come from the contract, and mistakes are told."""

from __future__ import annotations

import pytest
import wasmtime
from wasmtime.component import Component

from pie_py.build import wit
from pie_py.build.component import WORLD, ComponentError, make_component
from pie_py.config.shipped_files import contract_version

# How the canonical ABI lowers the types of the contract; `option` and `char` do not occur.
SCALARS = {"u32": "i32", "s32": "i32", "bool": "i32", "u64": "i64"}
EXPORTS = """
    (memory (export "memory") 1)
    (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) i32.const 1024)
    (func (export "run") (param i32 i32) (result i32) i32.const 0)
    (func (export "cabi_post_run") (param i32))
"""


def lowered(function: wit.Function) -> str:
    """The core type of an imported function, by the canonical ABI's rules."""
    params = []
    for _, kind in function.params:
        if kind.name in ("string", "list"):
            params += ["i32", "i32"]
        else:
            params.append(SCALARS.get(kind.name, "i32"))  # an enum is an i32
    result = ""
    if function.result is not None:
        if function.result.name in SCALARS:
            result = f"(result {SCALARS[function.result.name]})"
        else:
            params.append("i32")
    return f"(param {' '.join(params)}) {result}"


def all_imports() -> list[str]:
    package = wit.contract()
    return [
        f'(import "{package.import_name(name)}" "{function}" (func {lowered(kind)}))'
        for name in package.worlds[WORLD].imports
        for function, kind in package.interfaces[name].functions.items()
    ]


def core(*imports: str, exports: str = EXPORTS) -> bytes:
    return bytes(wasmtime.wat2wasm(f"(module {' '.join(imports)} {exports})"))


def imports_and_exports(component: bytes) -> tuple[list[str], list[str]]:
    engine = wasmtime.Engine()
    kind = Component(engine, component).type  # compiling validates every type
    return list(kind.imports(engine)), list(kind.exports(engine))


def test_every_function_of_the_contract_has_its_type() -> None:
    package = wit.contract()
    imports, exports = imports_and_exports(make_component(core(*all_imports())))
    assert imports == [package.import_name(name) for name in package.worlds[WORLD].imports]
    assert exports == ["run"]


@pytest.mark.parametrize("line", all_imports())
def test_a_component_imports_only_what_it_uses(line: str) -> None:
    imports, _ = imports_and_exports(make_component(core(line)))
    assert len(imports) == 1
    assert f'"{imports[0]}"' in line


def test_without_imports() -> None:
    assert imports_and_exports(make_component(core())) == ([], ["run"])


def test_the_core_module_is_kept_as_it_is() -> None:
    module = core(all_imports()[0])
    assert module in make_component(module)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (b"not wasm", "not a WebAssembly module"),
        (core('(import "env" "puts" (func))'), "does not offer: env puts"),
        (core('(import "pie:inferlet/runtime@9.9.9" "now" (func))'), "runtime@9.9.9 now"),
        (core('(import "pie:inferlet/source@0.1.0" "read" (func (param i32)))'), "source@"),
        (core(exports=""), r"#\[inferlet::main\]"),
        (core(exports='(func (export "run"))'), "`cabi_post_run`, `cabi_realloc`, `memory`"),
    ],
)
def test_wrong_modules(module: bytes, reason: str) -> None:
    with pytest.raises(ComponentError, match=reason):
        make_component(module)


def test_reader_of_the_contract() -> None:
    package = wit.contract()
    assert package.version == contract_version()
    assert package.worlds["source-runtime"].imports == [*package.worlds[WORLD].imports, "source"]
    take = package.interfaces["output-text"].functions["take-dist"]
    assert take.params == (("future", wit.Type("u32")),)
    floats = wit.Type("list", (wit.Type("f32"),))
    numbers = wit.Type("list", (wit.Type("u32"),))
    pair = wit.Type("tuple", (numbers, floats))
    assert take.result == wit.Type("result", (pair, wit.Type("string")))
    assert package.interfaces["runtime"].enums["log-level"][0] == "debug"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "line 1: 'package' expected"),
        ("package a:b;", "a version such as @0.1.0 expected"),
        ("package a:b@0.1.0;\nrecord r {}", "line 2: `interface` or `world` expected"),
        ("package a:b@0.1.0;\n\ninterface i { f: func(x: ) ; }", "line 3: a name expected"),
        ("package a:b@0.1.0; interface i { f: func() -> list; }", "elements expected"),
        ("package a:b@0.1.0; interface i { f: func()", "'end of file' found"),
        ("package a:b@0.1.0; world w { $", "'\\$' is not understood"),
    ],
)
def test_errors_of_the_reader_name_the_line(text: str, reason: str) -> None:
    with pytest.raises(wit.WitError, match=reason):
        wit.parse(text)
