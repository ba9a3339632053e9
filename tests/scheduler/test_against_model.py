"""What is batched at the real worker is what is computed one forward at a time."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from support.checkpoints import make_llama
from support.instances import take
from support.scheduler_fixtures import Guest, Server

from pie_inference.serving.engine import Engine
from pie_py.config.model import ModelConfig
from pie_py.wire.messages import decode, encode
from pie_py.wire.plan import Plan, PlanResult

PAGE = 8
TOLERANCE = 1e-4  # of probabilities


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


def test_a_forward_sees_its_pages_as_they_were_when_it_was_called(tmp_path: Path) -> None:
    """A later one of its queue writes to a page that it reads; a batch stores all keys before any
    attends.
    """
    model = make_llama(tmp_path / "model", deviation=0.15)
    config = {"source": str(model), "name": "symbolic", "page_size": PAGE}
    sizes = {"kv_pages": 48, "host_pages": 12, "embeds": 96}
    engine = Engine([ModelConfig.model_validate({**config, **sizes})])
    facts = {
        **asdict(engine.descriptions[0]),
        "samplers": 8,
        "count_rows": 5,
        "max_batch_tokens": 64,
    }
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
        tokens, chances = take(guest.instance, future)
        found.append((tokens.tolist(), chances.tolist()))
    assert found[0][0] == found[1][0]
    assert found[0][1] == pytest.approx(found[1][1], abs=TOLERANCE)
