"""Programs in the layers, held to hooks of plain PyTorch on transformers' module."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support.model_rig import Checkpoints, Rig, Step, Stream, assert_close, tokens_of
from support.programs_read import bound_by, chosen_by, text_of
from support.reference import load

from inferlet import Sampler, device, layers
from inferlet.device import Attend, State, Tensor
from pie_control.device_programs.reading import in_layers, read
from pie_control.errors import ApiError
from pie_inference import handlers
from pie_py.device_programs.bound import Bound, bind
from pie_py.device_programs.program import program_for
from pie_py.wire.device_programs import packed
from pie_py.wire.plan import SetSampler

TOKENS = tokens_of(60, seed=4)
PROMPT, STEPS = 40, 12
FAMILIES = ["llama", "mistral", "gemma2", "qwen3", "gptoss"]
Hook = Callable[[torch.Tensor], torch.Tensor]


@device.layers(at=[1], prompt=True)
def gated(residual: Tensor, state: State) -> Tensor:
    """More of a direction, where there is some of it."""
    score = (residual * state.direction).sum()
    return residual + score.sigmoid() * state.direction


def vector(rig: Rig, seed: int) -> torch.Tensor:
    size = rig.model.description.hidden_size
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def programs(rig: Rig) -> dict[str, tuple[Attend, dict[int, Hook]]]:
    """Each program, and what hooks before layers do."""
    v, w = vector(rig, 1), vector(rig, 2)
    unit = w / w.norm()
    last = rig.model.description.layers - 1
    return {
        "steer": (
            layers.steer(v.tolist(), at=[0, -1], strength=2.0),
            dict.fromkeys((0, last), lambda x: x + 2.0 * v),
        ),
        "ablate": (
            layers.ablate(w.tolist(), at=[1]),
            {1: lambda x: x - (x @ unit)[..., None] * unit},
        ),
        "gated": (gated(direction=w.tolist()), {1: lambda x: x + (x @ w).sigmoid()[..., None] * w}),
    }


def bound(rig: Rig, attend: Attend) -> Bound:
    facts, chosen = rig.model.description, chosen_by(attend)
    text, _ = read(in_layers(chosen.key, chosen.at, facts, prompt=chosen.prompt))
    return bind(program_for(text, facts.vocab_size), chosen.values, facts.vocab_size)


def put(rig: Rig, attends: list[Attend]) -> None:
    vocabulary, count = rig.model.description.vocab_size, len(attends)
    batch = SetSampler(
        samplers=np.arange(count, dtype=np.int32),
        seeds=np.zeros((count, 2), np.uint32),
        rows=np.full(count, -1, np.int32),
        **packed(
            [bound_by(Sampler(temperature=0.0), vocabulary)] * count,
            [bound(rig, attend) for attend in attends],
        ),
    )
    with torch.inference_mode():
        handlers.samplers.set_sampler(rig.model, batch)


def run(rig: Rig, *samplers: int, parts: tuple[int, ...] = (25, 15)) -> list[torch.Tensor]:
    """Logits behind each token of texts side by side, of which -1 has no program."""
    texts: list[tuple[Stream, int]] = [(rig.sequence(60), sampler) for sampler in samplers]
    found: list[list[torch.Tensor]] = [[] for _ in texts]

    def together(tokens: list[int], step: int) -> None:
        steps = [
            Step(text, tokens, outputs=len(tokens), attends=sampler, attend_step=step)
            for text, sampler in texts
        ]
        for own, logits in zip(found, rig.forward(*steps), strict=True):
            own.append(logits)

    at = 0
    for count in parts:
        together(TOKENS[at : at + count], 0)
        at += count
    for step in range(STEPS):
        together([TOKENS[PROMPT + step]], 1 + step)
    return [torch.cat(own) for own in found]


@torch.inference_mode()
def hooked(folder: Path, hooks: dict[int, Hook], first: int = 0) -> torch.Tensor:
    """Logits of transformers' module, with hooks of inputs from the `first` on."""
    model = load(folder)

    def before(hook: Hook) -> Callable[..., object]:
        def change(module: object, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            x = args[0].clone()
            x[:, first:] = hook(x[:, first:])
            return (x, *args[1:])

        return change

    held = [
        model.model.layers[number].register_forward_pre_hook(before(hook))
        for number, hook in hooks.items()
    ]
    try:
        found: torch.Tensor = model(torch.tensor([TOKENS[: PROMPT + STEPS]])).logits[0]
    finally:
        for each in held:
            each.remove()
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["steer", "ablate", "gated"])
def test_rows_with_and_without_are_as_hooks_say(
    checkpoint: Checkpoints, family: str, name: str
) -> None:
    folder = checkpoint(family)
    rig = Rig(folder)
    program, hooks = programs(rig)[name]
    generated = Attend(program.program, program.constants, program.given, program.at, prompt=False)
    put(rig, [program, generated])
    plain, both, late = run(rig, -1, 0, 1)
    assert_close(plain, hooked(folder, {}))
    assert_close(both, hooked(folder, hooks))
    assert_close(late, hooked(folder, hooks, first=PROMPT))
    assert (plain - both).abs().max() > 0.1


@pytest.mark.parametrize("name", ["steer", "ablate", "gated"])
def test_between_layers_of_one_call(checkpoint: Checkpoints, name: str) -> None:
    def logits(is_fused: bool) -> torch.Tensor:
        rig = Rig(checkpoint("llama"), quantize="int8")
        assert rig.model.fused_steps is not None
        if not is_fused:
            object.__setattr__(rig.model, "fused_steps", None)
        put(rig, [programs(rig)[name][0]])
        return torch.cat(run(rig, -1, 0, -1))

    assert_close(logits(True), logits(False), few_bits=True)


