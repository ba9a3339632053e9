//! Policies of the literature for what layers read of a context while it is generated, as
//! `context.generate(sampler).attend(&attention::quest(64, 2))`.
//!
//! Each is a short program of the stage `attend`, whose text the server has
//! (`pie_py/device_programs/rules/attention.py`), to be read, changed, or put together with others in
//! one of [`device::attend`](crate::device::attend). What is not kept is not read. Prompts are read in
//! full, and tell those that ask for it what they attend to.

use crate::device::{named_attend, per_token, per_token_by_head, Attend};

/// The first tokens and the newest ones (Xiao et al., StreamingLLM, 2024); 4 and 1020 are usual.
/// Keys keep their positions. Without first ones it is a sliding window.
pub fn sinks(first: i64, window: i64) -> Attend {
    named_attend("sinks").constant("first", first).constant("window", window).with(())
}

/// In each layer but the first, for each head the pages that its query can have the largest weights
/// in (Tang et al., Quest, 2024, with 2 full layers). Heads that share keys read what one of them
/// chooses.
pub fn quest(pages: i64, full_layers: i64) -> Attend {
    named_attend("quest").constant("pages", pages).constant("full_layers", full_layers).with(())
}

/// The tokens that the newest one gives the largest weights, as a mean over heads (Oren et al.,
/// TOVA, 2024).
pub fn tova(budget: i64) -> Attend {
    named_attend("tova").constant("budget", budget).with(())
}

/// The newest tokens, and of the others for each head those with the largest sums of weights, those
/// that the prompt's tokens give among them (Zhang et al., Heavy-Hitter Oracle, 2023). Heads that
/// share keys read what one of them keeps; or all heads of a layer choose `together`, whose sums take
/// a part of the memory.
pub fn h2o(heavy: i64, recent: i64, together: bool) -> Attend {
    let program = named_attend("h2o").constant("heavy", heavy).constant("recent", recent);
    let sums = if together { per_token(0.0) } else { per_token_by_head(0.0) };
    program.constant("together", together).with([("sums", sums)])
}

/// The prompt's last tokens, `window` of them, for each head the tokens before that these give the
/// largest weights, with those around them, `budget` of the prompt together, and all generated ones (Li
/// et al., SnapKV, 2024). Heads that share keys read what one of them keeps. A window of 32 and a
/// kernel of 7 are usual.
pub fn snapkv(budget: i64, window: i64, kernel: i64) -> Attend {
    let program = named_attend("snapkv").constant("budget", budget).constant("window", window);
    program.constant("kernel", kernel).with(())
}
