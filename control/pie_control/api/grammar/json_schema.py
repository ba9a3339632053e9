"""JSON schemas as llguidance takes them: what it lacks, said by what it has.

Every rewriting keeps the meaning of the schema. What cannot be said so is left as it is, and
llguidance refuses it by name.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Schema = Any  # a bool, or an object as `json.loads` makes it
TYPES = ("null", "boolean", "number", "string", "array", "object")
MAX_FREE_KEYS = 5  # of an object whose keys may come in any order: each order is an alternative
MAX_DISTINCT = 5  # values of a list without repetition: likewise
MAX_PLACES = 8  # of a list that contains something: each choice of places is an alternative
LONGEST_KEY = 64  # that a pattern leaves out
FARTHEST = 10**18  # of a bound from zero

_AROUND = re.compile(r"\(\?<?[=!]|\\[1-9]")  # and what refers back
_OLD_DRAFT = re.compile(r"json-schema\.org/draft-0[3-7]")
_IN_OBJECTS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = {"items", "additionalProperties", "additionalItems", "unevaluatedProperties"}
_SINGLE |= {"unevaluatedItems", "not", "if", "then", "else", "contains", "propertyNames"}
_APPLIES = {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"}
_APPLIES |= {"dependencies", "not"}
_NOTES = {"$schema", "$id", "$comment", "$defs", "definitions", "$anchor", "title", "description"}
_NOTES |= {"default", "examples", "deprecated", "readOnly", "writeOnly", "x-guidance"}
_FORMATS = {"date", "time", "date-time", "duration", "uri", "uuid"}
_FORMATS |= {"email", "hostname", "ipv4", "ipv6"}

_DAYS = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)


class CannotSay(Exception):
    """A schema has no equal among those that llguidance takes."""


def rewritten(schema: Schema, strict: bool = False, free_order: bool = False) -> Schema:
    """A schema of the same meaning, without what llguidance does not know, as far as possible.

    If `strict`, objects and lists have nothing but what is named, where the schema does not say. If
    `free_order`, the members of objects may come in any order.

    Raises:
        ValueError: an object whose keys may come in any order has too many of them.
    """
    old = isinstance(schema, dict) and bool(_OLD_DRAFT.search(str(schema.get("$schema", ""))))
    lenient = isinstance(schema, dict) and schema.get("x-guidance", {}).get("lenient")
    rules = (_looks_around, _other_types, *_RULES) if lenient else _RULES
    found = _rewrite(schema, _Rules(old, strict, free_order, rules))
    # Once nothing is negated; and of patterns of keys llguidance makes no intersections.
    whole = any(f'"{name}"' in json.dumps(found) for name in _APPLIES)
    last = (_bounds,) if whole else (_bounds, _other_keys)
    return _rewrite(found, _Rules(False, False, False, last))


@dataclass(frozen=True)
class _Rules:
    old_draft: bool
    strict: bool
    free_order: bool
    steps: tuple[Callable[[dict[str, Any]], None], ...]


def _rewrite(schema: Schema, rules: _Rules) -> Schema:
    if not isinstance(schema, dict):
        return schema
    if rules.old_draft and "$ref" in schema:  # its siblings meant nothing then
        kept = ("$ref", "$schema", "$id", "$defs", "definitions")
        schema = {name: value for name, value in schema.items() if name in kept}
    found = {name: _within(name, value, rules) for name, value in _said(schema).items()}
    for rule in rules.steps:
        rule(found)
    if rules.strict:
        _close(found)
    if rules.free_order:
        _free_order(found)
    return found


def _said(schema: dict[str, Any]) -> dict[str, Any]:
    """Without what says nothing: null, which some clients write for a keyword that is not there,
    and a `format` that is not known, by JSON Schema a note. A property's own `required`, as draft 3
    has it, becomes one of its object.
    """
    found = {
        name: value
        for name, value in schema.items()
        if (value is not None or name in ("const", "default"))
        and not (name == "format" and isinstance(value, str) and value not in _FORMATS)
        and not (name == "required" and isinstance(value, bool))
    }
    needed = [
        key
        for key, inner in found.get("properties", {}).items()
        if isinstance(inner, dict) and inner.get("required") is True
    ]
    return {**found, "required": [*found.get("required", []), *needed]} if needed else found


def _within(name: str, value: Any, rules: _Rules) -> Any:
    """A keyword's value, with the schemas in it rewritten."""
    if name in _IN_OBJECTS and isinstance(value, dict):
        return {key: _rewrite(inner, rules) for key, inner in value.items()}
    if (name in _IN_LISTS or name == "items") and isinstance(value, list):
        return [_rewrite(inner, rules) for inner in value]
    if name == "dependencies" and isinstance(value, dict):
        return {key: _rewrite(inner, rules) for key, inner in value.items()}
    return _rewrite(value, rules) if name in _SINGLE else value


