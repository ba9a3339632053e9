//! ReAct: thoughts, actions and observations, with tools over HTTP beside the model.
//!
//! Options: `--question TEXT`, `--url URL`, `--steps N` (8), `--max-tokens N` (96). An action
//! `f("x", "y")` is `GET URL/f?0=x&1=y`, whose body is the observation.

use inferlet::json::quote;
use inferlet::{http, session, Args, Context, Error, Model, Result, Sampler};

const SYSTEM: &str = "Answer with thoughts and actions.
lookup(name, property): one property of a person
search(text): the name of the person of whom the text is true
add(a, b): the sum of two numbers";

/// The URL of a call.
fn address(url: &str, call: &str) -> Result<String> {
    let wrong = || Error::usage(format!("no call: {call}"));
    let (name, rest) = call.trim().split_once('(').ok_or_else(wrong)?;
    let given = rest.strip_suffix(')').ok_or_else(wrong)?;
    let given = given.split(", ").map(|value| value.trim_matches('"')).enumerate();
    let given: Vec<String> = given.map(|(i, v)| format!("{i}={}", v.replace(' ', "%20"))).collect();
    Ok(format!("{url}/{name}?{}", given.join("&")))
}

#[inferlet::main]
async fn main(mut args: Args) -> Result<String> {
    let question: String = args.value_from_str("--question")?;
    let url: String = args.value_from_str("--url")?;
    let steps: usize = args.opt_value_from_str("--steps")?.unwrap_or(8);
    let most: usize = args.opt_value_from_str("--max-tokens")?.unwrap_or(96);
    args.finish()?;

    let mut context = Context::new(&Model::load()?)?;
    context.system(SYSTEM)?.user(&question)?.cue()?;
    let mut calls = Vec::new();
    while calls.len() <= steps {
        let line = context.generate(Sampler::greedy()).max_tokens(most).stop_strings(["\n"]);
        let line = line.collect_text().await?;
        session::stream(&format!("{line}\n")).await?;
        if let Some(answer) = line.strip_prefix("Answer: ") {
            let (calls, tokens) = (calls.join(", "), context.len());
            let answer = quote(answer);
            return Ok(format!(
                r#"{{"answer": {answer}, "calls": [{calls}], "tokens": {tokens}}}"#
            ));
        }
        if let Some(call) = line.strip_prefix("Action:") {
            let answer = http::get(&address(&url, call)?, &[]).await?.text().await?;
            calls.push(quote(&format!("{call}: {answer}")));
            context.fill(&format!("Observation: {answer}\n"))?;
        } else if line.is_empty() {
            break;
        }
    }
    Err(Error::usage(format!("no answer after {} actions", calls.len())))
}
