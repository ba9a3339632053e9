"""The parameters of samplers in the three SDKs, from one table."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

from pie_py.build.generate.source import format_python, notice, number
from pie_py.wire.operations import (
    ALL_PARAMETERS,
    COUNTING,
    LOOKING_BACK,
    PARAMETERS,
    Kind,
    Operation,
    Parameter,
)

_TABLE = "pie_py/wire/operations.py"
_PYTHON = {
    Kind.NUMBER: "float",
    Kind.COUNT: "int",
    Kind.KEY: "int",
    Kind.WEIGHTS: "Sequence[float]",
    Kind.TOKENS: "Sequence[int]",
    Kind.SEQUENCES: "Sequence[Sequence[int]]",
    Kind.BIASES: "Mapping[int, float | None]",
}
_RUST = {
    Kind.NUMBER: "f32",
    Kind.COUNT: "u32",
    Kind.KEY: "u64",
    Kind.WEIGHTS: "Vec<f32>",
    Kind.TOKENS: "Vec<u32>",
    Kind.SEQUENCES: "Vec<Vec<u32>>",
    Kind.BIASES: "Vec<(u32, Option<f32>)>",
}
_JAVASCRIPT = {
    Kind.WEIGHTS: "number[]",
    Kind.TOKENS: "number[]",
    Kind.SEQUENCES: "number[][]",
    Kind.BIASES: "Record<number, number | null>",
}


def render_python() -> str:
    """What `DeviceSampler` of the Python SDK has of the table."""
    parameters = ALL_PARAMETERS.values()
    documented = "\n".join(
        textwrap.fill(f"{p.name}: {p.doc}.", 92, initial_indent=" " * 8, subsequent_indent=" " * 12)
        for p in parameters
    )
    fields = "\n".join(_python_field(p) for p in parameters)
    code = f'''{notice("#", _TABLE)}"""The parameters of a sampler that the server has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerParameters:
    """The parameters of the steps, in their order.

    Attributes:
{documented}
    """

{fields}

    @property
    def counts(self) -> bool:
        """Whether a step counts the tokens of the context."""
        return {_python_any(COUNTING)}

    @property
    def looks_back(self) -> bool:
        """Whether a step looks back at the tokens of the context."""
        return self.counts or {_python_any(LOOKING_BACK)}
