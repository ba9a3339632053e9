//! The context that the choices continue.

use inferlet::{session, text, Context, Error, ErrorCode, Result};

use crate::request::{Prompt, Request};

/// What chat templates write where an image belongs.
const PLACE: &str = "<image>";

/// A context with the prompt, which has not run unless it has images.
pub async fn context(request: &Request) -> Result<Context> {
    let mut context = match &request.adapter {
        Some(name) => Context::with_adapter(&request.model, name)?,
        None => Context::new(&request.model)?,
    };
    match &request.prompt {
        Prompt::Text(prompt) => {
            context.fill(prompt)?;
        }
        Prompt::Tokens(tokens) => {
            check_tokens(request, tokens)?;
            context.append(tokens)?;
        }
        Prompt::Messages(messages, cue) => {
            let name = request.model.name();
            let rendered = text::apply_chat_template(name, messages, *cue)?;
            fill(request, &mut context, &rendered).await?;
        }
    }
    if context.is_empty() {
        return Err(Error::new(ErrorCode::InvalidArgument, "the prompt has no tokens"));
    }
    Ok(context)
}

/// Fills in what the template has rendered: it writes the first token itself, and places of images.
async fn fill(request: &Request, context: &mut Context, rendered: &str) -> Result {
    let tokenizer = request.model.tokenizer();
    let mut parts = rendered.split(PLACE);
    let places = if request.images == 0 { 0 } else { rendered.matches(PLACE).count() };
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
