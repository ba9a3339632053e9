"""Random JSON schemas and regular expressions whose texts are not too long; and grammars made to
hurt.
"""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st

NAMES = st.sampled_from(["a", "b", "name", "x y", "é", "1", "the"])
WORDS = st.text('abtheqé "\\\n', max_size=5)

_numbers = st.tuples(st.integers(-200, 200), st.integers(0, 300)).map(
    lambda pair: {"type": "integer", "minimum": pair[0], "maximum": pair[0] + pair[1]}
)
_strings = st.tuples(st.integers(0, 2), st.integers(0, 4)).map(
    lambda pair: {"type": "string", "minLength": pair[0], "maxLength": pair[0] + pair[1]}
)
_constants = st.lists(
    st.none() | st.booleans() | st.integers(-99, 99) | WORDS, min_size=1, max_size=3
).map(lambda values: {"enum": values})
_leaves = (
    _numbers
    | _strings
    | _constants
    | st.sampled_from(
        [
            {"type": "null"},
            {"type": "boolean"},
            {"type": "string", "format": "date"},
            {"type": "string", "pattern": "^[a-c]{1,4}-[0-9]{2}$"},
            {"const": {"k": [1, "two"]}},
        ]
    )
)


def _lists(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(items, st.integers(0, 2), st.integers(0, 2)).map(
        lambda t: {"type": "array", "items": t[0], "minItems": t[1], "maxItems": t[1] + t[2]}
    )


@st.composite
def _objects(draw: st.DrawFn, values: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, values, max_size=3))
    names = sorted(properties)
    required = [name for name in names if draw(st.booleans())]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


schemas = st.recursive(
    _leaves,
    lambda inner: (
        _lists(inner)
        | _objects(inner)
        | st.lists(inner, min_size=1, max_size=2).map(lambda options: {"anyOf": options})
    ),
    max_leaves=5,
)

_simple = st.sampled_from(
    [
        *(True, False, {}),
        *({"type": name} for name in ("null", "string", "array", "object")),
        *({"const": value} for value in (None, True, 1, "a", "b")),
        {"enum": [1, "a", None]},
        {"type": ["number", "string"]},
        *({"minimum": 1}, {"exclusiveMaximum": 2}, {"minLength": 2}, {"maxItems": 1}),
        *({"required": ["a"]}, {"properties": {"a": {"const": 1}}}, {"minProperties": 2}),
        {"properties": {"a": False}},
        {"properties": {"a": True}, "unevaluatedProperties": False},
    ]
)
_names = st.sampled_from(
    [{"pattern": "^a"}, {"maxLength": 1}, {"enum": ["a", "bb"]}, {"const": "a"}, True, False]
)


def _conditions(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    keywords = {
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "oneOf": several,
        "allOf": several,
        "anyOf": several,
        "propertyNames": _names,
        "dependentRequired": st.just({"a": ["b"], "bb": ["a"]}),
        "dependentSchemas": inner.map(lambda schema: {"a": schema}),
        "properties": inner.map(lambda schema: {"a": schema}),
        "maxItems": st.integers(0, 3),
        "contains": inner,
        "minContains": st.integers(0, 2),
        "maxContains": st.integers(0, 2),
        "items": inner,
        "uniqueItems": st.booleans(),
    }
    return st.fixed_dictionaries({}, optional=keywords).filter(lambda schema: len(schema) < 4)


conditions = _conditions(st.recursive(_simple, _conditions, max_leaves=4))
_values = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "a", "b", "ab"])
documents = (
    _values
    | st.lists(_values, max_size=2)
    | st.dictionaries(st.sampled_from(["a", "b", "bb"]), _values, max_size=3)
)

# No \d and \w: Python and Rust do not mean the same characters by them.
_atoms = st.sampled_from(
    ["a", "the", "é", "[0-9]", "[a-f]", "[^a-z]", r"\.", "(?:ab|ba)", "[A-Z_é]", "[0-9A-F]", " "]
)
_pieces = st.tuples(_atoms, st.sampled_from(["", "?", "{2}", "{1,3}", "{0,2}"])).map("".join)
_branches = st.lists(_pieces, min_size=1, max_size=4).map("".join)
regexes = st.lists(_branches, min_size=1, max_size=2).map("|".join)

BOMBS = {
    "repeated repeats": ("regex", "((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}"),
    "far back": ("regex", "(.*a.{20}|.*b.{21}|.*c.{22}){10}"),
    "many choices": ("regex", "(a|b|ab|ba)*" + "(a|b){1000}" * 50),
    "intersections": ("lark", "start: A\nA: /.*a.{15}/ & /.*b.{17}/ & /.*c.{19}/ & ~/.*d.{20}/\n"),
    "ambiguity": ("lark", "start: e\ne: e e | e e e | A?\nA: /a/\n"),
    "wide object": (
        "json-schema",
        json.dumps(
            {
                "allOf": [
                    {"properties": {f"p{i}_{j}": {"type": "integer"} for j in range(50)}}
                    for i in range(100)
                ]
            }
        ),
    ),
    "long list": (
        "json-schema",
        json.dumps({"type": "array", "minItems": 10**9, "items": {"type": "array"}}),
    ),
    "nothing but itself": ("json-schema", json.dumps({"allOf": [{"$ref": "#"}]})),
    "long string": ("json-schema", json.dumps({"type": "string", "minLength": 10**9})),
}