'''
    return format_python(code)


def render_rust() -> str:
    """`DeviceSampler` of the Rust SDK."""
    parameters = ALL_PARAMETERS.values()
    declared = "".join(f"{_rust_doc(p)}\n    pub {p.name}: {_rust_type(p)},\n" for p in parameters)
    defaults = "".join(f"            {p.name}: {_rust_default(p)},\n" for p in parameters)
    read = "".join(
        f'        read(given, "{p.name}", &mut sampler.{p.name})?;\n' for p in parameters
    )
    written = "".join(f'        self.{p.name}.write("{p.name}", &mut out);\n' for p in parameters)
    return _RUST_TEXT.format(
        notice=notice("//", _TABLE),
        declared=declared,
        defaults=defaults,
        read=read,
        written=written,
        counts=_rust_any(COUNTING),
        looks_back=_rust_any(LOOKING_BACK),
    )


def render_javascript() -> str:
    """`SamplerOptions` of the JavaScript SDK."""
    declared = "".join(
        f"  /** {_capital(p.doc)}. */\n  {_camel(p.name)}?: {_JAVASCRIPT.get(p.kind, 'number')};\n"
        for p in ALL_PARAMETERS.values()
    )
    return f"""{notice("//", _TABLE)}
/** Parameters of the steps of a `DeviceSampler`, in their order. */
export interface SamplerParameters {{
{declared}}}

/** Those that need the tokens of the context counted, with the values that change nothing. */
export const COUNTING: SamplerParameters = {_javascript_values(COUNTING)};

/** Those that look back at the tokens of the context. */
export const LOOKING_BACK: SamplerParameters = {_javascript_values(LOOKING_BACK)};
"""


_RUST_TEXT = """\
{notice}//! Choice by the server: the parameters of its samplers.

use crate::error::Result;
use crate::json::Value;
use crate::sampler_json::{{read, Parameter}};

/// Choice of a token by the server, among the whole vocabulary.
///
/// The steps go in the order of the contract's `create-sampler`, which says what each of them does,
/// unless `order` names another one.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSampler {{
{declared}    /// Names of the steps, in another order; empty: as in the contract.
    pub order: Vec<String>,
    /// The number of most likely tokens that each step also reports.
    pub logprobs: u32,
    /// Same seed, same tokens; by default the server draws one.
    pub seed: Option<u64>,
}}

impl Default for DeviceSampler {{
    fn default() -> DeviceSampler {{
        DeviceSampler {{
{defaults}            order: Vec::new(),
            logprobs: 0,
            seed: None,
        }}
    }}
}}

impl DeviceSampler {{
    /// Reads parameters as the contract has them; what is not given is the default.
    ///
    /// Errors: `invalid-argument`, naming the parameter.
    pub fn from_json(given: &Value) -> Result<DeviceSampler> {{
        let mut sampler = DeviceSampler::default();
{read}        read(given, "order", &mut sampler.order)?;
        read(given, "logprobs", &mut sampler.logprobs)?;
        read(given, "seed", &mut sampler.seed)?;
        Ok(sampler)
    }}

    /// The parameters as the contract wants them, without the seed and the closing brace.
    pub(crate) fn open_json(&self) -> String {{
        let mut out = format!("{{{{\\"logprobs\\":{{}}", self.logprobs);
{written}        if !self.order.is_empty() {{
            self.order.write("order", &mut out);
        }}
        out
    }}

    /// Whether a step counts the tokens of the context.
    pub(crate) fn counts(&self) -> bool {{
        {counts}
    }}

    /// Whether a step looks back at the tokens of the context.
    pub(crate) fn looks_back(&self) -> bool {{
        self.counts()
            || {looks_back}
    }}
}}
"""


def _python_field(parameter: Parameter) -> str:
    kind, default = _PYTHON[parameter.kind], repr(parameter.default)
    if parameter.default is None:
        kind += " | None"
    elif isinstance(parameter.default, list):
        default = repr(tuple(parameter.default))
    elif isinstance(parameter.default, dict):
        default = "field(default_factory=dict)"
    return f"    {parameter.name}: {kind} = {default}"


def _rust_doc(parameter: Parameter) -> str:
    mark = "    /// "
    return textwrap.fill(
        f"{_capital(parameter.doc)}.", 100, initial_indent=mark, subsequent_indent=mark
    )


def _rust_type(parameter: Parameter) -> str:
    kind = _RUST[parameter.kind]
    return f"Option<{kind}>" if parameter.default is None else kind


def _rust_default(parameter: Parameter) -> str:
    match parameter.default:
        case None:
            return "None"
        case [] | {}:
            return "Vec::new()"
        case list():
            return f"vec!{parameter.default}"
        case _:
            return repr(parameter.default)


def _deciding(operations: Iterable[Operation]) -> list[Parameter]:
    return [p for operation in sorted(operations) for p in PARAMETERS[operation] if not p.tunes]


def _python_any(operations: Iterable[Operation]) -> str:
    return " or ".join(
        f"bool(self.{p.name})" if p.default == [] else f"self.{p.name} != {p.default!r}"
        for p in _deciding(operations)
    )


def _rust_any(operations: Iterable[Operation]) -> str:
    return "\n            || ".join(
        f"!self.{p.name}.is_empty()" if p.default == [] else f"self.{p.name} != {p.default!r}"
        for p in _deciding(operations)
    )


def _javascript_values(operations: Iterable[Operation]) -> str:
    values = ", ".join(f"{_camel(p.name)}: {number(p.default)}" for p in _deciding(operations))
    return f"{{ {values} }}"


def _camel(name: str) -> str:
    return re.sub("_(.)", lambda found: found.group(1).upper(), name)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
