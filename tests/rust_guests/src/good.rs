//! Programs that behave.

use std::time::Duration;

use inferlet::allocate::{alloc_kvpage, kvpage_used};
use inferlet::runtime::{create_queue, instance_id, monotonic_now, now};
use inferlet::{runtime, session, Context, Model, Result, Sampler};

/// Sends back every text until an empty one comes.
pub async fn echo() -> Result<String> {
    let mut count = 0;
    loop {
        let message = session::receive().await?;
        if message.is_empty() {
            return Ok(format!("{count} messages"));
        }
        session::stream(&message).await?;
        count += 1;
    }
}

/// Sends back every blob until an empty one comes.
pub async fn echo_blobs() -> Result<String> {
    let mut count = 0;
    loop {
        let blob = session::receive_blob().await?;
        if blob.is_empty() {
            return Ok(format!("{count} blobs"));
        }
        session::stream_blob(&blob).await?;
        count += 1;
    }
}

pub async fn sleep(milliseconds: u64) -> Result<String> {
    runtime::sleep(Duration::from_millis(milliseconds)).await?;
    Ok(String::new())
}

/// The least a program can do that a client notices.
pub fn first_message() -> Result<String> {
    session::send("here")?;
    Ok(String::new())
}

/// Holds pages until the client says something.
pub async fn hold_pages(pages: u32) -> Result<String> {
    let queue = create_queue(Model::load()?.name())?;
    let first = alloc_kvpage(queue, pages)?;
    session::send("holding")?;
    session::receive().await?;
    Ok(format!("{:?}", kvpage_used(queue, &[first, pages])?))
}

/// Greedy tokens from the SDK, and the prompt's, as JSON.
pub async fn greedy(prompt: &str, max_tokens: u32) -> Result<String> {
    let mut context = Context::new(&Model::load()?)?;
    context.fill(prompt)?;
    let prompt = format!("{:?}", context.buffer());
    let tokens =
        context.generate(Sampler::greedy()).stop_tokens([]).max_tokens(max_tokens as usize);
    Ok(format!(r#"{{"prompt":{prompt},"tokens":{:?}}}"#, tokens.collect_tokens().await?))
}

/// The likeliest tokens after a prompt and their probabilities, as JSON.
pub async fn distribution(prompt: &str, k: u32) -> Result<String> {
    let mut context = Context::new(&Model::load()?)?;
    context.fill(prompt)?;
    let found = context.distribution(k).await?;
    Ok(format!(r#"{{"tokens":{:?},"probabilities":{:?}}}"#, found.tokens, found.probabilities))
}

/// Times calls that the control layer answers by itself: the median nanoseconds of each, as JSON.
pub async fn bench_calls(count: u32) -> Result<String> {
    let model = Model::load()?;
    let queue = create_queue(model.name())?;
    let page = [alloc_kvpage(queue, 1)?, 1];
    let clock = median(count, || ());
    let mut parts = vec![format!(r#""monotonic-now":{clock}"#)];
    let mut measure = |name: &str, call: &mut dyn FnMut()| {
        // From one reading of the clock to the next, there is a reading besides the call.
        parts.push(format!(r#""{name}":{}"#, median(count, call).saturating_sub(clock)));
    };
    measure("now", &mut || drop(now()));
    measure("instance-id", &mut || drop(instance_id()));
    measure("kvpage-used", &mut || drop(kvpage_used(queue, &page)));
    measure("available-models", &mut || drop(runtime::available_models()));
    measure("set-queue-priority", &mut || drop(runtime::set_queue_priority(queue, 0)));
    measure("alloc-dealloc-emb", &mut || {
        if let Ok(embed) = inferlet::allocate::alloc_emb(queue, 1) {
            let _ = inferlet::allocate::dealloc_emb(queue, &[embed, 1]);
        }
    });
    let mut turns = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let start = monotonic_now();
        inferlet::task::yield_now().await?;
        turns.push(monotonic_now() - start);
    }
    turns.sort_unstable();
    parts.push(format!(r#""sleep-wait-take":{}"#, turns[turns.len() / 2].saturating_sub(clock)));
    Ok(format!("{{{}}}", parts.join(",")))
}

/// Median nanoseconds of a call and one reading of the clock.
fn median(count: u32, mut call: impl FnMut()) -> u64 {
    let mut times: Vec<u64> = (0..count)
        .map(|_| {
            let start = monotonic_now();
            call();
            monotonic_now() - start
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}
