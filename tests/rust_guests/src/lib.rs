//! Inferlets that tests and benchmarks launch; the first argument says which.
//!
//! `bad.rs` has the misbehaving ones, `good.rs` the rest, `checks.rs` what tests the SDK itself.

mod bad;
mod checks;
mod good;

use inferlet::{Error, Result};

#[inferlet::main]
async fn main(arguments: Vec<String>) -> Result<String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["trap"] => bad::trap(),
        ["spin"] => bad::spin(),
        ["recurse"] => bad::recurse(),
        ["recurse-with-frames"] => bad::recurse_with_frames(),
        ["allocate"] => bad::allocate(),
        ["flood"] => bad::flood(),
        ["leak", pages] => bad::leak(number(pages)?).await,
        ["panic"] => bad::panic(),
        ["deadlock"] => bad::deadlock().await,
        ["fail"] => Err(Error::other("failed on purpose")),
        ["usage"] => Err(Error::usage("give another argument")),
        ["sleep", milliseconds] => good::sleep(number(milliseconds)?.into()).await,
        ["hold-pages", pages] => good::hold_pages(number(pages)?).await,
        ["greedy", prompt, max_tokens] => good::greedy(prompt, number(max_tokens)?).await,
        ["check", area] => checks::run(area).await,
        _ => Err(Error::usage(format!("no test guest is called by {arguments:?}"))),
    }
}

fn number(text: &str) -> Result<u32> {
    text.parse().map_err(|error| Error::usage(format!("{text}: {error}")))
}
