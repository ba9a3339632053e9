//! The inferlet that the benchmarks launch as a component; `bench.py` does the same from source.
//!
//! Arguments: `MODE PROMPT TOKENS` with launch, complete, decode or stream; `prefill LENGTH`, `calls
//! COUNT`, or `idle SECONDS`. A prompt is a JSON list of token ids. With `step-by-step` behind,
//! generations do not run ahead; with `looking` the program chooses from each distribution; with
//! `by-program` it reads and sends each piece of a stream.

use std::num::ParseIntError;
use std::str::FromStr;
use std::time::Duration;

use inferlet::{allocate, runtime, session, Context, Error, Generator, Model, Result, Sampler};

const MOST_LIKELY: u32 = 256;
const STEP_BY_STEP: &str = "step-by-step";
const AT_ONCE: &str = "at-once";
const LOOKING: &str = "looking";
const BY_PROGRAM: &str = "by-program";

#[inferlet::main]
async fn main(arguments: Vec<String>) -> Result<String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        // The paper's: acknowledge, then complete (section 7).
        ["launch", prompt, tokens] => {
            session::send("launched")?;
            complete(prompt, number(tokens)?, true).await?;
        }
        ["complete", prompt, tokens, ref options @ ..] => {
            let ahead = !options.contains(&STEP_BY_STEP);
            return Ok(format!("{:?}", complete(prompt, number(tokens)?, ahead).await?));
        }
        ["decode", prompt, tokens, ref options @ ..] => {
            return Ok(format!("{:?}", decode(prompt, number(tokens)?, options).await?));
        }
        ["stream", prompt, tokens, ref options @ ..] => {
            stream(prompt, number(tokens)?, options.contains(&BY_PROGRAM)).await?;
        }
        ["prefill", length] => return Ok(prefill(number(length)?).await?.to_string()),
        ["calls", count] => return calls(number(count)?),
        ["idle", seconds] => runtime::sleep(Duration::from_secs(number(seconds)?)).await?,
        _ => {
            return Err(Error::usage(
                "launch | complete | decode | stream | prefill | calls | idle",
            ))
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
    told(&mut context).await?;
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

/// As `decode`, and sends the text to the client.
async fn stream(prompt: &str, tokens: usize, by_program: bool) -> Result {
    let mut context = prompted(prompt)?;
    told(&mut context).await?;
    let mut generator = continued(&mut context, tokens, true);
    if !by_program {
        generator.send_text().await?;
        return Ok(());
    }
    while let Some(piece) = generator.next_text().await? {
        session::stream(&piece).await?;
    }
    Ok(())
}

/// Runs the prompt, and waits until the time that the client tells.
async fn told(context: &mut Context) -> Result {
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

/// Median nanoseconds of calls that the control layer answers, over blocks of 100, as JSON.
fn calls(count: usize) -> Result<String> {
    let models = runtime::available_models();
    let model = models.first().ok_or_else(|| Error::other("no model is served"))?;
    let queue = runtime::create_queue(model)?;
    let page = allocate::alloc_kvpage(queue, 1)?;
    let figures = [
        ("monotonic-now", median_ns(count, || drop(runtime::monotonic_now()))),
        ("instance-id", median_ns(count, || drop(runtime::instance_id()))),
        ("kvpage-used", median_ns(count, || drop(allocate::kvpage_used(queue, &[page, 1])))),
        ("pool-stats", median_ns(count, || drop(allocate::pool_stats(queue)))),
    ];
    let fields: Vec<String> =
        figures.iter().map(|(name, ns)| format!("\"{name}\": {ns}")).collect();
    Ok(format!("{{{}}}", fields.join(", ")))
}

/// Median over blocks of the mean nanoseconds of a call within the block.
fn median_ns(count: usize, call: impl Fn()) -> u64 {
    let mut blocks: Vec<u64> = (0..(count / 100).max(1))
        .map(|_| {
            let start = runtime::monotonic_now();
            for _ in 0..100 {
                call();
            }
            (runtime::monotonic_now() - start) / 100
        })
        .collect();
    blocks.sort_unstable();
    blocks[blocks.len() / 2]
}

fn number<N: FromStr<Err = ParseIntError>>(text: &str) -> Result<N> {
    text.parse().map_err(|error| Error::usage(format!("{text}: {error}")))
}
