"""Programs that change what tokens attend to: the same tokens as under an explicit mask."""

from __future__ import annotations

import json

import pytest
from support import reference
from support.library import SMALL_CONTEXT, Library

from pie_py.client.errors import InferletFailed

PAGE = 16


def is_greedy(
    library: Library, tokens: list[int], first: int, visible: list[list[bool]] | None
) -> bool:
    """Whether tokens from `first` on are the likeliest ones, where each sees what `visible` says.

    Without it each sees all before.
    """
    for end in range(first, len(tokens)):
        rows = visible and [row[:end] for row in visible[:end]]
        likely = reference.probabilities(library.checkpoint, tokens[:end], list(range(end)), rows)
        if likely[tokens[end]] < likely.max() * (1 - 1e-3):
            return False
    return True


def test_attention_sinks_over_four_times_the_models_context(library: Library) -> None:
    """Keys of a single layer depend on token and position alone, so that kept tokens, at the
    positions that they have got, are the text that is left.
    """
    prompt, window, length = "The quick brown fox jumps over the lazy dog.", 2, 4 * SMALL_CONTEXT
    found = library.run(
        "attention_sink", prompt=prompt, window=window, max_tokens=length, model_name="small"
    )
    kept = library.encode(prompt)
    run = 0  # of these, in pages; the last one of a stretch is not
    for i, token in enumerate(found["tokens"]):
        if i and len(kept) % PAGE == 0:
            run = len(kept) - 1
            while run > (1 + window) * PAGE:
                del kept[PAGE : 2 * PAGE]
                run -= PAGE
        if i >= length - 50:
            likely = reference.probabilities(library.small, kept)
            assert likely[token] >= likely.max() * (1 - 1e-3)
        kept.append(token)
    assert len(found["tokens"]) == length
    assert found["pages"] <= 1 + window + 1
    assert found["positions"] <= (1 + window + 1) * PAGE


def test_attention_sinks_end_where_the_context_does_if_the_window_is_larger(
    library: Library,
) -> None:
    found = library.run("attention_sink", window=99, max_tokens=200, model_name="small")
    assert found["positions"] == SMALL_CONTEXT
    assert len(found["tokens"]) == SMALL_CONTEXT - len(library.encode("Once upon a time"))


def test_attention_sinks_without_a_window_keep_the_page_that_is_written_to(
    library: Library,
) -> None:
    options: dict[str, object] = {"max_tokens": 3 * PAGE, "model_name": "small"}
    none, one = (library.run("attention_sink", window=n, **options) for n in (0, 1))
    assert none == one


