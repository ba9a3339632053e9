"""JSON schemas as llguidance takes them: what it lacks, said by what it has.

Every rewriting keeps the meaning of the schema. What cannot be said so is left as it is, and
llguidance refuses it by name.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Schema = Any  # a bool, or an object as `json.loads` makes it
MAX_FREE_KEYS = 5  # of an object whose keys may come in any order: each order is an alternative
LONGEST_KEY = 64  # that a pattern leaves out
FARTHEST = 10**18  # of a bound from zero

_OLD_DRAFT = re.compile(r"json-schema\.org/draft-0[3-7]")
_IN_OBJECTS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = {"items", "additionalProperties", "additionalItems", "unevaluatedProperties"}
_SINGLE |= {"unevaluatedItems", "not", "if", "then", "else", "contains", "propertyNames"}
_APPLIES = {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"}
_APPLIES |= {"dependencies", "not"}
_NOTES = {"$schema", "$id", "$comment", "$defs", "definitions", "$anchor", "title", "description"}
_NOTES |= {"default", "examples", "deprecated", "readOnly", "writeOnly", "x-guidance"}

_DAYS = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)


def rewritten(schema: Schema, strict: bool = False, free_order: bool = False) -> Schema:
    """A schema of the same meaning, without what llguidance does not know, as far as possible.

    If `strict`, objects and lists have nothing but what is named, where the schema does not say. If
    `free_order`, the members of objects may come in any order.

    Raises:
        ValueError: an object whose keys may come in any order has too many of them.
    """
    old = isinstance(schema, dict) and bool(_OLD_DRAFT.search(str(schema.get("$schema", ""))))
    found = _rewrite(schema, _Rules(old, strict, free_order, _RULES))
    # Of patterns of keys llguidance makes no intersections.
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
    found = {name: _within(name, value, rules) for name, value in schema.items()}
    for rule in rules.steps:
        rule(found)
    if rules.strict:
        _close(found)
    if rules.free_order:
        _free_order(found)
    return found


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


def _trivial(schema: dict[str, Any]) -> None:
    """Leaves out what says nothing."""
    if schema.get("uniqueItems") is False or schema.get("maxItems") in (0, 1):
        schema.pop("uniqueItems", None)
    if schema.keys() & {"unevaluatedProperties", "unevaluatedItems"}:
        return  # what they hold for depends on the rest
    if "contains" not in schema:
        for name in ("minContains", "maxContains"):
            schema.pop(name, None)
    for name in ("then", "else"):
        if "if" not in schema:
            schema.pop(name, None)
    if "then" not in schema and "else" not in schema:
        schema.pop("if", None)


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


_RULES = (_trivial, _unevaluated, _property_names, _calendar)
