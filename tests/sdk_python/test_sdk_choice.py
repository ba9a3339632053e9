"""Rules of a program's own, and JSON that is read whole."""

# ruff: noqa: E501 - programs in strings

from __future__ import annotations

from typing import Any

import pytest
from support.sdk_rig import FAILS as HEAD
from support.sdk_rig import Rig


def run(rig: Rig, body: str, head: str = "") -> Any:
    return rig.answer(HEAD + head, body)


NO_TWICE = """
class NoTwice:
    def __init__(self): self.seen = set()
    def __call__(self, tokens, probabilities):
        token = next(t for t in tokens if t not in self.seen)
        self.seen.add(token)
        return token
"""


def test_a_function_or_an_object_with_a_state_chooses(rig: Rig) -> None:
    body = """
new = lambda: Context(model).fill("ab")
sizes = []
def second(tokens, probabilities):
    sizes.append([len(tokens), probabilities == sorted(probabilities, reverse=True)])
    return tokens[1]
first = await new().generate(max_tokens=12).collect_tokens()
tokens = await new().generate(choose=second, max_tokens=6).collect_tokens()
stepped = [t async for s in new().generate(choose=second, max_tokens=6) for t in (await s.execute()).tokens]
streamed = [t async for t in new().generate(choose=second, max_tokens=6).stream_tokens()]
text = await new().generate(choose=second, max_tokens=6).collect_text()
looked = await new().distribution(2)
many = await new().generate(choose=NoTwice(), max_tokens=12, stop=[]).collect_tokens()
return [tokens == stepped == streamed, text == model.tokenizer.decode(tokens), tokens[0] == looked.tokens[1], tokens[0] != first[0], len(many) - len(set(many)), sizes[0]]
"""
    same, text, second, other, twice, size = run(rig, body, NO_TWICE)
    assert (same, text, second, other, twice, size[1]) == (True, True, True, True, 0, True)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("choose=lambda tokens, _: None", "`choose` returned None: it must return a token's id"),
        ("choose=lambda tokens, _: -1", "`choose` returned -1: it must return a token's id"),
        ("choose=lambda tokens, _: 2**32", "`choose` returned 4294967296: it must return"),
        ("choose=min, grammar=Grammar.json()", "within a grammar the server chooses"),
        ("Sampler.top_p(), choose=min", "takes the place of a sampler"),
        ("choose=min, seed=3", "takes the place of a sampler"),
        ("choose=min, beside=[Context(model)]", "`beside` is for a device program: leave one out"),
    ],
)
def test_wrong_rules_are_refused(rig: Rig, call: str, problem: str) -> None:
    body = f"""
return [await fails(lambda: Context(model).fill("ab").generate({call}, max_tokens=3).collect_text())]
"""
    assert problem in run(rig, body)[0]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("'top_p'", "sampler='top_p': a `Sampler(...)`, or a device program that was called is"),
        ("samplers.mirostat", "a device program that was called is wanted"),
        ("grammar='[a-z]+'", "grammar='[a-z]+': a grammar, such as `Grammar.regex(text)` is"),
        ("seed='a'", "seed='a': a whole number is wanted"),
        ("stop=3", "stop=3: a list of token ids and strings, or one string is wanted"),
        ("max_tokens='3'", "max_tokens='3': a whole number is wanted"),
        ("speculate='3'", "speculate='3': a whole number is wanted"),
        ("attend='quest'", "attend='quest': what a program of `inferlet.attention`"),
        ("layers='steer'", "layers='steer': what a program of `inferlet.layers`"),
        ("Sampler(seed='a')", "seed: Input should be a valid integer"),
        ("stop=[-1]", "stop: -1 is outside the vocabulary (0 to"),
        ("stop=[10**7]", "stop: 10000000 is outside the vocabulary (0 to"),
    ],
)
def test_arguments_of_other_types_are_named(rig: Rig, call: str, problem: str) -> None:
    body = f"""
from inferlet import samplers
return [await fails(lambda: Context(model).fill("ab").generate({call}).collect_text())]
"""
    assert problem in run(rig, body)[0]


def test_json_is_read_or_refused_where_it_is_cut(rig: Rig) -> None:
    body = """
schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}, "s": {"enum": ["a"]}}, "required": ["n", "s"]}
new = lambda **options: Context(model).fill("ab").generate(Sampler.top_p(1, 1, seed=1), **options)
begun = new(max_tokens=30)
async for token in begun.stream_tokens(): break
return [
    await new(max_tokens=60).collect_json(schema),
    await new(max_tokens=60, grammar=Grammar.json_schema(schema, strict=True)).collect_json(),
    await new(grammar=Grammar.json_schema(schema, strict=True)).collect_text(),
    await fails(lambda: new(max_tokens=5).collect_json(schema)),
    await fails(lambda: new(grammar=Grammar.json()).collect_json(schema)),
    await fails(lambda: begun.collect_json(schema)),
]
"""
    value, own, text, cut, two, begun = run(rig, body)
    assert value in ({"n": 1, "s": "a"}, {"n": 2, "s": "a"})
    assert own == value
    assert text in ('{"n": 1, "s": "a"}', '{"n": 2, "s": "a"}')
    assert "was cut off after 5 tokens" in cut
    assert "give `max_tokens` more than 5" in cut
    assert "without a schema" in two
    assert "has begun" in begun