def test_the_last_of_a_prompt_is_in_its_last_part(checkpoint: Checkpoints) -> None:
    folder = checkpoint("llama")
    rig = Rig(folder)
    v = vector(rig, 1)
    put(rig, [Attend("steer", {"strength": 1.0}, {"vector": v.tolist()}, (1,), "last")])
    text = rig.sequence(60)
    for part in (TOKENS[:25], TOKENS[25:PROMPT]):
        is_last = part[-1] == TOKENS[PROMPT - 1]
        (found,) = rig.forward(Step(text, part, outputs=int(is_last), attends=0))
    wanted = hooked(folder, {1: partial(torch.add, v)}, first=PROMPT - 1)
    assert_close(found[0], wanted[PROMPT - 1])


def residuals(folder: Path, layer: int) -> torch.Tensor:
    seen: list[torch.Tensor] = []

    def hook(x: torch.Tensor) -> torch.Tensor:
        seen.append(x[0].clone())
        return x

    hooked(folder, {layer: hook})
    return seen[0]


def state(rig: Rig, sampler: int, step: int) -> list[torch.Tensor]:
    return rig.model.samplers.attend_programs.state(sampler, step)


@pytest.mark.parametrize("prompt", [True, False])
def test_a_probe_keeps_scores_and_their_sums(checkpoint: Checkpoints, prompt: bool) -> None:
    folder = checkpoint("llama")
    rig = Rig(folder)
    weights = torch.stack([vector(rig, seed) for seed in (5, 6, 7)])
    put(rig, [layers.probe(weights.tolist(), at=[1], bias=[1.0, 2.0, 3.0], prompt=prompt)])
    assert_close(run(rig, 0)[0], hooked(folder, {}))
    scores = residuals(folder, 1) @ weights.T + torch.tensor([1.0, 2.0, 3.0])
    if not prompt:
        scores[:PROMPT] = 0.0
    for step in (STEPS, STEPS - 3):
        newest, sums = state(rig, 0, step)
        torch.testing.assert_close(newest, scores[PROMPT + step - 1], atol=1e-3, rtol=1e-4)
        torch.testing.assert_close(sums, scores[: PROMPT + step].sum(0), atol=1e-2, rtol=1e-4)
    # A step that is done again takes the place of those undone.
    text = rig.sequence(60)
    rig.forward(Step(text, [TOKENS[3]], attends=0, attend_step=STEPS - 2))
    assert not torch.equal(state(rig, 0, STEPS)[0], newest)
    torch.testing.assert_close(state(rig, 0, STEPS - 3)[1], sums)


def test_rows_of_one_program_have_values_and_states_of_their_own(checkpoint: Checkpoints) -> None:
    folder = checkpoint("llama")
    rig = Rig(folder)
    vectors = [vector(rig, seed) for seed in (1, 2, 3)]
    put(rig, [layers.steer(v.tolist(), at=[1]) for v in vectors])
    for v, logits in zip(vectors, run(rig, 0, 1, 2), strict=True):
        assert_close(logits, hooked(folder, {1: partial(torch.add, v)}))
    rig = Rig(folder)
    put(rig, [layers.probe([v.tolist()], at=[0, 1]) for v in vectors])
    run(rig, 0, 1, 2)
    for i, v in enumerate(vectors):
        newest, sums = state(rig, i, STEPS)
        scores = [residuals(folder, layer)[PROMPT:] @ v for layer in (0, 1)]
        torch.testing.assert_close(newest[0], scores[1][-1], atol=1e-3, rtol=1e-4)
        torch.testing.assert_close(sums[0], sum(scores).sum(), atol=1e-2, rtol=1e-4)  # type: ignore[union-attr]


def test_the_logit_lens_is_the_last_norm_and_the_head(checkpoint: Checkpoints) -> None:
    folder = checkpoint("gemma2")
    rig = Rig(folder)
    put(rig, [layers.logit_lens(at=[0, -1])])
    run(rig, 0)
    model, last = load(folder), rig.model.description.layers - 1
    logprobs, tokens = state(rig, 0, STEPS)
    for i, layer in enumerate((0, last)):
        with torch.inference_mode():
            logits = model.lm_head(model.model.norm(residuals(folder, layer)[-1:]))[0]
            cap = model.config.final_logit_softcapping
            wanted = (cap * (logits / cap).tanh()).log_softmax(-1)
        assert int(tokens[i]) == int(wanted.argmax())
        assert float(logprobs[i]) == pytest.approx(float(wanted.max()), abs=1e-3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(residual): return residual.sum()", "makes of the residual what the layer is given"),
        ("def f(residual): return device.iota(3).to_float()", "makes of the residual"),
        ("def f(residual, scores): return residual", "there are weights or scores"),
        ("def f(residual): return residual + tokens()", "there are no tokens|add of float"),
        ("def f(residual): return residual * tokens().to_float()", "a program in the layers has"),
        ("def f(scores): return lens(scores.max()).max() > scores.transpose().max()", "lens"),
    ],
)
def test_what_no_program_in_the_layers_does(text: str, told: str) -> None:
    attend = device.layers(at=[0])(text)()
    with pytest.raises((ApiError, ValueError), match=told):
        program_for(text_of(attend), 300)


def test_layers_that_a_model_has_not(checkpoint: Checkpoints) -> None:
    rig = Rig(checkpoint("llama"))
    many = rig.model.description.layers
    for at in ([many], [-many - 1], [0, 0]):
        with pytest.raises((ApiError, ValueError), match="layer"):
            bound(rig, layers.steer([1.0], at=at))
    with pytest.raises(ApiError, match="add of sizes"):
        bound(rig, layers.steer([1.0] * 3, at=[0]))
    assert json.loads(text_of(layers.steer([1.0], at=[0])))["keep"] > 0
