"""Parameters and results of the contract's functions, by interface and by function."""

from __future__ import annotations

from typing import NamedTuple

from pie_control import wasm
from pie_control.wasm import Enum, List, Tuple, Type
from pie_py.build import wit


class Signature(NamedTuple):
    """Types of a function; `fallible` if it returns `result<T, string>`, `result` is `T` then."""

    params: dict[str, Type]
    result: Type | None
    fallible: bool


# Types that are compared by identity, or have a form of their own in Python.
_NAMED = {
    one.wit: one
    for one in (
        *(wasm.BOOL, wasm.S32, wasm.U32, wasm.U64, wasm.F32),
        *(wasm.STRING, wasm.U8_LIST, wasm.U32_LIST, wasm.STRING_LIST),
    )
}


class UnknownTypeError(TypeError):
    """The contract has a type that the host cannot pass; `pie_control/wasm/types.py` must learn
    it.
    """


def _signature(function: wit.Function, enums: dict[str, Enum]) -> Signature:
    result = function.result
    fallible = result is not None and result.name == "result"
    value = result.arguments[0] if result is not None and fallible else result
    params = {name.replace("-", "_"): _type(of, enums) for name, of in function.params}
    return Signature(params, None if value is None else _type(value, enums), fallible)


def _type(of: wit.Type, enums: dict[str, Enum]) -> Type:
    if str(of) in _NAMED:
        return _NAMED[str(of)]
    if of.name in enums:
        return enums[of.name]
    inner = [_type(each, enums) for each in of.arguments if each is not None]
    if of.name == "list":
        return List(*inner)
    if of.name == "tuple":
        return Tuple(*inner)
    raise UnknownTypeError(str(of))


def read_signatures(contract: wit.Package) -> dict[str, dict[str, Signature]]:
    """Those of a contract.

    Raises:
        UnknownTypeError: see there.
    """
    found = {}
    for name, interface in contract.interfaces.items():
        enums = {enum: Enum(cases) for enum, cases in interface.enums.items()}
        found[name] = {
            function: _signature(types, enums) for function, types in interface.functions.items()
        }
    return found


SIGNATURES = read_signatures(wit.contract())
