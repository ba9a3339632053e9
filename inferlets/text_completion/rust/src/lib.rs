//! Text completion with the SDK: continues a prompt and streams what it generates.
//!
//! Options: `--prompt TEXT`, `--max-tokens N` (64), `--temperature T` (0: greedy), `--seed N`.

use inferlet::{Args, Context, Error, Model, Result, Sampler};

#[inferlet::main]
async fn main(mut args: Args) -> Result {
    let prompt: String = args.value_from_str(["-p", "--prompt"])?;
    let max_tokens = args.opt_value_from_str(["-n", "--max-tokens"])?.unwrap_or(64);
    let temperature: f32 = args.opt_value_from_str(["-t", "--temperature"])?.unwrap_or(0.0);
    let seed: Option<u64> = args.opt_value_from_str("--seed")?;
    args.finish()?;
    if !(0.0..=f32::MAX).contains(&temperature) {
        return Err(Error::usage("--temperature is 0 (greedy) or above"));
    }

    let mut context = Context::new(&Model::load()?)?;
    context.fill(&prompt)?;
    let generation = context.generate(Sampler::multinomial(temperature));
    generation.max_tokens(max_tokens).seed(seed).send_text().await?;
    Ok(())
}
