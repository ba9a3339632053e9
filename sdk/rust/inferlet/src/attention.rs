//! What layers read of a context while it is generated: policies of the literature, to be given as
//! `context.generate(sampler).attend(&attention::quest(64, 2)?)`.
//!
//! Each is a short program of [`device::attend`](crate::device::attend), to be read, changed, or
//! put together with others. What is not kept is not read. Prompts are read in full, and tell those
//! that ask for it what they attend to.

use crate::device::{
    attend, iota, layer, maximum, per_token, per_token_by_head, scores, step, tokens, weights,
    weights_of, where_, Attend, Tensor, HEADS, PAGES, TOKENS,
};
use crate::error::Result;

/// The first tokens and the newest ones (Xiao et al., StreamingLLM, 2024); 4 and 1020 are usual.
/// Keys keep their positions. Without first ones it is a sliding window.
pub fn sinks(first: i64, window: i64) -> Result<Attend> {
    let program = attend(|_| {
        let place = iota(TOKENS);
        place.lt(first) | place.ge(tokens() - window)
    });
    program.with(())
}

/// In each layer but the first, for each head the pages that its query can have the largest weights
/// in (Tang et al., Quest, 2024, with 2 full layers). Heads that share keys read what one of them
/// chooses.
pub fn quest(pages: i64, full_layers: i64) -> Result<Attend> {
    let program = attend(|_| {
        largest(scores(), PAGES, pages) | layer().lt(full_layers)
    });
    program.with(())
}

/// The tokens that the newest one gives the largest weights, as a mean over heads (Oren et al.,
/// TOVA, 2024).
pub fn tova(budget: i64) -> Result<Attend> {
    attend(|_| at(iota(TOKENS), weights().transpose().sum().top(budget))).with(())
}

/// The newest tokens, and of the others for each head those with the largest sums of weights, those
/// that the prompt's tokens give among them (Zhang et al., Heavy-Hitter Oracle, 2023). Heads that
/// share keys read what one of them keeps; or all heads of a layer choose `together`, whose sums take
/// a part of the memory.
pub fn h2o(heavy: i64, recent: i64, together: bool) -> Result<Attend> {
    let program = attend(|state| {
        let given = if together { weights_of(0).transpose().sum() } else { weights_of(0) };
        state.set("sums", state.get("sums") + given);
        let place = iota(TOKENS);
        let newest = place.ge(tokens() - recent);
        let others = where_(newest, -1.0, state.get("sums"));
        match together {
            true => newest | at(place, others.top(heavy)),
            false => newest | largest(others, TOKENS, heavy),
        }
    });
    let sums = if together { per_token(0.0) } else { per_token_by_head(0.0) };
    program.with([("sums", sums)])
}

/// The prompt's last tokens, `window` of them, for each head the tokens before that these give the
/// largest weights, with those around them, `budget` of the prompt together, and all generated ones (Li
/// et al., SnapKV, 2024). Heads that share keys read what one of them keeps. A window of 32 and a
/// kernel of 7 are usual.
pub fn snapkv(budget: i64, window: i64, kernel: i64) -> Result<Attend> {
    let program = attend(|_| {
        let place = iota(TOKENS);
        let newest = place.ge(tokens() - window);
        let mut pooled = where_(newest, 0.0, weights_of(window)).transpose();
        let (reach, mut behind) = (kernel / 2, 0);
        while behind < reach {
            // The largest of as many tokens behind each.
            let more = (behind + 1).min(reach - behind);
            pooled = maximum(pooled, pooled.at(place + more));
            behind += more;
        }
        pooled = maximum(pooled, pooled.at(maximum(place - reach, 0))).transpose();
        let best = largest(where_(newest, -1.0, pooled), TOKENS, (budget - window).max(1));
        // Once the prompt is over, what it has dropped stays away, and nothing else goes.
        newest | best | step().gt(0)
    });
    program.with(())
}

/// Where the largest of each head are, and any that are as large as the last of them.
fn largest(values: Tensor, size: i64, count: i64) -> Tensor {
    let behind = maximum(iota(size).max() + 1 - count, 0);
    values.ge(values.sort().transpose().at(behind).reshape(&[HEADS, 1]))
}

/// True at some places.
fn at(place: Tensor, kept: Tensor) -> Tensor {
    place.lt(0).scatter_max(kept, true)
}
