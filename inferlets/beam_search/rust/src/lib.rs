//! Beam search: the likeliest texts of a length. Beams are forks, and run in one batch.
//!
//! Options: `--prompt TEXT`, `--width N` (4), `--max-tokens N` (16), `--length-penalty P` (1),
//! `--model-name NAME`.

use inferlet::json::quote;
use inferlet::{join_all, Args, Context, Model, Result};

struct Beam {
    score: f32,
    tokens: Vec<u32>,
    context: Context,
}

#[inferlet::main]
async fn main(mut args: Args) -> Result<String> {
    let prompt: String = args.value_from_str("--prompt")?;
    let width: usize = args.opt_value_from_str("--width")?.unwrap_or(4);
    let most: usize = args.opt_value_from_str("--max-tokens")?.unwrap_or(16);
    let penalty: f32 = args.opt_value_from_str("--length-penalty")?.unwrap_or(1.0);
    let model = match args.opt_value_from_str::<String>("--model-name")? {
        Some(name) => Model::named(&name)?,
        None => Model::load()?,
    };
    args.finish()?;

    let mut context = Context::new(&model)?;
    context.fill(&prompt)?;
    let mut beams = vec![Beam { score: 0.0, tokens: Vec::new(), context }];
    let mut ended: Vec<(f32, Vec<u32>)> = Vec::new();
    for length in 1..=most {
        let steps = beams.iter_mut().map(|beam| beam.context.distribution(2 * width as u32));
        let mut found = Vec::new();
        for (at, likely) in join_all(steps).await.into_iter().enumerate() {
            let likely = likely?;
            for (token, probability) in likely.tokens.into_iter().zip(likely.probabilities) {
                found.push((beams[at].score + probability.ln(), at, token));
            }
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        let scale = (length as f32).powf(penalty);
        let mut next = Vec::new();
        for (rank, &(score, at, token)) in found.iter().take(2 * width).enumerate() {
            if model.stop_tokens().contains(&token) {
                if rank < width {
                    ended.push((score / scale, beams[at].tokens.clone()));
                }
            } else if next.len() < width {
                let mut context = beams[at].context.fork()?;
                context.append(&[token])?;
                let tokens = [&beams[at].tokens[..], &[token]].concat();
                next.push(Beam { score, tokens, context });
            }
        }
        beams = next;
        ended.sort_by(|a, b| b.0.total_cmp(&a.0));
        ended.truncate(width);
        if ended.len() == width && ended[width - 1].0 >= beams[0].score / scale {
            break;
        }
    }
    let scale = |tokens: &[u32]| (tokens.len().max(1) as f32).powf(penalty);
    ended.extend(beams.into_iter().map(|beam| (beam.score / scale(&beam.tokens), beam.tokens)));
    ended.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut told = Vec::new();
    for (score, tokens) in ended.into_iter().take(width) {
        let text = quote(&model.tokenizer().decode(&tokens)?);
        told.push(format!(r#"{{"text": {text}, "tokens": {tokens:?}, "score": {score}}}"#));
    }
    Ok(format!("[{}]", told.join(", ")))
}
