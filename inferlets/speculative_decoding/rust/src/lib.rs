//! Speculative decoding by prompt lookup: what followed the last tokens when they came before is a
//! draft, which the model verifies in one forward. The output is that of greedy decoding.
//!
//! Options: `--prompt TEXT`, `--draft-tokens N` (4), `--max-tokens N` (64), `--model-name NAME`.

use inferlet::json::quote;
use inferlet::{Args, Context, Model, Result};

const LONGEST: usize = 3;

/// What followed the last tokens where they came before, the most of them that did.
fn look_up(tokens: &[u32], count: usize) -> &[u32] {
    for size in (1..=LONGEST.min(tokens.len() - 1)).rev() {
        let tail = &tokens[tokens.len() - size..];
        let before = &tokens[..tokens.len() - 1];
        if let Some(at) = before.windows(size).rposition(|window| window == tail) {
            return &tokens[at + size..tokens.len().min(at + size + count)];
        }
    }
    &[]
}

#[inferlet::main]
async fn main(mut args: Args) -> Result<String> {
    let prompt: String = args.value_from_str("--prompt")?;
    let drafted: usize = args.opt_value_from_str("--draft-tokens")?.unwrap_or(4);
    let most: usize = args.opt_value_from_str("--max-tokens")?.unwrap_or(64);
    let model = match args.opt_value_from_str::<String>("--model-name")? {
        Some(name) => Model::named(&name)?,
        None => Model::load()?,
    };
    args.finish()?;

    let mut context = Context::new(&model)?;
    context.fill(&prompt)?;
    let mut out: Vec<u32> = Vec::new();
    let mut forwards = 0;
    while out.len() < most && !out.iter().any(|token| model.stop_tokens().contains(token)) {
        let known = [context.tokens(), context.buffer()].concat();
        out.extend(context.verify(look_up(&known, drafted)).await?);
        forwards += 1;
    }
    let stop = out.iter().position(|token| model.stop_tokens().contains(token));
    out.truncate(stop.unwrap_or(most).min(most));
    let text = quote(&model.tokenizer().decode(&out)?);
    Ok(format!(r#"{{"text": {text}, "tokens": {out:?}, "forwards": {forwards}}}"#))
}
