"""Device programs that the tests of each SDK record: here Python's, by name, and their texts.

Their namesakes are in `tests/device_guests` (Rust) and `tests/sdk_js/guests` (JavaScript).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from inferlet import DeviceSampler, attention, device, samplers
from inferlet.device import State, Tensor


def _greedy(logits: Tensor) -> Tensor:
    return logits.argmax()


def _penalized(logits: Tensor) -> Tensor:
    less = device.where(logits > 0, logits / 1.2, logits * 1.2)
    return less.where((device.counts() > 0) | device.given(), logits).argmax()


def _green(logits: Tensor, state: State) -> Tensor:
    before = device.newest(1)[0]
    drawn = (device.hash(device.hash(state.key, before), device.iota()) >> 40) & 0xFFFFFF
    return device.draw(logits + (drawn.to_float() < 0.5 * 2**24).to_float() * 2)


def _surprised(logits: Tensor, state: State) -> Tensor:
    surprise = -logits.log_softmax() / math.log(2)
    token = device.draw(logits.where(surprise <= state.mu, -math.inf))
    state.mu = state.mu - (surprise[token] - 5.0) * 0.1
    return token


def _shapes(logits: Tensor, state: State) -> Tensor:
    top = logits.top(8)
    mean = logits[top].reshape(2, 4).transpose().sum().mean()
    folded = device.fold(lambda a, x: a + x, mean, state.table[1:-1])
    return device.where(~(folded != 0), top[-1], device.step() % 3)


def _operators(logits: Tensor, state: State) -> Tensor:
    """Each operation that the others have not."""
    x, n, flags = state.x, state.n, state.flags
    x = device.concat(x.flip(), abs(x)).sort()[:6] ** 0.5 * x.min()
    x = (x.sqrt().tanh() + x.sigmoid().floor() - x.exp().log()) / device.maximum(x, 0.25)
    n = ((n // 3 | 5) ^ ~n) << 2
    some = flags.any() ^ flags.all() & (n != 7).any()
    chance = device.random(n, 1).sum() + device.uniform(2) - device.exponential(3, 1)
    matrix = state.table @ x[:3]
    places = device.one_hot(n[0], 6).to_int() + flags.to_bool().to_int()
    added = x.scatter_add(places, chance).is_nan().to_int().sum()
    state.n = n.scatter_max(n.argsort(), 9)
    rows = state.table[1].cumsum().argmax() + matrix.argmax()
    return device.where(some, added + rows, logits.descending()[0])


_RULES: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "greedy": (_greedy, {}),
    "penalized": (_penalized, {}),
    "green": (_green, {"key": 42}),
    "surprised": (_surprised, {"mu": 10.0}),
    "shapes": (_shapes, {"table": [0.5, 1.0, 2.0, -1.0]}),
    "operators": (
        _operators,
        {
            "x": [0.5, 1.0, 2.0, -1.0],
            "n": [1, 2, 3],
            "flags": [True, False, True, False, True, False],
            "table": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]],
        },
    ),
}
_FILTERS: dict[str, Callable[[Tensor, State], Tensor]] = {
    "top_k": lambda logits, _: samplers.top_k(logits, 40),
    "top_k of state": lambda logits, state: samplers.top_k(logits, state.k),
    "top_p": lambda logits, _: samplers.top_p(logits, 0.9),
    "min_p": lambda logits, _: samplers.min_p(logits, 0.05),
    "min_p of state": lambda logits, state: samplers.min_p(logits, state.p),
    "top_a": lambda logits, _: samplers.top_a(logits, 0.2),
    "epsilon_cutoff": lambda logits, _: samplers.epsilon_cutoff(logits, 3e-4),
    "eta_cutoff": lambda logits, _: samplers.eta_cutoff(logits, 3e-4),
    "eta_cutoff of state": lambda logits, state: samplers.eta_cutoff(logits, state.p),
    "typical_p": lambda logits, _: samplers.typical_p(logits, 0.95),
    "tail_free": lambda logits, _: samplers.tail_free(logits, 0.95),
    "xtc": lambda logits, _: samplers.xtc(logits, 0.1, 0.5),
    "repetition_penalty": lambda logits, _: samplers.repetition_penalty(logits, 1.2),
    "presence_penalty": lambda logits, _: samplers.presence_penalty(logits, 0.5),
    "frequency_penalty": lambda logits, _: samplers.frequency_penalty(logits, 0.5),
    "no_repeat_ngram": lambda logits, _: samplers.no_repeat_ngram(logits, 3),
    "banned_sequences": lambda logits, state: samplers.banned_sequences(logits, state.sequences),
    "dry": lambda logits, state: samplers.dry(logits, 0.8, breakers=state.tokens, look_back=64),
    "watermark": lambda logits, _: samplers.watermark(logits, 2.0, key=7),
    "logit_bias": lambda logits, state: samplers.logit_bias(logits, state.tokens, state.values),
    "allowed_tokens": lambda logits, state: samplers.allowed_tokens(logits, state.tokens),
    "min_tokens": lambda logits, state: samplers.min_tokens(logits, 4, state.tokens),
    "healed": lambda logits, state: samplers.healed(logits, state.tokens),
}
GIVEN: dict[str, Any] = {
    "k": 5,
    "p": 0.5,
    "tokens": [3, 4],
    "values": [1.0, -1.0],
    "sequences": samplers.padded([[5], [1, 2, 3]]),
}
_BESIDE: dict[str, Callable[[Tensor, State], Tensor]] = {
    "guidance": lambda logits, _: samplers.guidance(logits, device.beside(0), 3.0),
    "guidance of state": lambda logits, state: samplers.guidance(logits, device.beside(1), state.p),
    "contrastive": lambda logits, _: samplers.contrastive(logits, device.beside(0)),
    "context_aware": lambda logits, _: samplers.context_aware(logits, device.beside(0), 0.5),
    "context_aware of state": lambda logits, state: samplers.context_aware(
        logits, device.beside(0), state.p
    ),
    "with_at": lambda logits, state: logits.with_at(state.k, state.p).with_at(7, 0),
}
_PROGRAMS: dict[str, dict[str, Any]] = {
    "tempered": {"temperature": 0.7, "p": 0.9},
    "mirostat": {"mu": 10.0, "tau": 5.0, "rate": 0.1},
    "entropy_temperature": {"temperature": 1.0, "theta": 1.0},
    "gumbel_watermark": {"temperature": 1.0, "key": 42},
    "synthid": {"temperature": 1.0, "key": 42},
}


def _drawn(rule: Callable[[Tensor, State], Tensor]) -> str:
    drawn = device.program(lambda logits, state: device.draw(rule(logits, state)))
    return drawn(**GIVEN).text


EVERY_STEP = DeviceSampler(
    logit_bias={3: 1.0, 4: None},
    allowed_tokens=[1, 2],
    repetition_penalty=1.5,
    presence_penalty=0.5,
    frequency_penalty=0.5,
    no_repeat_ngram_size=3,
    banned_sequences=[[5], [1, 2, 3]],
    min_tokens=3,
    end_tokens=[1],
    dry_multiplier=0.5,
    dry_sequence_breakers=[4],
    temperature=0.5,
    top_k=20,
    top_p=0.5,
    min_p=0.25,
    typical_p=0.5,
    epsilon_cutoff=0.25,
    eta_cutoff=0.25,
    xtc_probability=0.5,
)


def _text(sampler: DeviceSampler) -> str:
    found = sampler.resolved()
    assert isinstance(found, device.ProgramSampler)
    return found.text


TEXTS: dict[str, str] = {
    **{name: device.program(rule)(**given).text for name, (rule, given) in _RULES.items()},
    **{name: _drawn(rule) for name, rule in (_FILTERS | _BESIDE).items()},
    **{name: getattr(samplers, name)(**given).text for name, given in _PROGRAMS.items()},
    "device sampler": _text(EVERY_STEP),
}


def _own(scores: Tensor, state: State) -> Tensor:
    """Operations of the stage `attend` that the library has not."""
    kept = device.shared(scores).max() > device.iota(device.HEADS).to_float() * state.share
    state.reached = state.reached & (device.step() < device.layer())
    pages = device.iota(device.PAGES)
    return (pages == device.tokens() // 16) | (kept.any() & (pages % 2 == 0))


ATTEND_TEXTS: dict[str, str] = {
    "sinks": attention.sinks().text,
    "sinks of": attention.sinks(0, 64).text,
    "quest": attention.quest(8).text,
    "tova": attention.tova(256).text,
    "h2o": attention.h2o(32, 64).text,
    "h2o together": attention.h2o(32, 64, together=True).text,
    "snapkv": attention.snapkv(128).text,
    "own": device.attend(_own)(share=0.5, reached=device.per_token(True)).text,
}
