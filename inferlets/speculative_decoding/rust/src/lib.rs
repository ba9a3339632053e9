//! Speculative decoding by prompt lookup: what followed the last tokens when they came before is a
//! draft, which the server verifies in one step. The output is that of greedy decoding.
//!
//! Options: `--prompt TEXT`, `--draft-tokens N` (8), `--max-tokens N` (64), `--model-name NAME`.

use inferlet::json::quote;
use inferlet::{Args, Context, Model, Result, Sampler};

#[inferlet::main]
async fn main(mut args: Args) -> Result<String> {
    let prompt: String = args.value_from_str("--prompt")?;
    let drafted: u32 = args.opt_value_from_str("--draft-tokens")?.unwrap_or(8);
    let most: usize = args.opt_value_from_str("--max-tokens")?.unwrap_or(64);
    let model = match args.opt_value_from_str::<String>("--model-name")? {
        Some(name) => Model::named(&name)?,
        None => Model::load()?,
    };
    args.finish()?;

    let mut context = Context::new(&model)?;
    context.fill(&prompt)?;
    let generation = context.generate(Sampler::greedy()).max_tokens(most).speculate(drafted);
    let tokens = generation.collect_tokens().await?;
    let text = quote(&model.tokenizer().decode(&tokens)?);
    Ok(format!(r#"{{"text": {text}, "tokens": {tokens:?}}}"#))
}
