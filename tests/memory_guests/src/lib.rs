//! Pages that leave and come back, adapters: what tests launch; the first argument says which,
//! the second is JSON.
//!
//! `tests/end_to_end/guests/memory.py` does the same in Python.

use inferlet::json::{parse, quote, Value};
use inferlet::{adapter, allocate, join_all};
use inferlet::{Context, Error, Model, Result, Sampler};

#[inferlet::main]
async fn main(arguments: Vec<String>) -> Result<String> {
    let [mode, given] = &arguments[..] else { return Err(Error::usage("a mode and JSON")) };
    let given = parse(given)?;
    let model = Model::load()?;
    match &mode[..] {
        "moves" => moves(&model, &given).await,
        "adapters" => adapters(&model, &given).await,
        "names" => Ok(texts(&adapter::available_adapters(model.name())?)),
        _ => Err(Error::usage(format!("no guest is called {mode}"))),
    }
}

fn numbers(given: &Value, name: &str) -> Result<Vec<u32>> {
    let list = given.get(name).and_then(Value::as_list).ok_or_else(|| Error::usage("a list"))?;
    Ok(list.iter().filter_map(Value::as_u32).collect())
}

fn texts(list: &[String]) -> String {
    let quoted: Vec<String> = list.iter().map(|text| quote(text)).collect();
    format!("[{}]", quoted.join(","))
}

async fn generate(context: &mut Context, count: usize) -> Result<Vec<u32>> {
    context.generate(Sampler::greedy()).max_tokens(count).stop_tokens([]).collect_tokens().await
}

/// Generates in steps; what is to happen between them is given by name.
async fn moves(model: &Model, given: &Value) -> Result<String> {
    let mut context = Context::new(model)?;
    context.append(&numbers(given, "tokens")?)?;
    let mut out = Vec::new();
    let moves = given.get("moves").and_then(Value::as_list).unwrap_or_default();
    for step in moves {
        match step.as_str().unwrap_or_default() {
            "out" => context.swap_out()?,
            "in" => context.swap_in()?,
            "discard" => context.discard()?,
            "fork" => {
                let mut fork = context.fork()?;
                generate(&mut fork, 2).await?;
                context.swap_out()?; // but for what the fork shares
                generate(&mut fork, 2).await?;
                context.swap_in()?;
            }
            _ => out.extend(generate(&mut context, 5).await?),
        }
    }
    let stats = allocate::pool_stats(context.queue())?;
    Ok(format!("{{\"tokens\": {out:?}, \"stats\": {stats}}}"))
}

/// Texts through several adapters at once; an empty name is none.
async fn adapters(model: &Model, given: &Value) -> Result<String> {
    let tokens = numbers(given, "tokens")?;
    let names = given.get("adapters").and_then(Value::as_list).unwrap_or_default();
    let one = |name: &Value| {
        let name = name.as_str().unwrap_or_default().to_string();
        let (tokens, model) = (tokens.clone(), model.clone());
        async move {
            let mut context = match &name[..] {
                "" => Context::new(&model)?,
                _ => Context::with_adapter(&model, &name)?,
            };
            context.append(&tokens)?;
            let first = generate(&mut context, 6).await?;
            let second = generate(&mut context.fork()?, 6).await?;
            Ok([first, second].concat())
        }
    };
    let found: Vec<Result<Vec<u32>>> = join_all(names.iter().map(one)).await;
    let found: Vec<Vec<u32>> = found.into_iter().collect::<Result<_>>()?;
    Ok(format!("{found:?}"))
}
