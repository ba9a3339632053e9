"""Plans as the scheduler makes them: sequences that decode, prompts, swaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferlet import Sampler
from pie_control.api.device_programs import read_parameters
from pie_control.device_programs.reading import read
from pie_inference.handlers.base import ServedModel
from pie_py.device_programs.bound import Bound, bind
from pie_py.device_programs.program import program_for
from pie_py.wire.device_programs import packed
from pie_py.wire.plan import (
    Batch,
    EmbedSampled,
    EmbedText,
    Forward,
    Int32,
    Sample,
    SetSampler,
)

NONE = np.zeros(0, np.int32)


@dataclass
class Decoding:
    """Decoding sequences with contexts of one length: sampler `i` and embed `i` belong to `i`."""

    model: ServedModel
    count: int
    length: int  # tokens in the context
    room: int  # tokens that will be there in the end

    def __post_init__(self) -> None:
        """Gives every sequence pages of its own, scattered."""
        size = self.model.cache.page_size
        each = -(-self.room // size)
        if each * self.count > self.model.cache.pages:
            raise ValueError(f"{self.count} sequences of {self.room} tokens do not fit the pool")
        order = np.random.default_rng(0).permutation(self.model.cache.pages)
        self.pages: Int32 = order[: each * self.count].reshape(self.count, each).astype(np.int32)
        self.steps = 0

    def begin(self, temperature: float = 0, top_k: int = 0, top_p: float = 1) -> list[Batch]:
        """Makes the samplers, and has each choose a token."""
        every = np.arange(self.count, dtype=np.int32)
        kind = Sampler(temperature=temperature, top_k=top_k, top_p=top_p)
        program = _bound(kind, self.model.description.vocab_size)
        sampler = SetSampler(
            samplers=every,
            **packed([program] * self.count),
            seeds=np.repeat(every.astype(np.uint32), 2).reshape(self.count, 2),
            rows=np.full(self.count, -1, np.int32),
        )
        tokens = EmbedText(every % 256 + 2, np.zeros(self.count, np.int32), every)
        return [sampler, tokens, self._sample()]

    def step(self) -> list[Batch]:
        """Embeds what was chosen, runs the layers, chooses again."""
        every = np.arange(self.count, dtype=np.int32)
        positions = np.full(self.count, self.length, np.int32)
        size = self.model.cache.page_size
        held = -(-self.length // size)
        used = np.full((self.count, held), size, np.int32)
        if held:
            used[:, -1] = self.length - (held - 1) * size
        slots = self.pages[:, self.length // size] * size + self.length % size
        forward = Forward(
            input_starts=np.arange(self.count + 1, dtype=np.int32),
            inputs=every,
            page_starts=np.arange(self.count + 1, dtype=np.int32) * np.int32(held),
            pages=np.ascontiguousarray(self.pages[:, :held]).reshape(-1),
            page_used=used.reshape(-1),
            has_masked=np.zeros(self.count, np.int32),
            output_slots=slots.astype(np.int32),
            output_starts=np.arange(self.count + 1, dtype=np.int32),
            outputs=every,
            mask_starts=np.zeros(self.count + 1, np.int32),
            mask=NONE,
        )
        self.length += 1
        self.steps += 1
        return [EmbedSampled(every, positions, every), forward, self._sample()]

    def _sample(self) -> Sample:
        every = np.arange(self.count, dtype=np.int32)
        return Sample(
            embeds=every,
            samplers=every,
            steps=np.full(self.count, self.steps, np.uint32),
            top=np.zeros(self.count, np.int32),
            masked=np.full(self.count, -1, np.int32),
            masks=np.zeros((0, 0), np.uint32),
        )


def prompt(model: ServedModel, tokens: int) -> list[Batch]:
    """A prompt of one sequence, into the first pages, with one output."""
    ids = np.arange(tokens, dtype=np.int32)
    forward = Forward(
        input_starts=np.array([0, tokens], np.int32),
        inputs=ids,
        page_starts=np.zeros(2, np.int32),
        pages=NONE,
        page_used=NONE,
        has_masked=np.zeros(1, np.int32),
        output_slots=ids,
        output_starts=np.array([0, 1], np.int32),
        outputs=np.zeros(1, np.int32),
        mask_starts=np.zeros(2, np.int32),
        mask=NONE,
    )
    vocabulary = model.network.shape.vocab_size
    words = np.random.default_rng(0).integers(2, vocabulary, tokens).astype(np.int32)
    return [EmbedText(words, ids, ids), forward]


def _bound(sampler: Sampler, vocabulary: int) -> Bound:
    """The sampler's program as the server reads it, for a model of so many tokens."""
    found = read_parameters(sampler.to_json()).program
    text, _ = read(found.key)
    return bind(program_for(text, vocabulary), found.values, vocabulary)
