"""The random programs of `test_against_sequential`, on the real worker, with numbers.

What the scheduler batches and the worker computes in pages must be what a plain model computes one
forward at a time: distributions, greedy tokens, attention, through adapters and without.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import rule
from support.checkpoints import make_adapter, make_llama
from support.fake_worker import Slot, rows_of
from support.plain_llama import Node, PlainLlama, causal
from support.programs_read import create_sampler
from support.random_programs import PAGE, Programs, outcome
from support.scheduler_fixtures import Guest, Server

from inferlet import Sampler
from pie_control.api import sample, text
from pie_inference.serving.engine import Engine
from pie_py.config.model import ModelConfig
from pie_py.wire.messages import decode, encode
from pie_py.wire.plan import Plan, PlanResult

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4  # of probabilities in fp32 against float64
CLEAR = 1e-3  # least lead of a logit that rounding can't take


class Numbers:
    """Values of the real worker, by the plain model. A value is an embed's row, or a node's."""

    ways = ("plain", "plain", "plain", "x", "y", "observe")

    def __init__(self, model: PlainLlama) -> None:
        self.model = model

    def token(self, token: int) -> Any:
        return self.model.token(token)

    def forward(
        self, inputs: list[tuple[Any, int]], columns: list[Slot], mask: list[int], adapter: str
    ) -> list[Any]:
        return self._run(inputs, columns, mask, adapter)[0]

    def attention(
        self,
        inputs: list[tuple[Any, int]],
        columns: list[Slot],
        mask: list[int],
        observed: int,
        detail: str,
    ) -> tuple[int, torch.Tensor]:
        _, shares = self._run(inputs, columns, mask, "")
        total = shares[:, :, -observed:].sum(2)  # [layers, heads, columns]
        if detail == "total":
            total = total.mean((0, 1))[None]
        elif detail == "layers":
            total = total.mean(1)
        else:
            total = total.flatten(0, 1)
        return len(total), total

    def _run(
        self, inputs: list[tuple[Any, int]], columns: list[Slot], mask: list[int], adapter: str
    ) -> tuple[list[Node], torch.Tensor]:
        visible = rows_of(mask) or causal([place for _, place in inputs], len(columns))
        shown = [
            [seen and not (j < len(columns) and columns[j].masked) for j, seen in enumerate(row)]
            for row in visible
        ]
        past: list[Any] = [slot.value for slot in columns]
        rows = [(row_of(value), place) for value, place in inputs]
        return self.model.forward(rows, past, shown, adapter)

    def distribution(self, value: Any, k: int, vocab: int) -> Any:
        return k, self.model.probabilities(row_of(value))

    def check_distribution(self, wanted: Any, tokens: list[int], shares: list[float]) -> None:
        k, full = wanted
        assert len(tokens) == len(set(tokens)) == len(shares) == k
        assert shares == sorted(shares, reverse=True)
        found = torch.tensor(shares, dtype=torch.float64)
        torch.testing.assert_close(found, full[tokens], atol=TOLERANCE, rtol=0)
        assert shares[-1] >= full.topk(k).values[-1].item() - TOLERANCE

    def check_attention(self, wanted: Any, rows: int, found: Any) -> None:
        count, numbers = wanted
        assert rows == count
        found = torch.from_numpy(found.copy()).double().view(rows, -1)
        torch.testing.assert_close(found, numbers, atol=TOLERANCE, rtol=0)


def row_of(value: Any) -> torch.Tensor:
    """An embed's vector: a token's, or an output's."""
    return value.hidden if isinstance(value, Node) else value


class Greedy:
    """A sampler of temperature 0."""

    def __init__(self, presence: float, bias: dict[int, float]) -> None:
        self.presence, self.bias = presence, bias
        self.generated: set[int] = set()
        self.last: int | None = None

    def feed(self, tokens: list[int], generated: bool) -> None:
        if generated:
            self.generated |= set(tokens)

    def best(self, logits: torch.Tensor, allowed: set[int] | None) -> tuple[int, float]:
        """The next token, and its lead over the second best."""
        scores = logits.clone()
        for token in self.generated:
            scores[token] -= self.presence
        for token, bias in self.bias.items():
            scores[token] += bias
        if allowed is not None:
            kept = torch.full_like(scores, -torch.inf)
            kept[sorted(allowed)] = scores[sorted(allowed)]
            scores = kept
        first, second = scores.topk(2)
        return int(second[0]), float(first[0] - first[1])


