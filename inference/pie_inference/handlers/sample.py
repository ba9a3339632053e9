"""Handlers of what follows hidden states: chosen tokens, distributions, saved logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.device import DeviceFuture, Int64, completed, upload, upload_index
from pie_inference.errors import BadBatch
from pie_inference.handlers.base import ServedModel, require_below, require_lengths, require_offsets
from pie_inference.sampling.choose import NO_NUMBER, NOTHING, top_tokens
from pie_inference.sampling.pool import Choices, SamplerPool
from pie_py.device_programs.language import MOST_BESIDE
from pie_py.wire.plan import (
    LOGIT_ROWS,
    BatchResult,
    Distributions,
    Hidden,
    Int32,
    KeepLogits,
    NextDist,
    ReadHidden,
    Sample,
    Samples,
)

if TYPE_CHECKING:  # machines without a GPU do not load what is for GPUs
    from pie_inference.cuda.fused_sampling import FusedSampling

MAX_CELLS = 1 << 25  # rows times vocabulary handled at once: 128 MiB of logits
RULED_OUT = "every token is ruled out: by the mask, or because no logit is a number"


def sample(model: ServedModel, batch: Sample) -> DeviceFuture[BatchResult]:
    """Samples a token from each embed, and reports rows in which none was left to choose.

    Log-probabilities are those of the model's own distribution: the float32 softmax over the whole
    vocabulary at temperature 1, before device programs and masks.
    """
    _check(model, batch)
    pool = model.samplers
    count = batch.embeds.size
    rows_at_once = max(1, MAX_CELLS // model.network.shape.vocab_size)
    parts = [slice(i, min(i + rows_at_once, count)) for i in range(0, count, rows_at_once)]
    try:
        found = [_sample_rows(model, batch, part) for part in parts]
    except BaseException:
        pool.forget(batch.samplers)  # no older token must pass for the one that was not chosen
        raise
    if batch.drafts.size:
        _settle(pool, batch, [part[0] for part in found])
    tensors = [tensor for part in found for tensor in part]
    return DeviceFuture(tensors, lambda arrays: _answer(pool, batch, parts, arrays))


def _settle(pool: SamplerPool, batch: Sample, chosen: list[torch.Tensor]) -> None:
    """Leaves each sampler with the last token that stands, see `Sample`."""
    found = [tokens[0] if tokens.ndim == 2 else tokens for tokens in chosen]
    tokens = torch.cat(found).to(torch.int64)
    firsts = _firsts(batch)
    count = batch.samplers.size
    owners = np.repeat(np.arange(firsts.size), np.diff(firsts, append=count))
    drafts = upload_index(batch.drafts, pool.device)
    rows = torch.arange(count, device=pool.device)
    ends = torch.where((tokens != drafts) | (drafts < 0), rows, count)
    last = rows.new_full((firsts.size,), count).scatter_reduce_(
        0, upload_index(owners.astype(np.int32), pool.device), ends, "amin"
    )
    pool.tokens.index_copy_(0, upload_index(batch.samplers[firsts], pool.device), tokens[last])


def _firsts(batch: Sample) -> NDArray[np.intp]:
    """The first row of each sampler."""
    return np.flatnonzero(np.diff(batch.samplers, prepend=-1))


def _answer(
    pool: SamplerPool, batch: Sample, parts: list[slice], arrays: list[NDArray[Any]]
) -> BatchResult:
    """Joins the parts of a batch: tokens, log-probabilities, and perhaps the most likely tokens."""
    count, width = batch.embeds.size, int(batch.top.max(initial=0))
    answer = Samples(
        tokens=np.full(count, -1, np.int32),
        logprobs=np.zeros(count, np.float32),
        top_tokens=np.zeros((count, width), np.int32),
        top_logprobs=np.zeros((count, width), np.float32),
    )
    chosen = np.full(count, NOTHING, np.int64)  # by programs, whether it was taken or not
    each = iter(arrays)
    for rows in parts:
        first = next(each)
        if first.ndim == 2:  # what is fused comes as one array, log-probabilities by their bits
            answer.tokens[rows], answer.logprobs[rows] = first[0], first[1].view(np.float32)
        else:
            answer.tokens[rows], answer.logprobs[rows], chosen[rows] = first, next(each), next(each)
        asking = batch.top[rows].nonzero()[0]
        if asking.size:
            some, at = slice(int(batch.top[rows].max())), asking + rows.start
            answer.top_tokens[at, some], answer.top_logprobs[at, some] = next(each), next(each)
    refused: dict[int, str] = {}
    for row in (answer.tokens < 0).nonzero()[0].tolist():
        node = pool.device_programs.node_at_fault(batch.samplers.item(row))
        refused[row] = _why_not(chosen.item(row), node, pool.vocabulary)
    return BatchResult(values=answer, refused=refused)


def _why_not(token: int, node: str | None, vocabulary: int) -> str:
    """Why there is no token; a program's node may have chosen one that was not taken."""
    if node is None:
        return RULED_OUT
    if 0 <= token < vocabulary:
        why = "which the grammar or mask rules out"
    elif token == NO_NUMBER:
        why = "which is none: its numbers are NaN or infinite, as after a division by 0"
    elif token == NOTHING:
        why = "which is none: it rules out all that the grammar or mask allows"
    else:
        why = f"which is not in the vocabulary (0 to {vocabulary - 1})"
    return f"the device program chose token {token}, {why}: {node}"


