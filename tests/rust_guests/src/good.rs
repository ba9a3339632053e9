//! Programs that behave.

use std::time::Duration;

use inferlet::allocate::{alloc_kvpage, kvpage_used};
use inferlet::runtime::create_queue;
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
