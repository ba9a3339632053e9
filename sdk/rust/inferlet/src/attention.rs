//! What layers read of a context while it is generated: policies of the literature, to be given as
//! `context.generate(sampler).attend(&attention::quest(64, 2)?)`.
//!
//! Each is a short program of [`device::attend`](crate::device::attend), to be read, changed, or
//! put together with others. What is not kept is not read. Prompts are read in full, and tell those
//! that ask for it what they attend to.

use crate::device::{
    attend, iota, layer, maximum, per_token, scores, step, tokens, weights, weights_of, where_,
    Attend, Tensor, HEADS, PAGES, TOKENS,
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
        let behind = maximum(iota(PAGES).max() + 1 - pages, 0);
        let likely = scores();
        let least = likely.sort().transpose().at(behind);
        likely.ge(least.reshape(&[HEADS, 1])) | layer().lt(full_layers)
    });
    program.with(())
}

/// The tokens that the newest one gives the largest weights, as a mean over heads (Oren et al.,
/// TOVA, 2024).
pub fn tova(budget: i64) -> Result<Attend> {
    attend(|_| at(iota(TOKENS), weights().transpose().sum().top(budget))).with(())
}

/// The newest tokens, and of the others those with the largest sums of weights, those that the
/// prompt's tokens give among them (Zhang et al., Heavy-Hitter Oracle, 2023).
pub fn h2o(heavy: i64, recent: i64) -> Result<Attend> {
    let program = attend(|state| {
        state.set("sums", state.get("sums") + weights_of(0).transpose().sum());
        let place = iota(TOKENS);
        let newest = place.ge(tokens() - recent);
        newest | at(place, where_(newest, -1.0, state.get("sums")).top(heavy))
    });
    program.with([("sums", per_token(0.0))])
}

/// The prompt's last tokens, `window` of them, the tokens before that these give the largest weights,
/// with those around them, `budget` of the prompt together, and all generated ones (Li et al., SnapKV,
/// 2024; for all heads of a layer the same). A window of 32 and a kernel of 7 are usual.
pub fn snapkv(budget: i64, window: i64, kernel: i64) -> Result<Attend> {
    let program = attend(|_| {
        let place = iota(TOKENS);
        let newest = place.ge(tokens() - window);
        let given = where_(newest, 0.0, weights_of(window).transpose().sum());
        let mut pooled = given;
        for distance in 1..=kernel / 2 {
            for other in [place - distance, place + distance] {
                pooled = maximum(pooled, given.at(other));
            }
        }
        let best = where_(newest, -1.0, pooled).top((budget - window).max(1));
        // Once the prompt is over, what it has dropped stays away, and nothing else goes.
        newest | at(place, best) | step().gt(0)
    });
    program.with(())
}

/// True at some places.
fn at(place: Tensor, kept: Tensor) -> Tensor {
    place.lt(0).scatter_max(kept, true)
}
