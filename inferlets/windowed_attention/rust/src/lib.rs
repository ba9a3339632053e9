//! Windowed attention: each token attends to the last ones only, and older pages are given back.
//!
//! Options: `--prompt TEXT`, `--window N` (40), `--max-tokens N` (128), `--model-name NAME`.

use inferlet::json::quote;
use inferlet::{Args, Context, Model, Result};

#[inferlet::main]
async fn main(mut args: Args) -> Result<String> {
    let prompt: String = args.value_from_str("--prompt")?;
    let window: usize = args.opt_value_from_str("--window")?.unwrap_or(40);
    let most: usize = args.opt_value_from_str("--max-tokens")?.unwrap_or(128);
    let model = match args.opt_value_from_str::<String>("--model-name")? {
        Some(name) => Model::named(&name)?,
        None => Model::load()?,
    };
    args.finish()?;

    let size = model.page_size() as usize;
    let mut context = Context::new(&model)?;
    let mut new = Context::new(&model)?.fill(&prompt)?.buffer().to_vec();
    if new.is_empty() {
        return Err("nothing to continue: give a `--prompt`".into());
    }
    let (mut out, mut pages) = (Vec::new(), 0);
    while out.len() < most && context.next_position() < model.max_position() as usize {
        let ends = context.len() + 1..context.len() + new.len() + 1;
        let mask: Vec<_> = ends.map(|end| vec![end.saturating_sub(window)..end]).collect();
        let found = context.forward(&new, 1).mask(&mask).await?;
        new = vec![found[found.len() - 1].max_index()];
        out.extend(&new);
        pages = pages.max(context.len().div_ceil(size));
        let unseen = (context.len() + 1).saturating_sub(window);
        context.drop(0..unseen - unseen % size, false)?;
    }
    let text = quote(&model.tokenizer().decode(&out)?);
    Ok(format!(r#"{{"text": {text}, "tokens": {out:?}, "pages": {pages}}}"#))
}
