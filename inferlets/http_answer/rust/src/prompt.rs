//! The context that the choices continue.

use inferlet::{runtime, session, text, Context, Error, ErrorCode, Result, DISTRIBUTION_SIZE};

use crate::report;
use crate::request::{Messages, Prompt, Request};

/// What chat templates write where an image belongs: one of these.
const PLACES: [&str; 2] = ["<image>", "<|image_pad|>"];

/// Characters of the rendered prompt that the gateway is told.
const TAIL: usize = 32;

/// Tokens of a prompt whose distributions are held at once.
const PART: usize = 16;

/// A context with the prompt, which has not run unless it has images, and the end of what the chat
/// template has written.
pub async fn context(request: &Request) -> Result<(Context, String)> {
    let mut tail = String::new();
    let mut context = match &request.adapter {
        Some(name) => Context::with_adapter(&request.model, name)?,
        None => Context::new(&request.model)?,
    };
    rank(request, &context)?;
    match &request.prompt {
        Prompt::Text(prompt) => {
            match request.bare {
                true => context.append(&request.model.tokenizer().encode(prompt)?)?,
                false => context.fill(prompt)?,
            };
        }
        Prompt::Tokens(tokens) => {
            check_tokens(request, tokens)?;
            context.append(tokens)?;
        }
        Prompt::Messages(messages) => {
            let rendered = render(request, messages)?;
            let start = rendered.char_indices().rev().nth(TAIL - 1).map_or(0, |(at, _)| at);
            tail = rendered[start..].to_owned();
            fill(request, &mut context, &rendered).await?;
        }
    }
    if context.is_empty() {
        return Err(Error::new(ErrorCode::InvalidArgument, "the prompt has no tokens"));
    }
    let tokens = context.buffer();
    if let Some(before) = request.truncate.and_then(|most| tokens.len().checked_sub(most)) {
        let kept = tokens[before..].to_vec();
        context.truncate(0)?;
        context.append(&kept)?;
    }
    Ok((context, tail))
}

/// Gives the request's priority to the queue of a context.
pub fn rank(request: &Request, context: &Context) -> Result {
    match request.priority {
        0 => Ok(()),
        priority => runtime::set_queue_priority(context.queue(), priority),
    }
}

/// What the chat template writes, up to the end of a message that is to be continued.
fn render(request: &Request, messages: &Messages) -> Result<String> {
    let name = request.model.name();
    let list = &messages.list;
    let given = match messages.arguments.as_deref().and_then(|all| all.strip_prefix('{')) {
        Some(rest) => format!("{{\"messages\":{list},{rest}"),
        None => list.clone(),
    };
    let mut rendered = text::apply_chat_template(name, &given, messages.cue)?;
    let Some(end) = messages.continued.as_deref().map(str::trim_end) else { return Ok(rendered) };
    let Some(at) = rendered.rfind(end) else {
        let message = format!("the chat template of {name} changes a message: it is not continued");
        return Err(Error::new(ErrorCode::Unsupported, message));
    };
    rendered.truncate(at + end.len());
    Ok(rendered)
}

/// Fills in what the template has rendered: it writes the first token itself, and places of images.
async fn fill(request: &Request, context: &mut Context, rendered: &str) -> Result {
    let tokenizer = request.model.tokenizer();
    let place = PLACES.into_iter().find(|place| rendered.contains(place)).unwrap_or(PLACES[0]);
    let mut parts = rendered.split(place);
    let places = if request.images == 0 { 0 } else { rendered.matches(place).count() };
    if places != request.images {
        let message = format!(
            "{} images were given, and the chat template of {} has {places} places for them",
            request.images,
            request.model.name()
        );
        return Err(Error::new(ErrorCode::InvalidArgument, message));
    }
    if places == 0 {
        context.append(&tokenizer.encode(rendered)?)?;
        return Ok(());
    }
    context.append(&tokenizer.encode(parts.next().unwrap_or_default())?)?;
    for part in parts {
        let image = session::receive_blob().await?;
        context.image(&image).await?;
        context.append(&tokenizer.encode(part)?)?;
    }
    Ok(())
}

/// The log-probabilities of a prompt that has not run, in JSON. It runs in parts: each token of one
/// brings a distribution.
pub async fn logprobs(request: &Request, context: &mut Context, top: usize) -> Result<String> {
    let tokens = context.buffer().to_vec();
    context.truncate(0)?;
    let mut out = String::new();
    for start in (0..tokens.len()).step_by(PART) {
        let part = &tokens[start..tokens.len().min(start + PART)];
        let follow = &tokens[start..tokens.len().min(start + PART + 1)];
        let mut size = DISTRIBUTION_SIZE.max(top as u32);
        let told = loop {
            let found = context.forward(part, size).await?;
            let known =
                found.iter().zip(&follow[1..]).all(|(d, &next)| d.logprob(next).is_finite());
            if known || size >= request.model.vocab_size() {
                break report::of_prompt(follow, &found, top);
            }
            context.truncate(start)?;
            size = request.model.vocab_size(); // a token is less likely than those
        };
        if !told.is_empty() {
            let comma = if out.is_empty() { "" } else { "," };
            out += comma;
            out += &told;
        }
    }
    Ok(out)
}

fn check_tokens(request: &Request, tokens: &[u32]) -> Result {
    let size = request.model.vocab_size();
    match tokens.iter().find(|&&token| token >= size) {
        None => Ok(()),
        Some(token) => Err(Error::new(
            ErrorCode::InvalidArgument,
            format!("token {token} of the prompt is outside the vocabulary (0 to {})", size - 1),
        )),
    }
}
