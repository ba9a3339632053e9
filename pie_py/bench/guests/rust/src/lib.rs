//! The inferlet that the benchmarks launch as a component; `bench.py` does the same from source.
//!
//! Arguments: `launch PROMPT TOKENS`, `complete PROMPT TOKENS`, `calls COUNT`, or `idle SECONDS`.
//! A prompt is a JSON list of token ids.

use std::time::Duration;

use inferlet::{allocate, runtime, session, Context, Error, Model, Result, Sampler};

#[inferlet::main]
async fn main(arguments: Vec<String>) -> Result<String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        // The paper's: acknowledge, then complete (section 7).
        ["launch", prompt, tokens] => {
            session::send("launched")?;
            complete(prompt, number(tokens)?).await?;
        }
        ["complete", prompt, tokens] => {
            return Ok(format!("{:?}", complete(prompt, number(tokens)?).await?));
        }
        ["calls", count] => return calls(number(count)?),
        ["idle", seconds] => runtime::sleep(Duration::from_secs(number(seconds)? as u64)).await?,
        _ => return Err(Error::usage("launch | complete | calls | idle")),
    }
    Ok(String::new())
}

/// Continues token ids greedily, whatever the model's stop tokens; when each token came, ns.
async fn complete(prompt: &str, tokens: usize) -> Result<Vec<u64>> {
    let prompt: Vec<u32> = prompt
        .trim_matches(['[', ']'])
        .split(',')
        .map(|token| number(token.trim()).map(|token| token as u32))
        .collect::<Result<_>>()?;
    let mut context = Context::new(&Model::load()?)?;
    context.append(&prompt)?;
    let mut generator = context.generate(Sampler::greedy()).max_tokens(tokens).stop_tokens([]);
    let mut times = Vec::with_capacity(tokens);
    while generator.next_token().await?.is_some() {
        times.push(runtime::monotonic_now());
    }
    Ok(times)
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

fn number(text: &str) -> Result<usize> {
    text.parse().map_err(|error| Error::usage(format!("{text}: {error}")))
}
