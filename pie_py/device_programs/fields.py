"""The fields of a sampler: parameters as data, which `rules/programs.py` gives their meaning.

A field that is declared here and has a line there is in the SDKs' `Sampler` (`python -m
codegen`), in the contract, and in the HTTP API under its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pie_py.device_programs.program import ProgramFault

_SORTED = 256  # of top-k: beyond this all tokens are sorted
_MOST_TOKEN = 2**32 - 1
_TOKEN_DIGITS = 10  # of it: Python reads no number of thousands of digits
_MOST_BIAS = 1e4


class Field(NamedTuple):
    """A field.

    Attributes:
        kind: `float`, `int`, `tokens` (a list), `sequences` (lists of tokens), or `biases` (numbers
            by token, None for minus infinity).
        default: with which it does nothing.
        doc: a sentence.
        least, most: its range, which ends far from where float32 loses its grip.
        of: another field, whose step reads this one.
    """

    kind: str
    default: Any
    doc: str
    least: float = 0
    most: float = 1
    of: str = ""


# In the order of their steps, that of `transformers`.
FIELDS: dict[str, Field] = {
    "logit_bias": Field("biases", {}, "Token ids to what is added to their logits; None rules a"
                        " token out."),
    "allowed_tokens": Field("tokens", None, "Token ids; all others are ruled out."),
    "repetition_penalty": Field("float", 1.0, "Of tokens given and generated, a logit above 0 is"
                                " divided by it, one below multiplied.", 1e-9, 1e4),
    "presence_penalty": Field("float", 0.0, "Taken off tokens generated, once.", -1e4, 1e4),
    "frequency_penalty": Field("float", 0.0, "Taken off tokens generated, each time.", -1e4, 1e4),
    "no_repeat_ngram_size": Field("int", 0, "No sequence of so many tokens comes twice.", 0, 64),
    "banned_sequences": Field("sequences", [], "Lists of token ids that do not come as a whole."),
    "min_tokens": Field("int", 0, "So many tokens are chosen before `end_tokens`.", 0, 2**24),
    "end_tokens": Field("tokens", [], "Token ids that end the text.", of="min_tokens"),
    "dry_multiplier": Field("float", 0.0, "`multiplier * base ** (n - allowed_length)` is taken off"
                            " a token that goes on with a repetition of n tokens, 64 at most, among"
                            " the newest 1 024.", 0, 1e4),
    "dry_base": Field("float", 1.75, "The base of this power.", 1, 100, "dry_multiplier"),
    "dry_allowed_length": Field("int", 2, "Tokens that may be repeated.", 0, 64, "dry_multiplier"),
    "dry_sequence_breakers": Field("tokens", [], "Token ids at which a repetition ends.",
                                   of="dry_multiplier"),
    "temperature": Field("float", 1.0, "Divides the logits; 0 takes the most likely token of what"
                         " is left, and ends the steps.", 0, 1e4),
    "top_k": Field("int", 0, "So many of the most likely tokens; 0 is all.", 0, 2**31 - 1),
    "top_p": Field("float", 1.0, "The fewest likely tokens that reach this mass."),
    "min_p": Field("float", 0.0, "Share of the most likely token's probability that a token"
                   " needs."),
    "top_n_sigma": Field("float", 0.0, "Tokens whose logit is within so many standard deviations of"
                         " the largest.", 0, 100),
    "typical_p": Field("float", 1.0, "Mass of the tokens whose surprise is nearest to the"
                       " expected.", 1e-6),
    "epsilon_cutoff": Field("float", 0.0, "Probability that a token needs."),
    "eta_cutoff": Field("float", 0.0, "The same, lower where the model is unsure."),
    "xtc_probability": Field("float", 0.0, "How often XTC rules out all likely tokens but the least"
                             " likely of them."),
    "xtc_threshold": Field("float", 0.1, "Probability from which on a token is likely to XTC.",
                           of="xtc_probability"),
}  # fmt: skip
# Beside the steps, of device programs as well.
MORE: dict[str, Field] = {
    "logprobs": Field("int", 0, "Number of most likely tokens that each step reports as well."),
    "seed": Field("int", None, "Same seed (modulo 2^64), same tokens; without one the server draws"
                  " it."),
}  # fmt: skip
# Fields whose programs workers have compiled, see `compiled.py`: a request with other top-k has the
# same program.
COMPILED = frozenset({"temperature", "top_k", "top_p", "min_p"})
_NOT_AFTER_GREEDY = frozenset(list(FIELDS)[list(FIELDS).index("temperature") :])


class Rule(NamedTuple):
    """Fields as the rule `sampler` reads them: its constants, and values by name."""

    constants: dict[str, Any]
    given: dict[str, Any]


def checked_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields whose values do something, in the order of their steps; None is the default.

    Raises:
        ProgramFault: there is no such field, or a value is of another type or outside its range.
    """
    if unknown := sorted(given.keys() - FIELDS.keys()):
        raise ProgramFault(f"there is no field {unknown[0]!r}; there are {', '.join(FIELDS)}")
    found = {}
    for name, field in FIELDS.items():
        value = given.get(name)
        if value is None or (value == field.default and type(value) is not bool):
            continue
        _CHECKS[field.kind](name, field, value)
        found[name] = value
    return found


