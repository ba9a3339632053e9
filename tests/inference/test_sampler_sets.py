"""Random sets of parameters, in the default order, beside processors of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from inference.test_sampling_operations import VOCABULARY, Bench
from transformers import LogitsProcessorList, generation

from pie_py.wire.operations import DEFAULT_ORDER, Operation, Step

Op, G = Operation, generation
# Of each step: how a number is drawn, and what transformers calls it.
STEPS: dict[Operation, tuple[Any, Any]] = {
    Op.LOGIT_BIAS: (lambda d: round(d.uniform(-4, 4), 2), None),
    Op.REPETITION_PENALTY: (lambda d: d.uniform(0.6, 1.8), G.RepetitionPenaltyLogitsProcessor),
    Op.NO_REPEAT_NGRAM: (lambda d: int(d.integers(1, 4)), G.NoRepeatNGramLogitsProcessor),
    Op.TEMPERATURE: (lambda d: d.uniform(0.3, 2.5), G.TemperatureLogitsWarper),
    Op.TOP_K: (lambda d: int(d.integers(1, VOCABULARY)), G.TopKLogitsWarper),
    Op.TOP_P: (lambda d: d.uniform(0.05, 0.99), G.TopPLogitsWarper),
    Op.MIN_P: (lambda d: d.uniform(0.01, 0.5), G.MinPLogitsWarper),
    Op.TYPICAL_P: (lambda d: d.uniform(0.1, 0.95), G.TypicalLogitsWarper),
    Op.EPSILON_CUTOFF: (lambda d: d.uniform(0.0005, 0.1), G.EpsilonLogitsWarper),
    Op.ETA_CUTOFF: (lambda d: d.uniform(0.0005, 0.1), G.EtaLogitsWarper),
}


def test_sets_of_steps() -> None:
    draw, bench = np.random.default_rng(0), Bench()
    for _ in range(300):
        chosen = set(draw.choice(list(STEPS), draw.integers(1, 6), replace=False))
        tokens = draw.integers(0, 6, draw.integers(1, 12)).tolist()
        logits = torch.from_numpy(draw.normal(0, 2.5, (1, VOCABULARY)).astype(np.float32))
        steps, theirs = [], LogitsProcessorList()
        for operation in (one for one in DEFAULT_ORDER if one in chosen):
            value = STEPS[operation][0](draw)
            if operation is Op.LOGIT_BIAS:
                steps.append(Step(operation, [], {3: value, 9: -value}))
                theirs.append(G.SequenceBiasLogitsProcessor({(3,): value, (9,): -value}))
            else:
                steps.append(Step(operation, [value]))
                theirs.append(STEPS[operation][1](value))
        bench.set(0, steps)
        bench.feed(0, tokens)
        wanted = theirs(torch.tensor([tokens]), logits.clone())
        found = bench.adjusted(logits, [0])
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4, msg=str(steps))
