"""One model's pool of samplers: parameters, device programs, and chosen tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.device import Bool, Int32, Int64, upload, upload_index
from pie_inference.sampling.attend_programs import AttendPrograms, Lens
from pie_inference.sampling.choose import Parameters
from pie_inference.sampling.device_programs import DevicePrograms, Some
from pie_inference.sampling.remembered import RememberedTokens, SavedLogits
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

    def others(self, index: int, rows: Some, vocabulary: int, device: torch.device) -> torch.Tensor:
        """Saved logits of some rows, `[n, vocabulary]`: NaN where there are none to be had."""
        places = self.mixed[rows, index]
        found = self.saved.read(upload_index(places.clip(0), device), vocabulary)
        lost = upload(np.ascontiguousarray(places < 0), device)
        return found.masked_fill(lost[:, None], torch.nan)


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
        """Tokens int64 `[n]`, of float32 logits `[n, vocabulary]`; whatever the programs say."""
        samplers, steps = choices.samplers, choices.steps
        memory = self.rows[samplers], self.given[samplers] + steps
        return self.device_programs.choose(
            samplers,
            steps,
            self.seeds[samplers],
            logits,
            self.remembered,
            memory,
            lambda rows, number: choices.others(number, rows, self.vocabulary, self.device),
            self.attend_programs,
        )

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
