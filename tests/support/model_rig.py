"""A model served in this process, driven by batches, beside transformers on the same checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from pie_inference import handlers
from pie_inference.handlers.base import ServedModel
from pie_inference.layers import native
from pie_inference.loading.assembly import load_models
from pie_py.config.model import ModelConfig
from pie_py.wire.plan import (
    Attention,
    BatchResult,
    CopyKv,
    Distributions,
    EmbedText,
    Forward,
    MaskKv,
    NextDist,
    Sample,
    Samples,
)
from support.reference import load

Checkpoints = Callable[[str], Path]  # the fixture `checkpoint`: that of a family


def ints(values: ArrayLike) -> NDArray[np.int32]:
    return np.asarray(values, np.int32)


def offsets(counts: Sequence[int]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def tokens_of(count: int, seed: int = 0) -> list[int]:
    """Random tokens of the small vocabularies, none of them special."""
    tokens: list[int] = np.random.default_rng(seed).integers(2, 300, count).tolist()
    return tokens


def causal(count: int) -> NDArray[np.bool_]:
    """What inputs in order see of each other."""
    return np.tril(np.ones((count, count), np.bool_))


def runs_of(visible: NDArray[np.bool_]) -> list[int]:
    """Rows in the contract's run-length form."""
    flat: list[int] = []
    for row in visible:
        lengths, current = [0], False
        for seen in row:
            if bool(seen) != current:
                lengths.append(0)
                current = not current
            lengths[-1] += 1
        flat += [len(lengths), *lengths]
    return flat


def forward_of(
    lengths: Sequence[int], slots: ArrayLike, outputs: Sequence[Sequence[int]], **more: ArrayLike
) -> Forward:
    """A batch of sequences, whose inputs are the first embeds and whose pages are empty.

    Args:
        lengths: inputs of each.
        slots: of the inputs; -1 of one that is not kept.
        outputs: embeds of each.
        more: other fields, or fields with other values.
    """
    count, none = len(lengths), ints([0] * (len(lengths) + 1))
    fields = {
        "input_starts": offsets(lengths),
        "inputs": ints(range(sum(lengths))),
        "page_starts": none,
        "pages": ints([]),
        "page_used": ints([]),
        "has_masked": ints([0] * count),
        "output_slots": ints(slots),
        "output_starts": offsets([len(own) for own in outputs]),
        "outputs": ints([embed for own in outputs for embed in own]),
        "mask_starts": none,
        "mask": ints([]),
    }
    return Forward(**{**fields, **{name: ints(value) for name, value in more.items()}})


def sample_of(
    embeds: Sequence[int],
    samplers: Sequence[int],
    steps: ArrayLike = 0,
    top: ArrayLike = 0,
    masked: ArrayLike = -1,
    masks: NDArray[np.uint32] | None = None,
    drafts: Sequence[int] = (),
) -> Sample:
    """A batch of choices; what is one number is that of each."""
    count = len(embeds)
    return Sample(
        embeds=ints(embeds),
        samplers=ints(samplers),
        steps=np.full(count, steps, np.uint32),
        top=np.full(count, top, np.int32),
        masked=np.full(count, masked, np.int32),
        masks=np.zeros((0, 0), np.uint32) if masks is None else masks,
        drafts=ints(drafts),
    )


def assert_near(found: BatchResult, wanted: BatchResult, probabilities: float = 1e-4) -> None:
    """Results of two workers, of which numbers may differ by rounding."""
    assert found.error == wanted.error
    assert (found.refused or {}) == (wanted.refused or {})
    ours, theirs = found.values, wanted.values
    assert type(ours) is type(theirs)
    match theirs:
        case Distributions():
            np.testing.assert_allclose(ours.probabilities, theirs.probabilities, atol=probabilities)
            np.testing.assert_array_equal(ours.tokens[:, 0], theirs.tokens[:, 0])
        case Samples():
            np.testing.assert_array_equal(ours.tokens, theirs.tokens)
            chosen = theirs.tokens >= 0
            np.testing.assert_allclose(ours.logprobs[chosen], theirs.logprobs[chosen], atol=1e-3)
            np.testing.assert_allclose(ours.top_logprobs, theirs.top_logprobs, atol=1e-3)
        case Attention():
            np.testing.assert_array_equal(ours.starts, theirs.starts)
            np.testing.assert_allclose(ours.values, theirs.values, atol=1e-4)


