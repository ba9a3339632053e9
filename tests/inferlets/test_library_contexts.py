"""Programs that keep, share and find keys and values."""

from __future__ import annotations

import json
import uuid

import pytest
from support import reference
from support.library import Library

DIFFERENCES = ["880 - 826", "862 - 587", "455 - 367"]


@pytest.mark.nightly
def test_a_tree_of_thought_shares_its_pages_and_solves_more(library: Library) -> None:
    answers = {eval(question): f"What is {question}?" for question in DIFFERENCES}
    begin = "<|begin|><|user|>\n{}<|end|>\n<|assistant|>\n"
    greedy = sum(
        library.complete(begin.format(question), 120).endswith(f"Answer: {right}")
        for right, question in answers.items()
    )
    before = library.forwards()
    found = {
        right: library.run("tree_of_thought", question=question)
        for right, question in answers.items()
    }
    forwards, batches = (b - a for a, b in zip(before, library.forwards(), strict=True))
    solved = sum(tree["answer"] == f"Answer: {right}" for right, tree in found.items())
    assert solved >= greedy + 2
    assert all(tree["pages"] <= 0.7 * tree["alone"] for tree in found.values())
    assert batches < 0.4 * forwards


def test_a_cached_prefix_is_computed_once(library: Library) -> None:
    prefix = f"Rena lives in Swoosuk. Her number is {uuid.uuid4().hex}. "
    options: dict[str, object] = {"prefix": prefix, "max_tokens": 8, "model_name": "test"}
    first = library.run("prefix_caching", prompt="Rena", **options)
    again = library.run("prefix_caching", prompt="Rena", **options)
    other = library.run("prefix_caching", prompt="The", **options)
    assert again["text"] == first["text"]
    assert again["computed"] < 8 < first["computed"]
    assert other["computed"] < 8


LONG = "Rena is a small fox who lives in a village near the hills. " * 8


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("prefix_caching", {"prefix": LONG, "prompt": " She"}),
        ("prefix_tree", {"parts": [LONG, LONG, " She"]}),
        ("modular_caching", {"schema": [LONG], "use": [0], "span": 1000, "prompt": " She"}),
    ],
)
def test_launches_at_once_may_all_compute_what_is_kept(
    library: Library, name: str, options: dict[str, object]
) -> None:
    options = {**options, "max_tokens": 4, "model_name": "test"}
    launched = [library.launch(name, (), **options) for _ in range(3)]
    assert len({json.loads(one.result())["text"] for one in launched}) == 1


def test_a_prefix_tree_finds_the_longest_branch(library: Library) -> None:
    root = f"The number is {uuid.uuid4().hex}. "
    runs = [[root, "A.", " x"], [root, "A.", " y"], [root, "B.", " x"], [root, "A.", " x"]]
    options: dict[str, object] = {"max_tokens": 4, "model_name": "test"}
    found = [library.run("prefix_tree", parts=parts, **options) for parts in runs]
    assert [one["found"] for one in found] == [0, 2, 1, 2]
    assert found[3]["text"] == found[0]["text"]
    assert found[3]["computed"] < found[0]["computed"]


def test_modules_are_computed_once_and_used_in_any_choice(library: Library) -> None:
    schema = ["The quick brown fox", " jumps over", " the lazy dog."]
    options: dict[str, object] = {"schema": schema, "span": 32, "model_name": "test"}
    run = {
        tuple(use): library.run("modular_caching", use=use, prompt=" Once", max_tokens=5, **options)
        for use in ([0, 2], [1, 2], [0, 1, 2])
    }
    for use, found in run.items():
        modules = [library.encode(schema[n]) for n in use]
        prompt = library.encode(" Once")
        positions = [
            n * 32 + i for n, part in zip(use, modules, strict=True) for i in range(len(part))
        ]
        sizes = [len(part) for part in modules]
        starts = [sum(sizes[:i]) for i in range(len(sizes)) for _ in range(sizes[i])]
        tokens = [token for part in modules for token in part]
        for token in [*prompt, *found["tokens"]]:
            if len(tokens) >= sum(sizes) + len(prompt):
                # A module's tokens see their own module alone, later ones see all.
                firsts = [*starts, *[0] * (len(tokens) - len(starts))]
                visible = [[f <= j <= i for j in range(len(tokens))] for i, f in enumerate(firsts)]
                likely = reference.probabilities(library.checkpoint, tokens, positions, visible)
                assert likely[token] >= likely.max() * 0.999
            tokens.append(token)
            positions.append(3 * 32 + len(positions) - sum(sizes))
    lengths = [len(library.encode(text)) for text in [*schema, " Once"]]
    assert [one["computed"] for one in run.values()] == [
        lengths[0] + lengths[2] + lengths[3],
        lengths[1] + lengths[3],
        lengths[3],
    ]
