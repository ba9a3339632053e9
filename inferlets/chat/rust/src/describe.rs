//! Tells the gateway what it needs to know of a model's tokens, once.

use inferlet::{json, session, Model, Result};

/// Bytes of the vocabulary in one message.
const PART: usize = 1 << 20;

/// Sends `["model", [[text, id], ...]]` with the special tokens, and then the bytes of all tokens:
/// messages of bytes in which the length of each token, four bytes, precedes it.
pub async fn run(model: &Model) -> Result {
    let tokenizer = model.tokenizer();
    let special: Vec<String> = tokenizer
        .special_tokens()?
        .iter()
        .map(|(text, token)| format!("[{},{token}]", json::quote(text)))
        .collect();
    session::stream(&format!("[\"model\",[{}]]", special.join(","))).await?;
    let mut part = Vec::with_capacity(PART);
    for token in tokenizer.vocabs()? {
        part.extend((token.len() as u32).to_le_bytes());
        part.extend(token);
        if part.len() >= PART {
            session::stream_blob(&part).await?;
            part.clear();
        }
    }
    session::stream_blob(&part).await
}
