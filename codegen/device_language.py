"""The SDKs' part of the language of device programs: names, types and docstrings for editors,
and the fields of a sampler.

A function of the language is never run in a guest: its text goes to the server.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from codegen.source import notice
from pie_py.device_programs import library
from pie_py.device_programs.fields import FIELDS, MORE
from pie_py.device_programs.functions import FUNCTIONS, METHODS, PLAIN, item
from pie_py.device_programs.language import HEADS, PAGES, TOKENS, VOCABULARY

_RULES = Path(library.__file__).with_name("rules")
_SIGNS = [
    "add",
    "sub",
    "mul",
    "truediv",
    "pow",
    "floordiv",
    "mod",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
    "matmul",
]
_COMPARED = ["lt", "le", "gt", "ge"]
_NAMES = sorted(["HEADS", "PAGES", "TOKENS", "VOCABULARY", "State", "Tensor", "fold", *FUNCTIONS])
_HEAD = f'''"""Words of device programs, for editors and type checkers: texts are read by the
server, and none of these is called in a guest.
"""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = {_NAMES!r}

VOCABULARY = {VOCABULARY}  # a size: as many as the model has tokens
HEADS, TOKENS, PAGES = {HEADS}, {TOKENS}, {PAGES}  # sizes of the stage `attend`


def _word() -> NoReturn:
    raise TypeError(
        "this is a word of device programs: it means something within a function of"
        " `device.program` or `device.attend`, whose text the server reads"
    )


class State:
    """A program's values, by name. What is assigned to a name is there at the next token."""

    def __getattr__(self, name: str) -> Tensor:
        _word()

    def __setattr__(self, name: str, value: Tensor | float | bool) -> None:
        _word()


class Tensor:
    """A value of a device program: it has a kind and sizes."""

    __hash__ = None  # type: ignore[assignment]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes, two at most; `VOCABULARY` stands for the number of the model's tokens."""
        _word()
'''
_PARAMETERS = '''"""The parameters of a sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict


class Parameters(TypedDict, total=False):
    """How the server chooses a token, among the whole vocabulary.

    The steps go in the order of the parameters, that of `transformers`; each looks at what those
    before have left. A grammar or mask comes before them.

    Attributes:
'''
_TYPES = {
    "float": "float",
    "int": "int",
    "tokens": "Sequence[int]",
    "sequences": "Sequence[Sequence[int]]",
    "biases": "Mapping[int, float | None]",
}
_JS_PARAMETERS = """
/**
 * How the server chooses a token, among the whole vocabulary.
 *
 * The steps go in the order of the parameters, that of `transformers`; each looks at what those
 * before have left. A grammar or mask comes before them.
 */
export interface SamplerParameters {
"""
_JS_TYPES = {
    "float": "number",
    "int": "number",
    "tokens": "readonly number[]",
    "sequences": "readonly (readonly number[])[]",
    "biases": "Record<number, number | null>",
}


def render_words() -> str:
    """The functions and methods of the language."""
    methods = [_function(name, one, own=True) for name, one in METHODS.items()]
    methods += [
        _word(f"def {name}(self) -> Tensor", textwrap.fill(doc, 92)) for name, doc in PLAIN.items()
    ]
    methods += [_word("def __getitem__(self, place: Any) -> Tensor", _doc(item))]
    methods += [_word(f"def __{sign}__(self, other: Any) -> Tensor") for sign in _COMPARED]
    methods += [
        _word(f"def __{sign}__(self, other: object) -> Tensor:  # type: ignore[override]")
        for sign in ("eq", "ne")
    ]
    for sign in _SIGNS:
        methods += [_word(f"def __{r}{sign}__(self, other: Any) -> Tensor") for r in ("", "r")]
    methods += [_word(f"def __{sign}__(self) -> Tensor") for sign in ("neg", "abs", "invert")]
    methods += [_word("def __iter__(self) -> Any"), _word("def __len__(self) -> int")]
    functions = [_function(name, one) for name, one in FUNCTIONS.items()]
    fold = "What a function makes of `first` and one value after the other."
    functions += [_word("def fold(function: Any, first: Any, values: Any) -> Any", fold)]
    text = _HEAD + textwrap.indent("\n".join(methods), "    ") + "\n\n" + "\n\n".join(functions)
    return notice("#", "pie_py/device_programs/functions.py") + text


def render_rules() -> str:
    """The rules of the library, which programs call."""
    names = [node.name for node in _rules()]
    text = (
        '"""Rules for choosing tokens: what `inferlet.samplers` has beside whole programs."""'
        "\n\nfrom __future__ import annotations\n\nfrom typing import Any\n\n"
        "from inferlet._generated.device_words import Tensor, _word\n\n"
        f"__all__ = {sorted(names)!r}\n"
    )
    for node in _rules():
        for one in node.args.args:
            one.annotation = ast.Name("Tensor" if one.arg in ("logits", "other") else "Any")
        head = f"def {node.name}({ast.unparse(node.args)}) -> Tensor"
        text += "\n\n" + _word(head, ast.get_docstring(node) or "")
    return notice("#", "pie_py/device_programs/rules") + text


def _rules() -> list[ast.FunctionDef]:
    """The rules of the library, but for those that are steps of a sampler's fields."""
    texts = [(_RULES / f"{name}.py").read_text() for name in ("likelihood", "text")]
    nodes = [node for text in texts for node in ast.parse(text).body]
    rules = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return [node for node in rules if not node.name.startswith("by_")]


def render_parameters() -> str:
    """The parameters of a sampler, for Python."""
    text = _PARAMETERS
    for name, one in {**FIELDS, **MORE}.items():
        text += textwrap.fill(
            f"{name}: {one.doc[0].lower()}{one.doc[1:]}",
            96,
            initial_indent=" " * 8,
            subsequent_indent=" " * 12,
        )
        text += "\n"
    text += '    """\n\n'
    for name, one in {**FIELDS, **MORE}.items():
        none = " | None" if one.default is None else ""
        text += f"    {name}: {_TYPES[one.kind]}{none}\n"
    return notice("#", "pie_py/device_programs/fields.py") + text


def render_js_parameters() -> str:
    """The parameters of a sampler, for TypeScript."""
    text = notice("//", "pie_py/device_programs/fields.py") + _JS_PARAMETERS
    for name, one in {**FIELDS, **MORE}.items():
        doc = re.sub(r"_(\w)", lambda found: found[1].upper(), one.doc).replace("None", "null")
        lines = textwrap.fill(f"/** {doc} */", 100, initial_indent="  ", subsequent_indent="   * ")
        camel = re.sub(r"_(\w)", lambda found: found[1].upper(), name)
        kind = "number | bigint" if name == "seed" else _JS_TYPES[one.kind]
        text += f"{lines}\n  {camel}?: {kind};\n"
    return text + "}\n"


def _function(name: str, of: Callable[..., Any], *, own: bool = False) -> str:
    parameters = list(inspect.signature(of).parameters.values())[2 if own else 1 :]
    shown = ["self"] if own else []
    for one in parameters:
        star = "*" if one.kind is one.VAR_POSITIONAL else ""
        default = "" if one.default is one.empty else f" = {_default(one.default)}"
        shown.append(f"{star}{one.name}: {one.annotation}{default}")
    returned = "Tensor" if inspect.signature(of).return_annotation == "Tensor" else "Any"
    return _word(f"def {name}({', '.join(shown)}) -> {returned}", _doc(of))


def _default(value: Any) -> str:
    return "VOCABULARY" if value == VOCABULARY else repr(value)


def _doc(of: Callable[..., Any]) -> str:
    doc = inspect.getdoc(getattr(of, "func", of)) or ""
    return doc if "\n" in doc else textwrap.fill(doc, 92)


def _word(head: str, doc: str = "") -> str:
    colon = "" if ":  #" in head or head.endswith(":") else ":"
    end = "\n" if "\n" in doc else ""
    shown = textwrap.indent(f'"""{doc}{end}"""\n', "    ") if doc else ""
    return f"{head}{colon}\n{shown}    _word()\n"