def highest_tokens(fields: Mapping[str, Any]) -> dict[str, int]:
    """The highest token id of each field that has any, of what `checked_fields` gives."""
    found = {}
    for name, value in fields.items():
        match FIELDS[name].kind:
            case "tokens":
                found[name] = max(value)
            case "biases":
                found[name] = max(map(int, value))
            case "sequences":
                found[name] = max(map(max, value))
    return found


def rule_of(fields: Mapping[str, Any]) -> Rule:
    """The rule of fields that `checked_fields` gives."""
    greedy = fields.get("temperature") == 0
    steps = {
        name: value
        for name, value in fields.items()
        if not FIELDS[name].of
        and not (greedy and name in _NOT_AFTER_GREEDY)
        and (name != "min_tokens" or "end_tokens" in fields)
    }
    for name, field in FIELDS.items():
        if field.of in steps and (value := fields.get(name, field.default)) != []:
            steps[name] = value
    constants: dict[str, Any] = {"fields": list(steps), "greedy": greedy}
    given: dict[str, Any] = {}
    for name, value in steps.items():
        given |= _given(name, value)
    if steps.keys() <= COMPILED:
        return Rule(constants, given)
    for name in ("no_repeat_ngram_size", "top_k"):
        if (size := given.get(name, _SORTED + 1)) <= _SORTED:
            constants[f"{name}_of"] = size
            del given[name]
    return Rule(constants, given)


def _given(name: str, value: Any) -> dict[str, Any]:
    match FIELDS[name].kind:
        case "float":
            return {name: float(value)}
        case "biases":
            biases = [None if one is None else float(one) for one in value.values()]
            return {name: [int(token) for token in value], "logit_biases": biases}
        case "sequences":
            size = max(map(len, value))
            return {name: [[-1] * (size - len(one)) + list(one) for one in value]}
    return {name: value}


def _check_number(name: str, field: Field, value: Any) -> None:
    fits = isinstance(value, int if field.kind == "int" else int | float)
    if not fits or isinstance(value, bool) or not field.least <= value <= field.most:
        what = "a whole number" if field.kind == "int" else "a number"
        raise ProgramFault(
            f"{name} is {value!r:.40}; it is {what}, {field.least:g} to {field.most:g}"
        )


def _check_tokens(name: str, field: Field, value: Any) -> None:
    if not isinstance(value, list) or not all(map(_is_token, value)):
        raise ProgramFault(f"{name} is {value!r:.40}; it is a list of token ids")
    if not value:
        raise ProgramFault(f"{name} is empty: it would rule out every token")


def _check_sequences(name: str, field: Field, value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(one, list) and one for one in value):
        raise ProgramFault(f"{name} is {value!r:.40}; it is a list of lists of token ids")
    for one in value:
        _check_tokens(name, field, one)


def _check_biases(name: str, field: Field, value: Any) -> None:
    if not isinstance(value, dict):
        raise ProgramFault(f"{name} is {value!r:.40}; it is an object of numbers by token id")
    for token, bias in value.items():
        text = str(token)
        if len(text) > _TOKEN_DIGITS or not (text.isdecimal() and _is_token(int(text))):
            raise ProgramFault(f"{name}: {token!r:.40} is no token id")
        number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if bias is not None and not (number and (abs(bias) <= _MOST_BIAS or bias == -math.inf)):
            raise ProgramFault(
                f"{name} of token {token} is {bias!r:.40}; it is -10000 to 10000, or null"
            )


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKEN


_CHECKS: dict[str, Callable[[str, Field, Any], None]] = {
    "float": _check_number,
    "int": _check_number,
    "tokens": _check_tokens,
    "sequences": _check_sequences,
    "biases": _check_biases,
}
