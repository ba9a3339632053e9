//! Tells the gateway what it needs to know of a model's tokens, once.

use crate::report::PART;
use inferlet::{json, runtime, session, Model, Result};

/// Sends `["model", [[text, id], ...], [name, ...], [text, ...]]` with the special tokens, what the
/// chat template reads beside messages and the added tokens that stand in it, and then the bytes of
/// all tokens: messages of bytes in which the length of each token, four bytes, precedes it.
pub async fn run(model: &Model) -> Result {
    let tokenizer = model.tokenizer();
    let special: Vec<String> = tokenizer
        .special_tokens()?
        .iter()
        .map(|(text, token)| format!("[{},{token}]", json::quote(text)))
        .collect();
    let facts = json::parse(&runtime::model_info(model.name())?)?;
    let texts = |name: &str| {
        let list = facts.get(name).and_then(json::Value::as_list).unwrap_or_default();
        let quoted = list.iter().filter_map(json::Value::as_str).map(json::quote);
        quoted.collect::<Vec<String>>().join(",")
    };
    let (arguments, markers) = (texts("chat_arguments"), texts("chat_markers"));
    let told = format!("[\"model\",[{}],[{arguments}],[{markers}]]", special.join(","));
    session::stream(&told).await?;
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
