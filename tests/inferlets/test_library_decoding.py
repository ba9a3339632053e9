"""Programs that choose tokens: what they choose is what the papers say, by `transformers`."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from support import reference
from support.library import Library
from transformers import AutoTokenizer

from inferlet import watermark

STORY = "Once upon a time there was a small fox called Rena. She"


def test_beam_search_finds_what_transformers_finds(library: Library) -> None:
    width, length = 4, 10
    found = library.run(
        "beam_search", prompt="The quick", width=width, max_tokens=length, model_name="test"
    )
    tokens = library.encode("The quick")
    with torch.inference_mode():
        wanted = reference.load(library.checkpoint).generate(
            torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=length,
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
    texts = wanted.sequences[:, len(tokens) :].tolist()
    assert [beam["tokens"] for beam in found] == texts
    assert [beam["score"] for beam in found] == pytest.approx(
        wanted.sequences_scores.tolist(), abs=1e-4
    )


def in_grammar(library: Library, prompt: str, texts: list[str]) -> tuple[dict[str, float], float]:
    """The chances of some texts among one another, by `transformers`, over all of their tokens; and
    that of any of them.
    """
    tokenizer = AutoTokenizer.from_pretrained(library.checkpoint)
    pieces = {i: tokenizer.decode([i]) for i in range(len(tokenizer))}
    stop = reference.load(library.checkpoint).config.eos_token_id
    found = dict.fromkeys(texts, 0.0)

    def follow(tokens: list[int], text: str, chance: float) -> None:
        likely = reference.probabilities(library.checkpoint, tokens).tolist()
        if text in found:
            found[text] += chance * likely[stop]
        for token, piece in pieces.items():
            longer = text + piece
            if piece and any(one.startswith(longer) for one in texts):
                follow([*tokens, token], longer, chance * likely[token])

    follow(library.encode(prompt), "", 1.0)
    whole = sum(found.values())
    return {text: chance / whole for text, chance in found.items()}, whole


def test_aligned_texts_are_as_likely_as_among_all_of_the_grammar(library: Library) -> None:
    texts = ["0000", *(f"1{i:03b}" for i in range(8))]
    prompt, count = "The quick", 2400
    wanted, share = in_grammar(library, prompt, texts)

    def distance(*flags: str) -> tuple[float, float]:
        options = {"prompt": prompt, "samples": count, "model_name": "test"}
        found = json.loads(library.launch("grammar_aligned_decoding", flags, **options).result())
        newest = found["texts"][count // 4 :]
        away = sum(abs(newest.count(text) / len(newest) - wanted[text]) for text in texts) / 2
        return away, found["share"]

    away, learned = distance()
    assert away < 0.05
    assert learned == pytest.approx(share, rel=1e-3)
    plain, unlearned = distance("--masked")
    assert plain > 0.2
    assert unlearned > 2 * share


def test_texts_that_do_not_end_are_no_texts_of_a_grammar(library: Library) -> None:
    options = {"ebnf": 'start: "0" | "1" start', "max_tokens": 3, "samples": 40}
    found = library.run("grammar_aligned_decoding", model_name="test", **options)
    assert set(found["texts"]) == {"0", "10"}


def test_a_text_of_no_tokens_is_empty(library: Library) -> None:
    beams = library.run("beam_search", max_tokens=0)
    assert beams == [{"text": "", "tokens": [], "score": 0}]
    marked = json.loads(library.launch("watermarking", ["--quality"], max_tokens=0).result())
    assert marked == {"text": "", "tokens": [], "z": None, "mean_logprob": None}


@pytest.mark.parametrize(
    ("name", "prompt", "tokens", "most"),
    [
        ("jacobi_decoding", "aaaaaaaaaaaaaaaaaaa", 48, 0.5),
        ("speculative_decoding", "abcabcabcabcabc", 64, 0.7),
    ],
)
def test_guesses_pay_where_text_is_repeated(
    library: Library, name: str, prompt: str, tokens: int, most: float
) -> None:
    text = library.complete(prompt, tokens)  # its prefix is cached from here on
    before = library.forwards()[1]
    found = library.run(name, prompt=prompt)
    assert library.forwards()[1] - before < most * len(found["tokens"])
    assert found["text"] == text


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_jacobi_decoding_changes_no_text(library: Library, temperature: float) -> None:
    found = library.run("jacobi_decoding", prompt=STORY, max_tokens=40, temperature=temperature)
    completion = library.launch(
        "text_completion", prompt=STORY, max_tokens=40, temperature=temperature, seed=1
    )
    plain = "".join(map(str, completion))
    assert plain  # it may end before
    assert found["text"].startswith(plain)


def test_jacobi_decoding_ends_where_the_context_does(library: Library) -> None:
    options: dict[str, object] = {"prompt": STORY, "max_tokens": 999, "model_name": "small"}
    found = library.run("jacobi_decoding", **options)
    assert found["tokens"] == library.run("attention_sink", window=99, **options)["tokens"]


def test_a_small_model_drafts(library: Library) -> None:
    text = library.complete(STORY, 40)  # its prefix is cached from here on
    before = library.forwards()[1]
    found = library.run(
        "speculative_decoding", prompt=STORY, max_tokens=40, drafter="pie-tiny-draft"
    )
    assert found["text"] == text
    assert library.forwards()[1] - before < 0.6 * len(found["tokens"])


def test_prompt_lookup_changes_no_text(library: Library) -> None:
    found = library.run("speculative_decoding", prompt=STORY, max_tokens=40)
    assert found["text"] == library.complete(STORY, 40)


@pytest.mark.nightly
def test_watermark_is_detected(library: Library) -> None:
    def run(delta: float) -> Any:
        options = ["--prompt", "The quick", "--max-tokens", "300", "--model-name", "test"]
        more = ["--delta", str(delta), "--quality"]
        return json.loads(library.launch("watermarking", [*options, *more]).result())

    marked, plain = run(4), run(0)
    tokens = marked["tokens"]
    assert watermark.z_score(tokens, key=15485863) == pytest.approx(marked["z"], abs=0.3)
    assert watermark.z_score(tokens[:80], key=15485863) > 4
    assert abs(watermark.z_score(tokens, key=15485864)) < 3
    assert abs(plain["z"]) < 2
    # What it costs: 0.04 nats per token, of 4.7 that the random model's texts have.
    assert marked["mean_logprob"] > plain["mean_logprob"] - 0.2


def test_best_of_n_ranks_by_likelihood(library: Library) -> None:
    found = library.run("best_of_n", answers=4, max_tokens=8, seed=3)
    scores = [answer["score"] for answer in found]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > scores[-1]


def test_self_consistency_outvotes_the_greedy_error(library: Library) -> None:
    question = "What is 880 - 826?"
    begin = f"<|begin|><|user|>\n{question}<|end|>\n<|assistant|>\n"
    assert "Answer: 54" not in library.complete(begin, 120)
    assert library.run("self_consistency", question=question, votes=6)["answer"] == "54"


def test_tree_search_finds_likelier_texts_than_greedy_decoding(library: Library) -> None:
    found = library.run("monte_carlo_tree_search", simulations=12, length=8)
    assert found["value"] > found["greedy"]
    assert found["visits"] == 12
    assert not math.isnan(found["value"])
