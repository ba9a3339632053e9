"""One model's pool of samplers: parameters, device programs, and the choices that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.device import Bool, Int32, Int64, upload, upload_index
from pie_inference.sampling.attend_programs import AttendPrograms, Lens
from pie_inference.sampling.choose import Parameters, choose
from pie_inference.sampling.device_programs import DevicePrograms, Values
from pie_inference.sampling.noise import starts
from pie_inference.sampling.remembered import GIVEN, TIMES, RememberedTokens, SavedLogits
from pie_py.device_programs.bound import Bound
from pie_py.device_programs.language import MOST_NEWEST

SAMPLERS = 1 << 14
COUNT_MEMORY = 256 << 20  # bytes at most for the token counts of device programs


@dataclass(frozen=True, slots=True)
class Choices:
    """Choices to be made together, `n` rows: what of them depends on the moment."""

    samplers: Int32  # [n]
    steps: NDArray[np.uint32]  # [n] how many tokens each sampler has chosen before
    mixed: Int32  # [n, MOST_BESIDE] rows of saved logits, or -1; empty if there are none
    saved: SavedLogits

    def rows(self, some: NDArray[np.intp]) -> Choices:
        """Some of them."""
        mixed = self.mixed[some] if self.mixed.size else self.mixed
        return Choices(self.samplers[some], self.steps[some], mixed, self.saved)


class Rows:
    """The inputs that some choices have for their program; made as far as it asks for them."""

    def __init__(
        self, pool: SamplerPool, choices: Choices, values: Values, own: Int64, logits: torch.Tensor
    ) -> None:
        """Takes the values of the program's samplers, and which rows of them are meant."""
        self.logits = logits
        self._pool, self._choices, self._values, self._own = pool, choices, values, own

    @cached_property
    def steps(self) -> torch.Tensor:
        """How many tokens each has chosen before, int64 `[n]`."""
        return upload_index(self._choices.steps, self.logits.device)

    @cached_property
    def start(self) -> torch.Tensor:
        """Where each row's random numbers begin, int64 `[n, 1]`."""
        words = starts(self._pool.seeds[self._choices.samplers], self._choices.steps)
        return upload(np.ascontiguousarray(words.view(np.int64)), self.logits.device)[:, None]

    @cached_property
    def own(self) -> torch.Tensor:
        """Rows of values."""
        return upload_index(self._own, self.logits.device)

    @cached_property
    def _counted(self) -> torch.Tensor:
        return self._pool.remembered.counts(self._pool.rows[self._choices.samplers])

    def newest(self, count: int) -> torch.Tensor:
        """The newest tokens, int64 `[n, count]`."""
        pool, samplers = self._pool, self._choices.samplers
        lengths = pool.given[samplers] + self._choices.steps
        return pool.remembered.newest(pool.rows[samplers], lengths, count)

    def counts(self) -> torch.Tensor:
        """How often each token was generated, int64 `[n, vocabulary]`."""
        return (self._counted & TIMES).to(torch.int64)

    def given(self) -> torch.Tensor:
        """Which tokens the text before has, bool `[n, vocabulary]`."""
        return self._counted >= GIVEN

    def beside(self, number: int) -> torch.Tensor:
        """Logits of a context beside, `[n, vocabulary]`: NaN where there are none to be had."""
        places, pool = self._choices.mixed[:, number], self._pool
        index = upload_index(places.clip(0), pool.device)
        found = self._choices.saved.read(index, pool.vocabulary)
        lost = upload(np.ascontiguousarray(places < 0), pool.device)
        return found.masked_fill(lost[:, None], torch.nan)

    def state(self, number: int) -> torch.Tensor:
        """The value of a name, `[n, *sizes]`."""
        return self._values.read(number, self.own, self.steps)

    def in_layers(self, number: int) -> torch.Tensor:
        """The value of a name of the program in the layers beside, `[n, *sizes]`."""
        of, choices = self._pool.attend_programs.of, self._choices
        each = zip(choices.samplers.tolist(), choices.steps.tolist(), strict=True)
        return torch.cat([of[sampler].value(step, number) for sampler, step in each])

    def lens(self, x: torch.Tensor) -> torch.Tensor:
        """Logits, float32 `[n, vocabulary]`, of residual streams `[n, hidden]`."""
        lens = self._pool.attend_programs.lens
        assert lens is not None
        return lens(x.expand(len(self.logits), -1))


