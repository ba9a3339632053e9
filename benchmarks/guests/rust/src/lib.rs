//! The inferlet that the benchmarks launch as a component; `bench.py` does the same from source.
//!
//! Arguments: `complete` or `decode`, a prompt, the number of tokens; `prefill LENGTH`, or `idle
//! SECONDS`. A prompt is a JSON list of token ids. With `step-by-step` behind, generations do not run
//! ahead; with `looking` the program chooses from each distribution.

use std::num::ParseIntError;
use std::str::FromStr;
use std::time::Duration;

use inferlet::{runtime, session, Context, Error, Generator, Model, Result, Sampler};

const MOST_LIKELY: u32 = 256;
const STEP_BY_STEP: &str = "step-by-step";
const AT_ONCE: &str = "at-once";
const LOOKING: &str = "looking";

#[inferlet::main]
async fn main(arguments: Vec<String>) -> Result<String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["complete", prompt, tokens, ref options @ ..] => {
            let ahead = !options.contains(&STEP_BY_STEP);
            return Ok(format!("{:?}", complete(prompt, number(tokens)?, ahead).await?));
        }
        ["decode", prompt, tokens, ref options @ ..] => {
            return Ok(format!("{:?}", decode(prompt, number(tokens)?, options).await?));
        }
        ["prefill", length] => return Ok(prefill(number(length)?).await?.to_string()),
        ["idle", seconds] => runtime::sleep(Duration::from_secs(number(seconds)?)).await?,
        _ => {
            return Err(Error::usage("complete | decode | prefill | idle"))
        }
    }
    Ok(String::new())
}

/// Continues token ids greedily, whatever the model's stop tokens; when each token came, ns.
async fn complete(prompt: &str, tokens: usize, ahead: bool) -> Result<Vec<u64>> {
    let mut context = prompted(prompt)?;
    let mut generator = continued(&mut context, tokens, ahead);
    let mut times = Vec::with_capacity(tokens);
    while generator.next_token().await?.is_some() {
        times.push(runtime::monotonic_now());
    }
    Ok(times)
}

/// As `complete`, but begins to decode at the time that the client tells. If all is read at once,
/// the times before and after.
async fn decode(prompt: &str, tokens: usize, options: &[&str]) -> Result<Vec<u64>> {
    let mut context = prompted(prompt)?;
    wait_for_start(&mut context).await?;
    let mut generator = continued(&mut context, tokens, !options.contains(&STEP_BY_STEP));
    if options.contains(&AT_ONCE) {
        let begin = runtime::monotonic_now();
        generator.collect_tokens().await?;
        return Ok(vec![begin, runtime::monotonic_now()]);
    }
    let mut times = Vec::with_capacity(tokens);
    if options.contains(&LOOKING) {
        while times.len() < tokens {
            let likely = generator.distribution(MOST_LIKELY).await?;
            generator.accept(likely.max_index())?;
            times.push(runtime::monotonic_now());
        }
        return Ok(times);
    }
    while generator.next_token().await?.is_some() {
        times.push(runtime::monotonic_now());
    }
    Ok(times)
}

/// Runs the prompt, and waits until the time that the client tells.
async fn wait_for_start(context: &mut Context) -> Result {
    context.flush().await?; // and no token yet: the server would run ahead meanwhile
    session::send("ready")?;
    let start: u64 = number(&session::receive().await?)?;
    let left = start.saturating_sub(runtime::monotonic_now());
    runtime::sleep(Duration::from_nanos(left)).await
}

/// Runs a random prompt through the model; how long that took, ms.
async fn prefill(length: u32) -> Result<f64> {
    let start = runtime::monotonic_now();
    let bytes = runtime::random_bytes(length)?;
    let mut context = Context::new(&Model::load()?)?;
    context.append(&bytes.iter().map(|byte| u32::from(*byte) + 16).collect::<Vec<u32>>())?;
    context.flush().await?;
    Ok((runtime::monotonic_now() - start) as f64 / 1e6)
}

/// Continues a context greedily, whatever the model's stop tokens.
fn continued(context: &mut Context, tokens: usize, ahead: bool) -> Generator<'_> {
    let generator = context.generate(Sampler::greedy()).max_tokens(tokens);
    generator.stop_tokens([]).run_ahead(ahead)
}

/// A context that holds a prompt.
fn prompted(prompt: &str) -> Result<Context> {
    let tokens: Vec<u32> = prompt
        .trim_matches(['[', ']'])
        .split(',')
        .map(|token| number(token.trim()))
        .collect::<Result<_>>()?;
    let mut context = Context::new(&Model::load()?)?;
    context.append(&tokens)?;
    Ok(context)
}

fn number<N: FromStr<Err = ParseIntError>>(text: &str) -> Result<N> {
    text.parse().map_err(|error| Error::usage(format!("{text}: {error}")))
}
