//! Prefix caching: the keys and values of a prompt's beginning, kept for later launches by name.
//!
//! Options: `--prefix TEXT`, `--prompt TEXT`, `--max-tokens N` (16), `--model-name NAME`.

use inferlet::json::quote;
use inferlet::{Args, Context, ErrorCode, Model, Result, Sampler};

#[inferlet::main]
async fn main(mut args: Args) -> Result<String> {
    let prefix: String = args.value_from_str("--prefix")?;
    let prompt: String = args.value_from_str("--prompt")?;
    let most = args.opt_value_from_str("--max-tokens")?.unwrap_or(16);
    let model = match args.opt_value_from_str::<String>("--model-name")? {
        Some(name) => Model::named(&name)?,
        None => Model::load()?,
    };
    args.finish()?;

    let mut context = Context::new(&model)?.prefix_cache(false);
    context.fill(&prefix)?;
    let name = format!("prefix-rust/{prefix}");
    let mut found = 0;
    if Context::saved(&model)?.contains(&name) {
        context = Context::open(&model, &name, context.buffer())?;
        found = context.len();
    } else {
        context.flush().await?;
        match context.save(&name, false, None) {
            Err(error) if error.code == ErrorCode::AlreadyExists => {} // another launch has saved it
            saved => saved?,
        }
    }
    context.fill(&prompt)?;
    let computed = context.len() - found;
    let text = context.generate(Sampler::greedy()).max_tokens(most).collect_text().await?;
    Ok(format!(r#"{{"text": {}, "computed": {computed}}}"#, quote(&text)))
}