# Each takes a schema whose inner ones are rewritten already, and changes it in place.


def _all(schema: dict[str, Any], *more: Schema) -> None:
    schema["allOf"] = [*schema.get("allOf", []), *more]


def _looks_around(schema: dict[str, Any]) -> None:
    """Leaves out a pattern that is no regular expression, as Zod writes one of an address."""
    if _AROUND.search(str(schema.get("pattern", ""))):
        del schema["pattern"]


def _other_types(schema: dict[str, Any]) -> None:
    """Leaves out a type that JSON Schema has not, as `any`; Google's are in capitals."""
    if isinstance(given := schema.get("type"), str):
        schema["type"] = given.lower()
        if schema["type"] not in (*TYPES, "integer"):
            del schema["type"]


def _trivial(schema: dict[str, Any]) -> None:
    """Leaves out what says nothing."""
    if schema.get("uniqueItems") is False or schema.get("maxItems") in (0, 1):
        schema.pop("uniqueItems", None)
    if schema.keys() & {"unevaluatedProperties", "unevaluatedItems"}:
        return  # what they hold for depends on the rest
    least = schema.get("minContains", 1)
    if "contains" not in schema or (least == 0 and "maxContains" not in schema):
        for name in ("contains", "minContains", "maxContains"):
            schema.pop(name, None)
    elif schema["contains"] in (True, {}) and isinstance(least, int):
        del schema["contains"]
        limits = {"minItems": schema.pop("minContains", 1)}
        if "maxContains" in schema:
            limits["maxItems"] = schema.pop("maxContains")
        _all(schema, limits)
    for name in ("then", "else"):
        if "if" not in schema:
            schema.pop(name, None)
    if "then" not in schema and "else" not in schema:
        schema.pop("if", None)


def _contains(schema: dict[str, Any]) -> None:
    """In a short list, each choice of places for what it contains is an alternative."""
    most = schema.get("maxItems")
    if "contains" not in schema or not isinstance(most, int) or most > MAX_PLACES:
        return
    inner, least = schema["contains"], schema.get("minContains", 1)
    limit = schema.get("maxContains", most)
    if not (isinstance(least, int) and isinstance(limit, int)) or "unevaluatedItems" in schema:
        return
    try:
        other = negated(inner) if limit < most else True
    except CannotSay:
        return
    for name in ("contains", "minContains", "maxContains"):
        schema.pop(name, None)
    if least:
        chosen = [_places(places, inner, True) for places in _choices(most, least)]
        there = [{**option, "minItems": len(option["prefixItems"])} for option in chosen]
        _all(schema, {"anyOf": [_not_of_type("array"), *there]})
    if limit < most:
        free = [_places(places, True, other, most) for places in _choices(most, limit)]
        _all(schema, {"anyOf": [_not_of_type("array"), *free]})


def _choices(most: int, count: int) -> Iterator[tuple[int, ...]]:
    return itertools.combinations(range(most), count)


