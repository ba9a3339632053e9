"""`compile`, `exec` and `eval` that never look for the source file.

For the message of a SyntaxError, CPython opens the file that the code is said to come from, in C,
even if it is called `<string>`. A file name that can't be encoded makes it give up before that.
"""

from __future__ import annotations
import __future__

import _symtable  # type: ignore[import-not-found]
import builtins
import os
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

UNOPENABLE = "\ud800"  # a lone surrogate, added to the file name while compiling

_c_compile = builtins.compile
_c_exec = builtins.exec
_c_eval = builtins.eval
_c_symtable = _symtable.symtable
_generate_tokens = tokenize._generate_tokens_from_c_tokenizer  # type: ignore[attr-defined]

_FUTURE_FLAGS = 0
for _name in __future__.all_feature_names:
    _FUTURE_FLAGS |= getattr(__future__, _name).compiler_flag


def compile_(
    source: Any,
    filename: Any,
    mode: str,
    flags: int = 0,
    dont_inherit: bool = False,
    optimize: int = -1,
    *,
    _feature_version: int = -1,
) -> Any:
    """Stands for `compile`."""
    if not dont_inherit:
        flags |= sys._getframe(1).f_code.co_flags & _FUTURE_FLAGS
    return _compile(source, filename, mode, flags, optimize, _feature_version)


def exec_(
    source: Any,
    /,
    globals: dict[str, Any] | None = None,  # noqa: A002 - the name in the library
    locals: Mapping[str, object] | None = None,  # noqa: A002
    *,
    closure: Any = None,
) -> None:
    """Stands for `exec`."""
    code, *spaces = _arguments(source, globals, locals, "exec")
    _c_exec(code, *spaces, closure=closure)


def eval_(
    source: Any,
    /,
    globals: dict[str, Any] | None = None,  # noqa: A002
    locals: Mapping[str, object] | None = None,  # noqa: A002
) -> Any:
    """Stands for `eval`."""
    if isinstance(source, str):
        source = source.lstrip(" \t")
    return _c_eval(*_arguments(source, globals, locals, "eval"))


def symtable(source: Any, filename: Any, startstr: str, /, **options: Any) -> Any:
    """Stands for `_symtable.symtable`."""
    _compile(source, filename, startstr, 0, -1, -1)
    return _c_symtable(source, filename, startstr, **options)


def generate_tokens(
    source: Callable[[], Any], encoding: str | None = None, extra_tokens: bool = False
) -> Iterator[tokenize.TokenInfo]:
    """Stands for the generator under `tokenize`, which looks for a file if brackets stay open."""
    depth = 0
    row = 0

    def readline() -> Any:
        nonlocal row
        try:
            line = source()
        except StopIteration:
            line = ""
        row += 1
        if not line and depth > 0:
            raise SyntaxError("unexpected EOF in multi-line statement", ("<string>", row, 0, None))
        return line

    for token in _generate_tokens(readline, encoding, extra_tokens):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        yield token


def _arguments(source: Any, first: Any, second: Any, mode: str) -> tuple[Any, Any, Any]:
    """Code and the two name spaces, by default the caller's."""
    frame = sys._getframe(2)
    if not isinstance(source, CodeType):
        flags = frame.f_code.co_flags & _FUTURE_FLAGS
        source = _compile(source, "<string>", mode, flags, -1, -1)
    if first is None:
        first = frame.f_globals
        if second is None:
            second = frame.f_locals
    return source, first, first if second is None else second


def _compile(source: Any, filename: Any, mode: str, flags: int, optimize: int, version: int) -> Any:
    name = os.fsdecode(filename)
    try:
        made = _c_compile(
            source, name + UNOPENABLE, mode, flags, True, optimize, _feature_version=version
        )
    except SyntaxError as error:
        error.filename = name
        if error.text is None and error.lineno and isinstance(source, str):
            error.text = "\n".join(source.splitlines()[error.lineno - 1 : error.lineno])
        raise
    return _renamed(made, name) if isinstance(made, CodeType) else made


def _renamed(code: CodeType, name: str) -> CodeType:
    """The code, and the functions in it, under another file name."""
    constants = tuple(
        _renamed(constant, name) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(co_filename=name, co_consts=constants)


REPLACEMENTS: dict[str, Any] = {"compile": compile_, "exec": exec_, "eval": eval_}
