"""The evaluation: test sets hold what they say, figures count what they say, a whole run gives a
table.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
import torch
from click.testing import CliRunner
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from examples.pie_tiny.call_episodes import Asynchronous
from examples.pie_tiny.corpus.sample import Split
from examples.pie_tiny.corpus.tasks import Request
from examples.pie_tiny.episodes import Plain
from examples.pie_tiny.evaluate import main
from examples.pie_tiny.held_out import CALL_SETS, PLAIN_SETS, SampleSet, episode
from examples.pie_tiny.scoring import (
    Figure,
    calls_figures,
    plain_figures,
)
from examples.pie_tiny.tests.oracles import Executor, byte_tokenizer, once, recite, vocabulary

held_out = Split(held_out=True)


def asynchronous(count: int, wrong: int) -> list[Asynchronous]:
    """Episodes played right, but for the first few, which call functions that do not exist."""
    episodes = []
    for number, sample in enumerate(SampleSet("asynchronous").draw(count, held_out)):
        request, known = sample.answer["request"], sample.answer["known"]
        assert isinstance(request, Request)
        assert isinstance(known, int)
        change = once("(", "x(") if number < wrong else str
        one = Asynchronous(vocabulary(), sample, Random(number))
        Executor(request, known, change=change).play(one)
        episodes.append(one)
    return episodes


def untrained() -> LlamaForCausalLM:
    """The smallest model that speaks the byte tokenizer's language."""
    torch.manual_seed(1)
    configuration = LlamaConfig(
        vocab_size=byte_tokenizer().get_vocab_size(),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        pad_token_id=None,
    )
    return LlamaForCausalLM(configuration)


def by_name(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


def test_figures_of_calls() -> None:
    figures = by_name(calls_figures("asynchronous", asynchronous(20, 5)))
    assert figures["valid CML"].value == 100
    assert figures["all calls right"].value == 75
    assert figures["all calls right"].count == 20
    calls = figures["calls right"]
    assert calls.value is not None
    assert 75 < calls.value < 100
    assert figures["traps unneeded"].value == 0
    assert figures["trap missing"].value == 0


@pytest.mark.parametrize("split", [Split(), held_out])
def test_recited_samples_are_all_right(split: Split) -> None:
    played: dict[str, list[Plain]] = {}
    for name, test_set in PLAIN_SETS.items():
        played[name] = [episode(vocabulary(), sample, 0) for sample in test_set.draw(5, split)]
        for one in played[name]:
            recite(one)
    assert {figure.value for figure in plain_figures(played)} == {100}


def test_test_sets_hold_what_they_say() -> None:
    for operator, name in (("+", "sum"), ("-", "difference"), ("*", "product")):
        for sample in PLAIN_SETS[f"{name} of two 2-digit numbers"].draw(5, held_out):
            assert sample.answer["operator"] == operator
            assert [len(str(operand)) for operand in sample.answer["operands"]] == [2, 2]  # type: ignore[attr-defined]
    for form in ("sequential", "parallel", "asynchronous"):
        for sample in CALL_SETS[f"{form}, large"].draw(9, held_out):
            request = sample.answer["request"]
            assert isinstance(request, Request)
            assert len(request.chains) == 3
            assert 6 <= sum(map(len, request.chains)) <= 15
    for sample in CALL_SETS["asynchronous, user interrupts"].draw(9, held_out):
        assert "[INTR]user[HEAD]" in sample.text


def test_whole_evaluation_of_an_untrained_model(tmp_path: Path) -> None:
    tokenizer: Tokenizer = byte_tokenizer()
    untrained().save_pretrained(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    file = tmp_path / "figures.json"
    threads = torch.get_num_threads()
    arguments = [str(tmp_path), "--samples", "1", "--device", "cpu", "--json", str(file)]
    result = CliRunner().invoke(main, arguments)
    torch.set_num_threads(threads)
    assert result.exit_code == 0, result.output
    assert "all calls right" in result.output
    written = json.loads(file.read_text())
    assert set(written["figures"]) == {"held-out names", "training names"}
    for figures in written["figures"].values():
        sections = {figure["section"] for figure in figures}
        assert {
            *CALL_SETS,
            "arithmetic",
            "json",
            "strings",
            "qa",
            "react",
        } <= sections