def _places(
    places: tuple[int, ...], inside: Schema, outside: Schema, length: int | None = None
) -> dict[str, Any]:
    """A list by its first items, by default up to the last of the places."""
    length = places[-1] + 1 if length is None else length
    return {"prefixItems": [inside if i in places else outside for i in range(length)]}


def _unique(schema: dict[str, Any]) -> None:
    """Of few values, each order is an alternative; a list is how one begins."""
    items = schema.get("items")
    if schema.get("uniqueItems") is not True or not isinstance(items, dict):
        return
    values = [items["const"]] if "const" in items else items.get("enum")
    if items.get("type") == "boolean":
        values = [False, True]
    if not isinstance(values, list) or {"prefixItems", "contains"} & schema.keys():
        return
    values = list({json.dumps(value, sort_keys=True): value for value in values}.values())
    if len(values) > MAX_DISTINCT or any(isinstance(value, float) for value in values):
        return
    del schema["uniqueItems"]
    orders = itertools.permutations({"const": value} for value in values)
    lists = [{"prefixItems": list(order), "items": False} for order in orders]
    _all(schema, {"anyOf": [_not_of_type("array"), *lists]})


def _unevaluated(schema: dict[str, Any]) -> None:
    """Where nothing else applies, what is unevaluated is what is additional."""
    applies = _APPLIES & schema.keys()
    for name, plain in (
        ("unevaluatedProperties", "additionalProperties"),
        ("unevaluatedItems", "items"),
    ):
        if not isinstance(schema.get(name), bool | dict):
            continue
        if schema[name] in (True, {}) or (plain in schema and not isinstance(schema[plain], list)):
            del schema[name]
        elif not applies and "contains" not in schema and plain not in schema:
            schema[plain] = schema.pop(name)


def _property_names(schema: dict[str, Any]) -> None:
    """Names that match a pattern, or are listed, are properties; there are no others."""
    rule = schema.get("propertyNames")
    if rule is None:
        return
    if rule is True or (isinstance(rule, dict) and not rule.keys() - _NOTES):
        del schema["propertyNames"]
        return
    if rule is False:
        del schema["propertyNames"]
        _all(schema, {"maxProperties": 0, "additionalProperties": False})
        return
    facts = {key: value for key, value in rule.items() if key not in _NOTES}
    if facts.pop("type", "string") != "string":
        return
    listed = facts.pop("enum", None)
    if "const" in facts:
        listed = [facts.pop("const")]
    if listed is not None and not facts:
        named = {name: True for name in listed if isinstance(name, str)}
        limits: dict[str, Any] = {"properties": named, "additionalProperties": False}
    else:
        least, most = facts.pop("minLength", 0), facts.pop("maxLength", "")
        pattern = facts.pop("pattern", None)
        if facts or (pattern is not None and (least or most != "")) or listed is not None:
            return
        pattern = rf"^[\s\S]{{{least},{most}}}$" if pattern is None else pattern
        limits = {"patternProperties": {pattern: True}, "additionalProperties": False}
    del schema["propertyNames"]
    _all(schema, limits)


def _dependent(schema: dict[str, Any]) -> None:
    """A key that asks for more is absent, or what it asks for is there."""
    wanted = dict(schema.pop("dependencies", {}))
    for name in ("dependentRequired", "dependentSchemas"):
        for key, value in schema.pop(name, {}).items():
            wanted[key] = (
                value if key not in wanted else {"allOf": [_asked(wanted[key]), _asked(value)]}
            )
    for key, value in wanted.items():
        there: Schema = {"required": [key], "allOf": [value]}
        if isinstance(value, list):
            there = {"required": [*value, key]}  # keys come in this order
        _all(schema, {"anyOf": [{"properties": {key: False}}, there, _not_of_type("object")]})


def _asked(value: Any) -> Schema:
    return {"required": value} if isinstance(value, list) else value


