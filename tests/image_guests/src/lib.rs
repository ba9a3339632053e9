//! Images: what tests launch; the first argument says which. The image comes as a blob.
//!
//! `tests/end_to_end/guests/image.py` does the same in Python.

use inferlet::images::{image_size, tokens_of};
use inferlet::session::receive_blob;
use inferlet::{Context, Error, Model, Result, Sampler, UNKNOWN_TOKEN};

#[inferlet::main]
async fn main(arguments: Vec<String>) -> Result<String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["facts"] => facts().await,
        ["describe", before, after, count] => describe(before, after, count).await,
        ["edit", before, after, count] => edit(before, after, count).await,
        ["try", before, count] => try_it(before, count).await,
        _ => Err(Error::other(format!("no command {arguments:?}"))),
    }
}

/// Size of the image, and how many places it takes.
async fn facts() -> Result<String> {
    let image = receive_blob().await?;
    let (width, height) = image_size(&image)?;
    Ok(format!("{width} x {height}: {}", tokens_of(&Model::load()?, &image)?))
}

/// Token ids that follow some tokens, the image and some more tokens, and those that follow a fork.
async fn describe(before: &str, after: &str, count: &str) -> Result<String> {
    let image = receive_blob().await?;
    let model = Model::load()?;
    let mut context = Context::new(&model)?;
    context.append(&numbers(before)?)?;
    context.image(&image).await?;
    let seen = context.tokens().iter().filter(|&&token| token == UNKNOWN_TOKEN).count();
    if seen != tokens_of(&model, &image)? as usize {
        return Err(Error::other(format!("{seen} places")));
    }
    let mut fork = context.fork()?;
    let mut texts = Vec::new();
    for one in [&mut context, &mut fork] {
        one.append(&numbers(after)?)?;
        texts.push(next(one, count).await?);
    }
    Ok(texts.join("; "))
}

/// Positions after changes of a context with an image, and the token ids that follow each.
async fn edit(before: &str, after: &str, count: &str) -> Result<String> {
    let image = receive_blob().await?;
    let mut context = Context::new(&Model::load()?)?;
    let (before, after) = (numbers(before)?, numbers(after)?);
    let start = before.len();
    let mut found = Vec::new();
    for _ in 0..2 {
        // with an image, without it again, and with it
        context.truncate(start.min(context.len()))?;
        found.push(context.next_position());
        context.append(&before[context.next_position()..])?;
        context.image(&image).await?;
        found.push(context.next_position());
    }
    context.append(&after)?;
    context.flush().await?;
    let mut all = vec![context.fork()?, context.fork()?];
    all[0].truncate(start + 2)?;
    all[1].truncate(start)?;
    for fork in &mut all {
        fork.append(&after)?;
    }
    all.insert(0, context);
    let mut texts = Vec::new();
    for one in &mut all {
        found.push(one.next_position());
        texts.push(next(one, count).await?);
    }
    let found: Vec<_> = found.iter().map(usize::to_string).collect();
    Ok(format!("{}; {}", found.join(" "), texts.join("; ")))
}

/// What is wrong with an image, and the token ids that follow the tokens before it.
async fn try_it(before: &str, count: &str) -> Result<String> {
    let image = receive_blob().await?;
    let mut context = Context::new(&Model::load()?)?;
    context.append(&numbers(before)?)?;
    let error = match context.image(&image).await {
        Ok(()) => String::from("none"),
        Err(error) => error.to_string(),
    };
    Ok(format!("{error}; {}", next(&mut context, count).await?))
}

async fn next(context: &mut Context, count: &str) -> Result<String> {
    let count = numbers(count)?[0] as usize;
    let generator = context.generate(Sampler::greedy()).stop_tokens([]).max_tokens(count);
    Ok(text_of(&generator.collect_tokens().await?))
}

fn numbers(text: &str) -> Result<Vec<u32>> {
    let numbers = text.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>();
    numbers.map_err(|error| Error::other(format!("{text:?}: {error}")))
}

fn text_of(tokens: &[u32]) -> String {
    tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}