def test_windowed_attention(library: Library) -> None:
    prompt, window = "The quick brown fox jumps over the lazy dog.", 20
    found = library.run(
        "windowed_attention",
        prompt=prompt,
        window=window,
        max_tokens=10 * window,
        model_name="test",
    )
    before = library.encode(prompt)
    tokens = [*before, *found["tokens"]]
    visible = [[i - window < j <= i for j in range(len(tokens))] for i in range(len(tokens))]
    assert is_greedy(library, tokens, len(tokens) - 40, visible)
    assert not is_greedy(library, tokens, len(tokens) - 40, None)
    assert found["pages"] <= -(-window // PAGE) + 1


def test_windowed_attention_starts_and_ends_as_other_texts_do(library: Library) -> None:
    for prompt in ("The capital of France is", ""):  # behind the model's first token
        found = library.run("windowed_attention", prompt=prompt, window=99, max_tokens=8)
        assert found["text"] == library.complete(prompt, 8)
    with pytest.raises(InferletFailed, match="nothing to continue: give a `--prompt`"):
        library.run("windowed_attention", prompt="", model_name="test")
    found = library.run("windowed_attention", max_tokens=2 * SMALL_CONTEXT, model_name="small")
    assert len(found["tokens"]) == SMALL_CONTEXT - len(library.encode("Once upon a time")) + 1


def test_hierarchical_attention(library: Library) -> None:
    parts = ["The quick brown fox jumps.", "The capital of France is Paris.", "Once upon a time."]
    keep = 3
    found = library.run(
        "hierarchical_attention",
        parts=parts,
        prompt="There was",
        keep=keep,
        max_tokens=10,
        model_name="test",
    )
    tokens: list[int] = []
    visible: list[list[bool]] = []
    stand: list[int] = []  # tokens that stand for the parts before
    for part in parts:
        new = library.encode(part)
        places = range(len(tokens), len(tokens) + len(new))
        visible += [[j in stand or places[0] <= j <= i for j in range(400)] for i in places]
        stand += places[-keep:]
        tokens += new
    answer = [*library.encode("There was"), *found["tokens"]]
    start = len(tokens)
    for i in range(start, start + len(answer)):
        visible.append([j in stand or start <= j <= i for j in range(400)])
    tokens += answer
    assert found["left"] == keep * len(parts)
    assert is_greedy(library, tokens, len(tokens) - len(found["tokens"]), visible)
    assert not is_greedy(library, tokens, len(tokens) - len(found["tokens"]), None)


FACTS = (
    "Kurt lives in Swoosuk. Cradatrest is a friend of Alma. Cradatrest is 84 years old. Cradatrest"
    " likes the colour orange. Cradatrest owns the white apple. Alma has a pet hen. Alma likes the"
    " colour pink."
)


def test_eviction_by_attention_keeps_what_the_answer_needs(library: Library) -> None:
    prompt = f"<|begin|><|user|>\n{FACTS}\n\nWhere does Kurt live?<|end|>\n<|assistant|>\n"
    found = {
        policy: library.run("kv_eviction", prompt=prompt, budget=64, policy=policy, max_tokens=16)
        for policy in ("attention", "recent")
    }
    assert found["attention"]["prompt"] > 75
    assert "Swoosuk" in found["attention"]["text"]
    assert "Swoosuk" not in found["recent"]["text"]
    assert max(one["most"] for one in found.values()) <= 64 + 32


def test_eviction_leaves_the_observed_tokens(library: Library) -> None:
    found = library.run("kv_eviction", prompt="Once upon", budget=2, observed=8, max_tokens=4)
    assert found["prompt"] < 8
    assert found["text"] == library.complete("Once upon", 4)


@pytest.mark.parametrize("seed", range(3))
def test_what_a_grammar_lets_through_is_valid(library: Library, seed: int) -> None:
    text = library.launch("ebnf_decoding", (), prompt="Once", temperature=1.5, seed=seed)
    person = json.loads("".join(map(str, text)))
    assert set(person) == {"name", "age"}
    assert person["age"] <= 99
    ebnf = 'start: "(" start ")" | "x"'
    nested = library.launch("ebnf_decoding", (), ebnf=ebnf, temperature=1, seed=seed, max_tokens=99)
    inner = "".join(map(str, nested))
    assert inner == "(" * (len(inner) // 2) + "x" + ")" * (len(inner) // 2)


def test_answers_are_validated_by_their_probabilities(library: Library) -> None:
    options = [" fox jumps", " dog", " time there was"]
    found = library.run(
        "output_validation", prompt="The quick", options=options, threshold=0, model_name="test"
    )
    before = library.encode("The quick")
    for option, total in zip(options, found["logs"], strict=True):
        tokens, wanted = before[:], 0.0
        for token in library.encode(option):
            wanted += reference.probabilities(library.checkpoint, tokens)[token].log().item()
            tokens.append(token)
        assert total == pytest.approx(wanted, abs=1e-3)
    sure = library.run("output_validation", options=[" black.", " white.", " red."])
    assert sure["answer"] == " black."
    unsure = library.run(
        "output_validation", prompt="Her name is", options=[" Rena", " Anna"], threshold=1
    )
    assert unsure["answer"] is None