class RealWorker:
    """The worker's engine in this process, behind the wire protocol."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sizes: list[tuple[str, int, int]] = []

    def run(self, plan: Plan) -> PlanResult:
        sent = decode(encode(plan))
        assert isinstance(sent, Plan)
        parts: list[PlanResult] = []
        last = self.engine.run(sent, parts.append)
        results = [batch for part in (*parts, last) for batch in part.results]
        result = PlanResult(last.id, last.model, results)
        assert [batch.error for batch in result.results] == [None] * len(plan.batches)
        answer = decode(encode(result))
        assert isinstance(answer, PlanResult)
        return answer


class NumericPrograms(Programs):
    engine: Engine  # both set by the test
    values: Numbers

    def make_server(self, reference: bool, **facts: Any) -> Server:
        facts["max_batch_tokens"] = min(facts["max_batch_tokens"] or 64, 64)
        (description,) = self.engine.descriptions
        server = Server(reference=reference, **{**_as_facts(description), **facts})
        server.worker = RealWorker(self.engine)  # type: ignore[assignment]  # runs plans, too
        return server

    @rule(
        data=st.data(),
        presence=st.sampled_from([0.0, 0.0, 0.5]),
        bias=st.dictionaries(st.integers(0, 299), st.sampled_from([-1.0, 2.5]), max_size=2),
    )
    def create_sampler(self, data: st.DataObject, presence: float, bias: dict[int, float]) -> None:
        lane = self._lane(data)
        if lane is None:
            return
        made = Sampler(temperature=0, presence_penalty=presence, logit_bias=bias)
        handle, error = outcome(create_sampler, lane.instance, lane.queue, made.to_json())
        assert error in (None, "out-of-resources")
        if error is None:
            lane.samplers[handle] = [Greedy(presence, bias), 0, 0]

    @rule(data=st.data(), tokens=st.lists(st.integers(0, 299), max_size=4), own=st.booleans())
    def feed_sampler(self, data: st.DataObject, tokens: list[int], own: bool) -> None:
        lane = self._lane(data)
        if lane and lane.samplers:
            handle = data.draw(st.sampled_from(sorted(lane.samplers)))
            sample.feed_sampler(lane.instance, lane.queue, handle, tokens, own)
            lane.samplers[handle][0].feed(tokens, own)

    @rule(data=st.data(), allowed=st.none() | st.sets(st.integers(0, 299), min_size=2, max_size=9))
    def sample(self, data: st.DataObject, allowed: set[int] | None) -> None:
        lane = self._lane(data)
        written = [e for e, value in lane.embeds.items() if value] if lane else []
        if lane is None or not written or not lane.samplers:
            return
        embed = data.draw(st.sampled_from(written))
        handle = data.draw(st.sampled_from(sorted(lane.samplers)))
        sampler = lane.samplers[handle][0]
        pair = lane.embeds[embed]
        assert pair is not None
        logits = self.values.model.logits(row_of(pair[0]))
        token, lead = sampler.best(logits, allowed)
        if lead < CLEAR:
            return  # rounding decides
        if allowed is None:
            future = sample.sample(lane.instance, lane.queue, embed, handle)
        else:
            words = torch.zeros(-(-self.server.facts.vocab_size // 32), dtype=torch.int64)
            for one in allowed:
                words[one // 32] |= 1 << one % 32
            mask = words.numpy().astype("uint32")
            future = sample.sample_masked(lane.instance, lane.queue, embed, handle, mask)
        sampler.last = token
        sampler.feed([token], True)
        lane.samplers[handle][1] += 1
        lane.samples[future] = (token, torch.log_softmax(logits, -1)[token].item())

    def check_sample(self, token: int, wanted: float, found: int, logprob: float, *_: Any) -> None:
        assert found == token
        assert logprob == pytest.approx(wanted, abs=1e-3)


def _as_facts(description: Any) -> dict[str, Any]:
    """The real model in pools as small as those of the symbolic one: what is not here is the
    same.
    """
    small = replace(description, kv_pages=48, embeds=96, host_pages=12, samplers=8, count_rows=5)
    return {name: getattr(small, name) for name in small.__dataclass_fields__}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    folder = tmp_path_factory.mktemp("model")
    model = make_llama(folder / "model", deviation=0.15)
    adapters = {
        "x": make_adapter(model, folder / "x", 1, target_modules=["q_proj", "v_proj"]),
        "y": make_adapter(model, folder / "y", 2, target_modules="all-linear"),
    }
    return model, adapters


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_programs_on_the_real_worker(checkpoint: tuple[Path, dict[str, Path]]) -> None:
    torch.set_num_threads(1)
    model, adapters = checkpoint
    config = ModelConfig.model_validate(
        {
            "source": str(model),
            "name": "symbolic",
            "page_size": PAGE,
            "kv_pages": 48,
            "host_pages": 12,
            "embeds": 96,
            "adapters": {name: str(path) for name, path in adapters.items()},
        }
    )

    class Run(NumericPrograms):
        engine = Engine([config])
        values = Numbers(PlainLlama(model, adapters))

    Run.TestCase.settings = settings(
        max_examples=80,
        phases=[Phase.generate, Phase.reuse],  # shrinking would take long; the seed tells
        stateful_step_count=50,
        suppress_health_check=list(HealthCheck),
    )
    Run.TestCase("runTest").runTest()


def test_the_plain_model_is_that_of_transformers(checkpoint: tuple[Path, dict[str, Path]]) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder, adapters = checkpoint
    plain = PlainLlama(folder, adapters)
    tokens, positions = [5, 6, 7, 300, 9], [0, 1, 5, 6, 40]
    for name in ("", "x", "y"):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        if name:
            model = PeftModel.from_pretrained(model, adapters[name])
        with torch.inference_mode():
            logits = model.eval()(
                torch.tensor([tokens]), position_ids=torch.tensor([positions])
            ).logits[0]
        inputs = [(plain.token(t), p) for t, p in zip(tokens, positions, strict=True)]
        first, _ = plain.forward(inputs[:2], [], causal(positions[:2], 0), name)
        rest, _ = plain.forward(inputs[2:], first, causal(positions[2:], 2), name)
        found = torch.stack([plain.logits(node.hidden) for node in [*first, *rest]])
        torch.testing.assert_close(found.float(), logits, atol=1e-3, rtol=1e-3)


def test_a_forward_sees_its_pages_as_they_were_when_it_was_called(
    checkpoint: tuple[Path, dict[str, Path]],
) -> None:
    """A later one of its queue writes to a page that it reads; a batch stores all keys before any
    attends.
    """
    model, _ = checkpoint
    config = {"source": str(model), "name": "symbolic", "page_size": PAGE}
    sizes = {"kv_pages": 48, "host_pages": 12, "embeds": 96}
    engine = Engine([ModelConfig.model_validate({**config, **sizes})])
    facts = {**_as_facts(engine.descriptions[0]), "max_batch_tokens": 64}
    found = []
    for at_once in (False, True):
        server = Server(**facts)
        server.worker = RealWorker(engine)  # type: ignore[assignment]  # runs plans, too
        guest = Guest(server)
        page, embeds, two = guest.pages(1), guest.embeds(PAGE), guest.embeds(2)
        guest.embed(list(range(5, 5 + PAGE)), 0, embeds)
        guest.forward(page, embeds, page)
        guest.embed([33], PAGE, [two[0], 1])
        guest.embed([200], 4, [two[0] + 1, 1])
        server.drain()
        guest.forward(page, [two[0], 1], [], [two[0], 1])
        if not at_once:
            server.drain()
        guest.truncate(page, 4)
        guest.forward(page, [two[0] + 1, 1], page, [])
        future = guest.dist(two[0], 4)
        server.drain()
        tokens, chances = text.take_dist(guest.instance, future)
        found.append((tokens.tolist(), chances.tolist()))
    assert found[0][0] == found[1][0]
    assert found[0][1] == pytest.approx(found[1][1], abs=TOLERANCE)