def _sample_rows(model: ServedModel, batch: Sample, rows: slice) -> list[torch.Tensor]:
    """Tokens, log-probabilities, what was chosen whether it is a token or not, and the most likely
    tokens and theirs if a row wants any; of what is fused the first two as one.
    """
    pool, samplers = model.samplers, batch.samplers[rows]
    choices = Choices(samplers, batch.steps[rows], batch.mixed[rows], model.saved_logits)
    compiled = pool.device_programs.compiled
    if model.fused_sampling is not None and compiled.has[samplers].all():
        return _sample_fused(model, model.fused_sampling, batch, rows)
    raw = logits_of(model, batch.embeds[rows])
    on_cpu = model.device.type == "cpu"
    masked = (batch.masked[rows] >= 0).nonzero()[0].astype(np.int32)
    is_plain = not (masked.size or batch.top[rows].any())
    if on_cpu and is_plain and not (compiled.drawing | ~compiled.has)[samplers].any():
        likeliest = _likeliest(raw)
        if likeliest is not None:
            pool.note(samplers, choices.steps, likeliest[0])
            return [*likeliest, likeliest[0]]
    # Programs see what the model says, not only the differences.
    logits, whole = _normalized(raw) if on_cpu else _on_gpu(raw, not compiled.has[samplers].all())
    wanted = logits
    forced = None  # of each row the token, if it may have no other
    if on_cpu and masked.size:
        forced = _only_tokens(batch, rows)
        forced[~compiled.has[samplers]] = NOTHING
        masked = masked[forced[masked] == NOTHING]
    if masked.size:
        may = _allowed(batch.masks[batch.masked[rows][masked]], pool)
        index = upload_index(masked, model.device)
        wanted = logits.clone()
        wanted[index] = wanted[index].masked_fill_(~may, -torch.inf)
    if forced is None or (forced == NOTHING).all():
        chosen = pool.choose(choices, wanted)
    else:
        chosen, free = upload(forced, model.device), np.flatnonzero(forced == NOTHING)
        if free.size:
            chosen[free] = pool.choose(choices.rows(free), wanted[free])
    tokens = _possible(chosen, wanted)
    logprobs = logits.gather(1, tokens.clamp(min=0)[:, None]).squeeze(1)
    if whole is not None:
        logprobs = logprobs - whole
    pool.note(samplers, choices.steps, tokens)
    return [tokens, logprobs, chosen, *_top(batch.top[rows], logits, whole)]


def _only_tokens(batch: Sample, rows: slice) -> Int64:
    """Of each row `[n]` the token that is the only one its mask allows, or `NOTHING`. None has to
    be drawn there: so it is with all tokens that a durable instance chose in an earlier life.
    """
    masked = batch.masked[rows]
    tokens = np.full(masked.size, NOTHING, np.int64)
    some = np.flatnonzero(masked >= 0)
    words = batch.masks[masked[some]]
    found = words != 0
    places = found.argmax(1)
    word = words[np.arange(some.size), places]
    one = (found.sum(1) == 1) & (word & (word - np.uint32(1)) == 0)
    tokens[some[one]] = 32 * places[one] + np.log2(word[one]).astype(np.int64)
    return tokens