def _condition(schema: dict[str, Any]) -> None:
    """`if` holds with `then`, or does not hold, with `else`."""
    if "if" not in schema:
        return
    condition = schema["if"]
    try:
        otherwise = negated(condition)
    except CannotSay:
        return
    del schema["if"]
    first = {"allOf": [condition, schema.pop("then", True)]}
    second = {"allOf": [otherwise, schema.pop("else", True)]}
    _all(schema, {"anyOf": [first, second]})


def _negation(schema: dict[str, Any]) -> None:
    if "not" in schema:
        try:
            opposite = negated(schema["not"])
        except CannotSay:
            return
        del schema["not"]
        _all(schema, opposite)


def _one_of(schema: dict[str, Any]) -> None:
    """One of them holds and no other does."""
    options = schema.get("oneOf")
    if not isinstance(options, list) or len(options) > 8:
        return
    tag = schema.get("discriminator")
    try:
        opposites = [negated(option) for option in options]
    except CannotSay:  # llguidance takes it if it sees that no two can hold
        if isinstance(tag, dict) and "propertyName" in tag:  # OpenAPI: this member tells them apart
            needs = {"required": [tag["propertyName"]]}
            schema["anyOf"] = [{"allOf": [option, needs]} for option in schema.pop("oneOf")]
        return
    del schema["oneOf"]
    alone = []
    for i, option in enumerate(options):
        others = [opposite for j, opposite in enumerate(opposites) if j != i]
        alone.append({"allOf": [option, *others]})
    _all(schema, {"anyOf": alone})


def _calendar(schema: dict[str, Any]) -> None:
    """Dates that there are."""
    if schema.get("format") == "date":
        del schema["format"]
        _all(schema, {"pattern": f"^{_DAYS}$"})


def _close(schema: dict[str, Any]) -> None:
    if "properties" in schema and "patternProperties" not in schema:
        schema.setdefault("additionalProperties", False)
    if "prefixItems" in schema:
        schema.setdefault("items", False)


def _free_order(schema: dict[str, Any]) -> None:
    """Each order of the named keys is an alternative."""
    named = schema.get("properties")
    if not isinstance(named, dict) or len(named) < 2:
        return
    if len(named) > MAX_FREE_KEYS:
        raise ValueError(f"an object of {len(named)} keys in any order; {MAX_FREE_KEYS} at most")
    del schema["properties"]
    orders = [{"properties": dict(order)} for order in itertools.permutations(named.items())]
    extra = {
        name: schema.pop(name)
        for name in (
            "additionalProperties",
            "required",
            "patternProperties",
            "type",
            "minProperties",
            "maxProperties",
        )
        if name in schema
    }
    _all(schema, {"anyOf": [{**extra, **order} for order in orders]})


def _bounds(schema: dict[str, Any]) -> None:
    """Brings bounds nearer of which llguidance, whose numbers have few digits, makes nothing."""
    for sign, names in (
        (-1, ("minimum", "exclusiveMinimum")),
        (1, ("maximum", "exclusiveMaximum")),
    ):
        for name in names:
            if isinstance(value := schema.get(name), int | float) and value * sign > FARTHEST:
                schema[name] = sign * FARTHEST


def _other_keys(schema: dict[str, Any]) -> None:
    """Keys beside the named ones match a pattern: so no escape spells a named one."""
    named, others = schema.get("properties"), schema.get("additionalProperties", True)
    plain = not schema.keys() - _NOTES - {"type", "properties", "required", "additionalProperties"}
    unnamed = set(schema.get("required", [])) - set(named or [])
    if not named or others is False or not plain or unnamed or max(map(len, named)) > LONGEST_KEY:
        return
    schema["patternProperties"] = {f"^{_other_texts(named)}$": others}
    schema["additionalProperties"] = False


_RULES: tuple[Callable[[dict[str, Any]], None], ...] = (
    _trivial,
    _contains,
    _unique,
    _unevaluated,
    _property_names,
    _dependent,
    _condition,
    _negation,
    _one_of,
    _calendar,
)

