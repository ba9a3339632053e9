"""An adapter that teaches a model CML: what it is trained on, by what, and how it is served."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch
from click.testing import CliRunner
from support.checkpoints import make_llama, small_tokenizer
from support.scripts import results, run, script, simulated
from tokenizers import Tokenizer

from examples.cml_lora.lora import divergence, load_model, with_new_adapter
from examples.cml_lora.tasks import draw_sample, encode_sample
from examples.cml_lora.train import main
from examples.pie_tiny.corpus.sample import Sample, Split
from examples.pie_tiny.corpus.tasks import Request
from pie_py.client.functions import Mode
from pie_py.client.sync import Client

ROOT = Path(__file__).parents[2]
PLAIN = ("--model", "plain")


def tokenizer() -> Tokenizer:
    made = small_tokenizer()
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    encoder: Tokenizer = made.backend_tokenizer
    return encoder


def drawn(count: int, *, asynchronous: bool, held_out: bool = False) -> list[Sample]:
    split = Split(held_out=held_out)
    return [draw_sample(Random(n), split, asynchronous=asynchronous) for n in range(count)]


def names(samples: list[Sample]) -> set[str]:
    requests = [sample.request for sample in samples]
    assert all(isinstance(request, Request) for request in requests)
    return {function.name for request in requests for function in request.functions}  # type: ignore[attr-defined]


def test_functions_of_the_evaluation_are_in_no_training_sample() -> None:
    trained = names(drawn(300, asynchronous=True) + drawn(300, asynchronous=False))
    assert not trained & names(drawn(300, asynchronous=True, held_out=True))


def test_training_shows_all_that_programs_meet() -> None:
    texts = [sample.text for sample in drawn(300, asynchronous=True)]
    for part in ("[INTR]user[HEAD]also ", "[INTR]agent[HEAD]", "error: ", "[TRAP]", "Zürich"):
        assert any(part in text for text in texts), part
    assert any("no answer needed" in text for text in texts)
    assert any(text.count("\n- ") == 1 for text in texts)  # a list of one task


def test_the_model_learns_its_own_words_alone() -> None:
    encoder = tokenizer()
    for sample in drawn(50, asynchronous=True):
        ids, learned = encode_sample(encoder, sample)
        own = [token for token, is_own in zip(ids, learned, strict=True) if is_own]
        text = encoder.decode(own, skip_special_tokens=False)
        assert "[INTR]" not in text
        assert text.startswith("[CALL]")
        assert text.endswith("<|im_end|>")


def test_how_far_an_adapter_moves_a_model(tmp_path: Path) -> None:
    adapted = with_new_adapter(load_model(make_llama(tmp_path / "model")), 4)
    rows = [[3, 4, 5, 6], [7, 8, 9]]
    learned = [[False, True, True, True], [False, False, True]]
    moved, count = divergence(adapted, rows, learned)
    assert (float(moved), count) == (0.0, 4)  # a new one gives nothing
    for name, values in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(values, std=0.05)
    moved, count = divergence(adapted, rows, learned)
    wanted = []
    for row, own in zip(rows, learned, strict=True):
        with torch.no_grad():
            found = adapted(torch.tensor([row])).logits[0].float().softmax(-1)
            with adapted.disable_adapter():
                plain = adapted(torch.tensor([row])).logits[0].float().softmax(-1)
        each = (plain * (plain / found).log()).sum(-1)
        wanted += [each[place - 1] for place, is_own in enumerate(own) if is_own]
    assert count == len(wanted)
    torch.testing.assert_close(moved, torch.stack(wanted).mean(), rtol=0.05, atol=1e-3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of a random model, by a run that was stopped and gone on with."""
    folder = tmp_path_factory.mktemp("cml")
    model = make_llama(folder / "model", max_position=8192)
    before: list[torch.Tensor] = []
    on_interrupt = signal.getsignal(signal.SIGINT)
    for tokens in (8_000, 16_000):
        given = [model, model / "tokenizer.json", folder / "run", "--tokens", tokens, "--rank", 4]
        done = CliRunner().invoke(main, list(map(str, [*given, "--text", ROOT / "README.md"])))
        assert done.exception is None, done.output
        assert signal.getsignal(signal.SIGINT) is on_interrupt
        state = torch.load(folder / "run" / "state.pt")
        assert state["state"]["read"] >= tokens
        before += [state["optimizer"]["state"][0]["step"]]
    assert before[0] < before[1] == state["state"]["step"]  # it went on
    return folder / "run" / "adapter"


@pytest.fixture
def adapted(client: Client, trained: Path) -> Iterator[Client]:
    client.load_adapter("cml", trained, "plain")
    try:
        yield client
    finally:
        client.unload_adapter("cml", "plain")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_model_with_the_adapter_is_told_what_it_was_trained_on(
    adapted: Client, mode: Mode
) -> None:
    tools = [simulated("say", 0.01, "hi"), simulated("echo", 0.02, "{x}", parameters=["x"])]
    calls = script("a: say()", ('b: echo(x="hi")', "a"))
    record = run(adapted, tools, calls, *PLAIN, mode=mode)
    assert results(record) == {"a": '"hi"', "b": '"hi"'}
    assert record["text"] == "Done."
    rules = run(adapted, tools, calls, *PLAIN, "--style", "json", mode=mode)
    assert record["prompt_tokens"] < rules["prompt_tokens"] / 4


def test_it_is_free_to_call_nothing_and_to_need_no_answer(adapted: Client) -> None:
    tools = [simulated("say", 0.01, "hi")]
    record = run(adapted, tools, None, *PLAIN, "--max-tokens", "20")
    forced = run(adapted, tools, None, *PLAIN, "--max-tokens", "20", "--style", "json")
    assert record["generated_tokens"] <= 20
    assert record["prompt_tokens"] < forced["prompt_tokens"]