class Stream:
    """One sequence: its pages, and how many slots are filled."""

    def __init__(self, rig: Rig, pages: list[int]) -> None:
        self.rig = rig
        self.pages = pages
        self.used = 0

    def page_list(self) -> tuple[list[int], list[int]]:
        """Pages that hold something, and the filled slots of each."""
        size = self.rig.page_size
        counts = [min(size, self.used - i * size) for i in range(len(self.pages))]
        held = [(page, count) for page, count in zip(self.pages, counts, strict=True) if count > 0]
        return [p for p, _ in held], [c for _, c in held]

    def slots(self, first: int, end: int) -> list[int]:
        """Slots of the tokens `first` to `end`."""
        size = self.rig.page_size
        return [self.pages[i // size] * size + i % size for i in range(first, end)]


@dataclass
class Step:
    """What one sequence does in a forward."""

    sequence: Stream
    tokens: Sequence[int]
    _: KW_ONLY
    positions: Sequence[int] = ()  # those that follow, if none are given
    outputs: int = 1
    keep: bool = True
    mask: Sequence[int] = ()
    masked: bool = False
    adapter: int = -1
    observed: int = 0
    detail: int = 0
    attends: int = -1
    attend_step: int = 0

    def __post_init__(self) -> None:
        first = self.sequence.used
        self.positions = self.positions or range(first, first + len(self.tokens))


class Rig:
    """A served model, without a worker process around it."""

    def __init__(
        self, folder: Path, *, page_size: int = 16, pages: int = 64, **config: Any
    ) -> None:
        self.page_size = page_size
        served = ModelConfig.model_validate(
            {"source": str(folder), "page_size": page_size, "kv_pages": pages, "embeds": 2048}
            | config
        )
        self.model: ServedModel = load_models([served])[0]
        self.attention: Attention | None = None  # of the last forward
        self._free = list(np.random.default_rng(0).permutation(pages))

    def sequence(self, tokens: int) -> Stream:
        """A sequence with pages for that many tokens, scattered over the pool."""
        count = -(-tokens // self.page_size)
        return Stream(self, [int(self._free.pop()) for _ in range(count)])

    def release(self, sequence: Stream) -> None:
        """Its pages may be another's."""
        self._free += sequence.pages
        sequence.pages = []

    @torch.inference_mode()
    def forward(self, *steps: Step) -> list[torch.Tensor]:
        """One forward batch; logits `[outputs, vocab]` of each sequence, float32."""
        count = sum(len(s.tokens) for s in steps)
        inputs = np.arange(count)
        wanted = [s.outputs for s in steps]
        outputs = 1024 + np.arange(sum(wanted))
        pages = [s.sequence.page_list() for s in steps]
        slots = [
            s.sequence.slots(s.sequence.used, s.sequence.used + len(s.tokens))
            if s.keep
            else [-1] * len(s.tokens)
            for s in steps
        ]
        handlers.embeds.embed_text(
            self.model,
            EmbedText(
                ints([t for s in steps for t in s.tokens]),
                ints([p for s in steps for p in s.positions]),
                ints(inputs),
            ),
        )
        attention = handlers.forward.forward(
            self.model,
            Forward(
                input_starts=offsets([len(s.tokens) for s in steps]),
                inputs=ints(inputs),
                page_starts=offsets([len(p) for p, _ in pages]),
                pages=ints([page for p, _ in pages for page in p]),
                page_used=ints([used for _, u in pages for used in u]),
                has_masked=ints([s.masked for s in steps]),
                output_slots=ints([slot for row in slots for slot in row]),
                output_starts=offsets(wanted),
                outputs=ints(outputs),
                mask_starts=offsets([len(s.mask) for s in steps]),
                mask=ints([m for s in steps for m in s.mask]),
                adapters=ints([s.adapter for s in steps]),
                observed=ints([s.observed for s in steps]),
                detail=ints([s.detail for s in steps]),
                attends=ints([s.attends for s in steps]),
                attend_steps=ints([s.attend_step for s in steps]),
            ),
        )
        self.attention = None if attention is None else attention.get()
        for s in steps:
            if s.keep:
                s.sequence.used += len(s.tokens)
        if not len(outputs):
            return list(torch.split(self.model.embeds.read(ints(outputs)), wanted))
        logits = handlers.sample.logits_of(self.model, ints(outputs)).float()
        return list(torch.split(logits, wanted))

    def read(self, tokens: Sequence[int], **how: Any) -> torch.Tensor:
        """Logits after each token of a new sequence that is read at once, as a `Step` says."""
        step = Step(self.sequence(len(tokens)), tokens, outputs=len(tokens), **how)
        return self.forward(step)[0]

    @torch.inference_mode()
    def run(self, sequence: Stream, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Runs embeds behind what is in the pages of a sequence."""
        pages, used = sequence.page_list()
        slots = sequence.slots(sequence.used, sequence.used + len(inputs))
        held = {"page_starts": [0, len(pages)], "pages": pages, "page_used": used}
        batch = forward_of([len(inputs)], slots, [outputs], inputs=inputs, **held)
        handlers.forward.forward(self.model, batch)
        sequence.used += len(inputs)

    @torch.inference_mode()
    def mask(self, sequence: Stream, hidden: Sequence[int]) -> None:
        """Masks the tokens of a sequence, counted from its first."""
        words = [0] * len(sequence.pages)
        for i in hidden:
            words[i // self.page_size] |= 1 << (i % self.page_size)
        handlers.pages.mask_kv(self.model, MaskKv(ints(sequence.pages), np.array(words, np.uint32)))

    @torch.inference_mode()
    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        handlers.pages.copy_kv(self.model, CopyKv(ints(sources), ints(targets)))

    @torch.inference_mode()
    def next_dist(self, embeds: ArrayLike, k: ArrayLike) -> Distributions:
        batch = NextDist(ints(embeds), ints(k))
        found: Distributions = handlers.sample.next_dist(self.model, batch).get().values
        return found


@torch.inference_mode()
def expected_logits(
    folder: Path,
    tokens: Sequence[int],
    *,
    positions: Sequence[int] | None = None,
    visible: NDArray[np.bool_] | None = None,
) -> torch.Tensor:
    """Logits `[tokens, vocab]` by transformers; `visible` `[tokens, tokens]` replaces causality."""
    options: dict[str, object] = {}
    config = load(folder).config
    if visible is not None:
        options["attention_mask"] = full = _additive(visible)
        window = getattr(config, "sliding_window", None)
        if window is not None:
            at = np.arange(len(tokens)) if positions is None else np.array(positions)
            narrow = _additive(visible & (at[None, :] > at[:, None] - window))
            # Models whose layers differ want a mask for each kind of layer.
            kinds = getattr(config, "layer_types", None)
            options["attention_mask"] = (
                {"full_attention": full, "sliding_attention": narrow} if kinds else narrow
            )
    if positions is not None:
        options["position_ids"] = torch.tensor([list(positions)])
    logits: torch.Tensor = load(folder)(torch.tensor([list(tokens)]), **options).logits[0]
    return logits


def _additive(visible: NDArray[np.bool_]) -> torch.Tensor:
    mask = torch.where(torch.from_numpy(visible), 0.0, torch.finfo(torch.float32).min)
    return mask[None, None]


def multiplies_integers() -> bool:
    """True for kernels that round inputs to integers of 16 bits."""
    variant = vars(native)["best_variant"](Path("/proc/cpuinfo").read_text())
    return variant in ("avx2", "avx2-vnni", "sse2")


def assert_close(found: torch.Tensor, wanted: torch.Tensor, *, few_bits: bool = False) -> None:
    """Logits in float32; of weights in few bits, if one side was computed by kernels for these."""
    near = 4e-3 if few_bits and multiplies_integers() else 1e-4
    torch.testing.assert_close(found, wanted, atol=near, rtol=0)