def _allowed(words: NDArray[np.uint32], pool: SamplerPool) -> torch.Tensor:
    """Bits of words `[n, w]` as booleans `[n, vocabulary]`: bit `t % 32` of word `t // 32`."""
    octets = upload(np.ascontiguousarray(words).view(np.uint8), pool.device)
    shifts = torch.arange(8, dtype=torch.uint8, device=pool.device)
    bits = (octets[:, :, None] >> shifts) & 1
    return bits.flatten(1)[:, : pool.vocabulary].bool()


def logits_of(model: ServedModel, embeds: Int32, *, every: bool = False) -> torch.Tensor:
    """Logits after embeds, by the heads of the adapters that they were computed with."""
    adapters = model.adapters.rows(model.embeds.owners[embeds])
    return model.network.logits(model.embeds.read(embeds), every=every, adapters=adapters)


def _possible(tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Tokens `[n]`; -1 for one outside the vocabulary, or with a logit of minus infinity."""
    inside = tokens.clamp(0, logits.shape[1] - 1)
    may = logits.gather(1, inside[:, None]).squeeze(1) > -torch.inf
    return tokens.where(may.logical_and_(inside == tokens), -1)


def _sample_fused(
    model: ServedModel, fused: FusedSampling, batch: Sample, rows: slice
) -> list[torch.Tensor]:
    """As `_sample_rows`; tokens and log-probabilities are one tensor."""
    samplers = batch.samplers[rows]
    parameters = model.samplers.parameters(samplers, batch.steps[rows])
    table = fused.table(parameters, samplers, batch.embeds[rows], batch.masked[rows])
    hidden = model.embeds.hidden.index_select(0, fused.embeds_of(table))
    owners = model.embeds.owners[batch.embeds[rows]]
    raw = model.network.logits(hidden, adapters=model.adapters.rows(owners))
    chosen = fused.choose(raw, table, batch.masks)
    if not batch.top[rows].any():
        return [chosen]
    return [chosen, *_top(batch.top[rows], *_on_gpu(raw, exactly=True))]


def _likeliest(raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """On the CPU: the most likely token of each row and its log-probability, as `choose` would have
    them.

    The logits' memory serves for all. None, and they are as they were, if a row's best is no finite
    number.
    """
    logits = raw.float()
    array = logits.numpy()
    tokens = array.argmax(1)  # the first of equal ones, or the first that is no number
    best = array[np.arange(tokens.size), tokens]
    if not np.isfinite(best).all():
        return None
    highest = torch.from_numpy(best)
    whole = logits.sub_(highest[:, None]).exp_().sum(1).log_().add_(highest)
    return torch.from_numpy(tokens), highest - whole


def _normalized(raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Logits in float32 and, of each row, what its log-probabilities are below them.

    What is no number counts as minus infinity.
    """
    logits = raw.float()
    whole = logits.logsumexp(1)
    if not bool(whole.isfinite().all()):
        logits = logits.nan_to_num(nan=-torch.inf, posinf=torch.finfo(torch.float32).max)
        whole = logits.logsumexp(1)
    return logits, whole


def _on_gpu(raw: torch.Tensor, exactly: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As `_normalized`, without asking the device, and in one kernel where only differences matter.

    Then the log-probabilities are the logits. A row with what is no number has nothing else in it.
    """
    if not exactly:
        return torch.log_softmax(raw, 1, torch.float32), None
    logits = raw.float().nan_to_num_(
        nan=-torch.inf, posinf=torch.finfo(torch.float32).max, neginf=-torch.inf
    )
    return logits, logits.logsumexp(1)


def _top(wanted: Int32, logits: torch.Tensor, whole: torch.Tensor | None) -> list[torch.Tensor]:
    """The most likely tokens of those rows that want them, and log-probabilities, all as many."""
    asking = np.flatnonzero(wanted)
    if not asking.size:
        return []
    some = upload(asking, logits.device)
    tokens = top_tokens(logits[some], int(wanted.max()))
    logprobs = logits[some].gather(1, tokens)
    return [tokens, logprobs if whole is None else logprobs - whole[some, None]]


def _check(model: ServedModel, batch: Sample) -> None:
    vocabulary = model.network.shape.vocab_size
    require_lengths("sample", batch.embeds, batch.samplers, batch.steps, batch.top, batch.masked)
    require_below("sample: embed", batch.embeds, model.embeds.size)
    require_below("sample: sampler", batch.samplers, model.samplers.size)
    require_below("sample: top", batch.top, vocabulary + 1)
    require_below("sample: mask + 1", batch.masked + 1, len(batch.masks) + 1)
    if batch.masks.ndim != 2 or (len(batch.masks) and batch.masks.shape[1] * 32 < vocabulary):
        raise BadBatch(f"sample: masks {batch.masks.shape} do not cover {vocabulary} tokens")
    if batch.mixed.size:
        if batch.mixed.shape != (batch.embeds.size, MOST_BESIDE):
            raise BadBatch(f"sample: rows {batch.mixed.shape} to mix in")
        require_below("sample: saved row", batch.mixed.clip(0), LOGIT_ROWS)
    samplers = batch.samplers
    if batch.drafts.size:
        require_lengths("sample: drafts", batch.drafts, samplers)
        samplers = samplers[_firsts(batch)]
        ends = np.append(_firsts(batch)[1:], batch.samplers.size) - 1
        if (batch.drafts[ends] >= 0).any():
            raise BadBatch("sample: a sampler's last row is guessed")
    if len(set(samplers.tolist())) != samplers.size:
        raise BadBatch("sample: a sampler is in one batch twice")


def next_dist(model: ServedModel, batch: NextDist) -> DeviceFuture[BatchResult]:
    """Top-K tokens and their probabilities in the float32 softmax over the whole vocabulary.

    Equal logits are ordered by token id, so that the first token is that of `argmax`.
    """
    require_lengths("next_dist", batch.embeds, batch.k)
    require_below("next_dist: embed", batch.embeds, model.embeds.size)
    vocabulary = model.network.shape.vocab_size
    if not batch.k.size:
        nothing = Distributions(np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32))
        return completed(BatchResult(values=nothing))
    if int(batch.k.min()) < 1 or int(batch.k.max()) > vocabulary:
        raise BadBatch(f"next_dist: k is not in 1 .. {vocabulary}")
    logits = logits_of(model, batch.embeds).float()
    tokens = top_tokens(logits, int(batch.k.max()))
    probabilities = logits.softmax(1).gather(1, tokens)
    return DeviceFuture(
        [tokens.to(torch.int32), probabilities],
        lambda arrays: BatchResult(values=Distributions(*arrays)),
    )


def read_hidden(model: ServedModel, batch: ReadHidden) -> DeviceFuture[BatchResult]:
    """Means of hidden states, in float32."""
    counts = np.diff(batch.starts)
    require_offsets("read_hidden: starts", batch.starts, counts.size, batch.embeds.size)
    require_below("read_hidden: embed", batch.embeds, model.embeds.size)
    if not counts.all():
        raise BadBatch("read_hidden: a mean of nothing")
    owners = upload_index(np.repeat(np.arange(counts.size), counts).astype(np.int32), model.device)
    states = model.embeds.read(batch.embeds).float()
    means = states.new_zeros((counts.size, states.shape[1])).index_reduce_(
        0, owners, states, "mean", include_self=False
    )
    return DeviceFuture([means], lambda arrays: BatchResult(values=Hidden(*arrays)))


def keep_logits(model: ServedModel, batch: KeepLogits) -> None:
    """Saves the logits after embeds, for choices of this model or another one to mix in."""
    require_lengths("keep_logits", batch.embeds, batch.rows)
    require_below("keep_logits: embed", batch.embeds, model.embeds.size)
    require_below("keep_logits: row", batch.rows, LOGIT_ROWS)
    logits = logits_of(model, batch.embeds, every=True)
    model.saved_logits.put(upload_index(batch.rows, model.device), logits)
