"""Guessed tokens at the worker: the choices, and what they leave, are those of single steps."""

from __future__ import annotations

import pytest
import torch
from support.model_rig import Rig, ints, sample_of
from support.programs_read import set_samplers

from inferlet import Sampler, device, samplers
from pie_inference import handlers
from pie_inference.errors import BadBatch
from pie_py.wire.plan import EmbedSampled, EmbedText

PROMPT = [5, 17, 101, 9, 30, 31, 8]
STEPS = 24
SCRATCH = 600


@device.program
def nucleus(logits: device.Tensor) -> device.Tensor:
    return device.draw(samplers.top_p(logits / 0.8, 0.9))


SAMPLERS = (
    Sampler(temperature=0.0),
    Sampler(),
    Sampler(temperature=0.8, top_p=0.9, min_p=0.05, top_k=40),
    nucleus(),
)


class Text:
    """A text that goes on by steps of one input or of several."""

    def __init__(self, rig: Rig, slot: int, sampler: int) -> None:
        self.rig, self.slot, self.own = rig, slot, slot
        self.stream = rig.sequence(128)
        self.chosen = 0
        vocabulary = rig.model.description.vocab_size
        made = set_samplers([SAMPLERS[sampler]], vocabulary, slots=[slot], seeds=[[7, 0]])
        handlers.samplers.set_sampler(rig.model, made)
        self._embed_text(PROMPT, list(range(SCRATCH, SCRATCH + len(PROMPT))))
        rig.run(self.stream, range(SCRATCH, SCRATCH + len(PROMPT)), [self.own])
        self.last = self.choose([self.own], [])[0]

    def _embed_text(self, tokens: list[int], embeds: list[int]) -> None:
        first = self.stream.used + (embeds[0] >= SCRATCH and self.chosen > 0)
        positions = range(first, first + len(tokens))
        handlers.embeds.embed_text(
            self.rig.model, EmbedText(ints(tokens), ints(positions), ints(embeds))
        )

    def choose(self, embeds: list[int], guesses: list[int]) -> list[int]:
        count = len(embeds)
        drafts = [*guesses, -1] if guesses else []
        steps = range(self.chosen, self.chosen + count)
        batch = sample_of(embeds, [self.slot] * count, steps, drafts=drafts)
        found = handlers.sample.sample(self.rig.model, batch).get().values
        assert found is not None
        tokens: list[int] = found.tokens.tolist()
        stands = next(i for i, token in enumerate(tokens) if token != [*guesses, -1][i]) + 1
        self.chosen += stands
        self.stream.used -= count - stands if guesses else 0
        return tokens[:stands]

    def step(self, guesses: list[int]) -> list[int]:
        position = ints([self.stream.used])
        handlers.embeds.embed_sampled(
            self.rig.model, EmbedSampled(ints([self.slot]), position, ints([self.own]))
        )
        embeds = [self.own]
        if guesses:
            scratch = list(range(SCRATCH, SCRATCH + len(guesses)))
            self._embed_text(guesses, scratch)
            embeds += scratch
        self.rig.run(self.stream, embeds, embeds)
        return self.choose(embeds, guesses)

    def kept(self) -> torch.Tensor:
        """Keys and values of the text so far, of all layers."""
        slots = self.stream.slots(0, self.stream.used)
        return torch.stack([rows[torch.tensor(slots)] for rows in self.rig.model.cache.rows])


@pytest.mark.parametrize("sampler", range(len(SAMPLERS)))
@pytest.mark.parametrize("most", [1, 4, 9])
@torch.inference_mode()
def test_choices_are_those_of_single_steps(rig: Rig, sampler: int, most: int) -> None:
    plain, guessing = Text(rig, 0, sampler), Text(rig, 1, sampler)
    expected = [plain.last]
    while len(expected) < STEPS:
        expected += plain.step([])
    found, steps = [guessing.last], 0
    while len(found) < STEPS:
        guesses = expected[len(found) : len(found) + most]
        if steps % 3 == 1:  # wrong from somewhere on
            guesses[len(guesses) // 2] ^= 1
        found += guessing.step(guesses[: STEPS - len(found)])[: STEPS - len(found)]
        steps += 1
    assert found == expected
    if most > 1:
        assert steps < STEPS // 2
    count = min(plain.stream.used, guessing.stream.used)
    assert count >= len(PROMPT) + STEPS - 1
    plain.stream.used = guessing.stream.used = count
    torch.testing.assert_close(guessing.kept(), plain.kept(), atol=1e-5, rtol=1e-4)
    rig.release(plain.stream)
    rig.release(guessing.stream)


@torch.inference_mode()
def test_a_sampler_is_left_with_the_last_token_that_stands(rig: Rig) -> None:
    plain, guessing = Text(rig, 2, 1), Text(rig, 3, 1)
    first, second = plain.step([])[0], plain.step([])[0]
    assert guessing.step([first, second ^ 1, 3]) == [first, second]
    assert rig.model.samplers.tokens[2:4].tolist() == [second, second]
    assert guessing.step([]) == plain.step([])
    rig.release(plain.stream)
    rig.release(guessing.stream)


@torch.inference_mode()
def test_what_is_no_guess_is_refused(rig: Rig) -> None:
    wrong: list[tuple[list[int], list[int], str]] = [
        ([5, 5], [1, 1], "last row is guessed"),
        ([5, 5], [1, 0], "last row is guessed"),
        ([5, 5, 6, 5], [1, -1, -1, -1], "twice"),
        ([5, 5], [1], "drafts"),
        ([5, 5], [], "twice"),
    ]
    for slots, drafts, why in wrong:
        batch = sample_of(range(len(slots)), slots, range(len(slots)), drafts=drafts)
        with pytest.raises(BadBatch, match=why):
            handlers.sample.sample(rig.model, batch)