# Negation


def _not_of_type(*types: str) -> Schema:
    return {"type": [name for name in TYPES if name not in types]}


def negated(schema: Schema) -> Schema:
    """A schema of all values that do not satisfy this one.

    Raises:
        CannotSay: there is none that llguidance takes.
    """
    if isinstance(schema, bool):
        return not schema
    options = []
    for name, value in schema.items():
        if name in _NOTES:
            continue
        rule = _NEGATIONS.get(name)
        if rule is None:
            raise CannotSay(name)
        options.append(rule(value))
    if len(options) == 1:
        return options[0]
    return {"anyOf": options} if options else False


def _not_type(value: Any) -> Schema:
    types = [value] if isinstance(value, str) else list(value)
    if "integer" in types and "number" not in types:
        raise CannotSay("type integer")
    left = [name for name in TYPES if name not in types]
    return {"type": left} if left else False


def _not_const(value: Any) -> Schema:
    if value is None:
        return _not_of_type("null")
    if isinstance(value, bool):
        return {"anyOf": [_not_of_type("boolean"), {"const": not value}]}
    if isinstance(value, int | float):
        sides = [
            {"type": "number", "exclusiveMaximum": value},
            {"type": "number", "exclusiveMinimum": value},
        ]
        return {"anyOf": [_not_of_type("number"), *sides]}
    if isinstance(value, str) and len(value) <= 64:
        other = {"type": "string", "pattern": f"^{_other_texts([value])}$"}
        return {"anyOf": [_not_of_type("string"), other]}
    raise CannotSay("const")


def _other_texts(texts: Iterable[str]) -> str:
    """A regular expression of all texts but these."""
    follow: dict[str, list[str]] = {}
    for text in texts:
        follow.setdefault(text[:1], []).append(text[1:])
    may_end = follow.pop("", None) is None
    inside = "".join("\\" + each if each in r"\]^[-&~" else each for each in follow)
    parts = [rf"[^{inside}][\s\S]*" if inside else r"[\s\S]+"]
    parts += [re.escape(first) + _other_texts(rest) for first, rest in follow.items()]
    return f"(?:{'|'.join(parts)}){'?' if may_end else ''}"


def _not_enum(values: list[Any]) -> Schema:
    return {"allOf": [_not_const(value) for value in values]}


def _not_required(names: list[str]) -> Schema:
    without = [{"type": "object", "properties": {name: False}} for name in names]
    return {"anyOf": without} if without else False


def _not_properties(named: dict[str, Schema]) -> Schema:
    wrong = [
        {"type": "object", "required": [name], "properties": {name: negated(inner)}}
        for name, inner in named.items()
    ]
    return {"anyOf": wrong} if wrong else False


def _limit(kind: str, name: str, step: int) -> Callable[[Any], Schema]:
    def opposite(value: Any) -> Schema:
        if step < 0 and value <= 0:
            return False
        return {"type": kind, name: value + step}

    return opposite


_NEGATIONS: dict[str, Callable[[Any], Schema]] = {
    "type": _not_type,
    "const": _not_const,
    "enum": _not_enum,
    "not": lambda inner: inner,
    "allOf": lambda inner: {"anyOf": [negated(each) for each in inner]},
    "anyOf": lambda inner: {"allOf": [negated(each) for each in inner]},
    "required": _not_required,
    "properties": _not_properties,
    "minimum": _limit("number", "exclusiveMaximum", 0),
    "maximum": _limit("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": _limit("number", "maximum", 0),
    "exclusiveMaximum": _limit("number", "minimum", 0),
    "minLength": _limit("string", "maxLength", -1),
    "maxLength": _limit("string", "minLength", 1),
    "minItems": _limit("array", "maxItems", -1),
    "maxItems": _limit("array", "minItems", 1),
    "minProperties": _limit("object", "maxProperties", -1),
    "maxProperties": _limit("object", "minProperties", 1),
}