class SamplerPool:
    """Slots of samplers. What a command asks for lies on the host, what the model computes on the
    device.

    `tokens` is the pool of tokens of which the host need not know yet: a sampler's slot holds the
    one that it chose last, for `embed_sampled` to read, or -1.
    """

    def __init__(
        self,
        vocabulary: int,
        device: torch.device,
        size: int = SAMPLERS,
        lens: Lens | None = None,
    ) -> None:
        """Makes room for `size` samplers; memory for what they remember is allocated lazily."""
        self.size = size
        self.vocabulary = vocabulary
        self.device = device
        self.count_rows = min(size, max(1, COUNT_MEMORY // (4 * vocabulary)))
        self.tokens = torch.full((size,), -1, dtype=torch.int64, device=device)
        self.remembered = RememberedTokens(self.count_rows, vocabulary, device)
        self.rows: Int32 = np.full(size, -1, np.int32)
        self.given: Int64 = np.zeros(size, np.int64)  # tokens not chosen
        self.seeds: NDArray[np.uint64] = np.zeros(size, np.uint64)
        # What a step asks of all its samplers at once: whether each counts tokens, and remembers
        # the last ones.
        self._counting: Bool = np.zeros(size, np.bool_)
        self._looking_back: Bool = np.zeros(size, np.bool_)
        self.device_programs = DevicePrograms(vocabulary, device, size)
        self.attend_programs = AttendPrograms(device, lens)

    def set(
        self,
        samplers: Int32,
        seeds: NDArray[np.uint32],
        rows: Int32,
        programs: Sequence[Bound],
    ) -> None:
        """Puts new samplers into slots; the parameters are those of `SetSampler`."""
        self.seeds[samplers] = seeds[:, 0] | seeds[:, 1].astype(np.uint64) << np.uint64(32)
        self.rows[samplers] = rows
        self.given[samplers] = 0
        self.forget(samplers)
        self.device_programs.set(samplers.tolist(), programs)
        for sampler, bound in zip(samplers.tolist(), programs, strict=True):
            self._counting[sampler] = bound.program.uses("counts", "given")
            self._looking_back[sampler] = bound.program.uses("newest")
        self.remembered.forget(rows[rows >= 0])

    def feed(
        self,
        samplers: Int32,
        tokens: Int32,
        generated: Bool,
        places: Int64,
        left: Int64,
    ) -> None:
        """Tells samplers `[n]`, of which some remember nothing, of tokens `[n]` of their texts that
        they did not choose, generated or given: of each its place behind those that the sampler was
        given before, and how many are left that the sampler gets behind it.
        """
        rows, known = self.rows[samplers], self.given[samplers] + places
        np.add.at(self.given, samplers, 1)
        counted = self._counting[samplers]
        if counted.any():
            fresh, old = counted & generated, counted & ~generated
            self.remembered.count(rows[fresh], upload_index(tokens[fresh], self.device))
            self.remembered.count_given(rows[old], tokens[old])
        newest = self._looking_back[samplers] & (left < MOST_NEWEST)
        if newest.any():
            self.remembered.note(
                rows[newest], known[newest], upload_index(tokens[newest], self.device)
            )

    def parameters(self, samplers: Int32, steps: NDArray[np.uint32]) -> Parameters:
        """The parameters of samplers whose programs are compiled."""
        return self.device_programs.compiled.parameters(samplers, self.seeds[samplers], steps)

    def choose(self, choices: Choices, logits: torch.Tensor) -> torch.Tensor:
        """Tokens int64 `[n]` that the programs choose, whatever they are, of float32 logits `[n,
        vocabulary]`, none NaN, which are left alone.
        """
        tokens = torch.empty(len(logits), dtype=torch.int64, device=self.device)
        for values, places, own in self.device_programs.alike(choices.samplers):
            some, seen, index = choices, logits, None
            if len(places) < len(logits):
                some = choices.rows(np.array(places))
                index = upload_index(np.array(places), self.device)
                seen = logits[index]
            if values is None:
                chosen = choose(seen, self.parameters(some.samplers, some.steps))
            else:
                rows = Rows(self, some, values, np.array(own), seen)
                chosen, following = values.executable.run(rows)
                if self.device.type == "cpu":  # the host would wait for a GPU
                    executable = values.executable
                    self.device_programs.note_nan(some.samplers, chosen, executable, rows)
                if following:
                    values.write(following, rows.own, rows.steps)
            if index is None:
                return chosen
            tokens[index] = chosen
        return tokens

    def note(self, samplers: Int32, steps: NDArray[np.uint32], tokens: torch.Tensor) -> None:
        """Keeps, and remembers, what samplers have chosen: `[n]`, -1 for nothing."""
        self.tokens.index_copy_(0, upload_index(samplers, self.device), tokens)
        counted = self._counting[samplers].nonzero()[0]
        if counted.size:
            chosen = tokens[upload_index(counted, self.device)].to(torch.int64)
            self.remembered.count(self.rows[samplers[counted]], chosen)
        noting = self._looking_back[samplers].nonzero()[0]
        if noting.size:
            some = samplers[noting]
            places = self.given[some] + steps[noting]
            chosen = tokens[upload_index(noting, self.device)].to(torch.int64)
            self.remembered.note(self.rows[some], places, chosen)

    def forget(self, samplers: Int32) -> None:
        """Forgets what samplers have chosen last."""
        if samplers.size:
            self.tokens[upload_index(samplers, self.device)] = -1
