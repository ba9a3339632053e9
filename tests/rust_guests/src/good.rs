//! Programs that behave.

use std::time::Duration;

use inferlet::allocate::{alloc_kvpage, kvpage_used};
use inferlet::runtime::create_queue;
use inferlet::{runtime, session, Context, Model, Result, Sampler};

pub async fn sleep(milliseconds: u64) -> Result<String> {
    runtime::sleep(Duration::from_millis(milliseconds)).await?;
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
