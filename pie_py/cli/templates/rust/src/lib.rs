//! Continues a prompt, and sends the text as it comes.

use inferlet::{Args, Context, Model, Result, Sampler};

#[inferlet::main]
async fn main(mut args: Args) -> Result {
    let prompt: String = args.value_from_str("--prompt")?;
    let max_tokens = args.opt_value_from_str("--max-tokens")?.unwrap_or(64);
    args.finish()?;

    let mut context = Context::new(&Model::load()?)?;
    context.fill(&prompt)?;
    context.generate(Sampler::top_p(0.7, 0.9)).max_tokens(max_tokens).send_text().await?;
    Ok(())
}
