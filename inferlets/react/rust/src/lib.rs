//! ReAct: thoughts, actions and observations, with tools over HTTP beside the model.
//!
//! Options: `--question TEXT`, `--url URL`, `--steps N` (8), `--max-tokens N` (96) of a step. An
//! action `f("x", "y")` is `GET URL/f?0=x&1=y`, whose body is the observation.

use inferlet::json::quote;
use inferlet::{http, session, Args, Context, Error, Grammar, Model, Result, Sampler};

const SYSTEM: &str = "Answer with thoughts and actions.
lookup(name, property): one property of a person
search(text): the name of the person of whom the text is true
add(a, b): the sum of two numbers";

/// A thought, and an action with a function that the system message has, or the answer.
fn step(first: bool, last: bool) -> Grammar {
    let value = r#"("[^"\n]{1,60}"|-?[0-9]{1,9})"#;
    let functions = SYSTEM.lines().filter_map(|line| line.split_once("): ")?.0.split_once('('));
    let calls = functions.map(|(name, parameters)| {
        let values = vec![value; parameters.split(',').count()].join(", ");
        format!(r"{name}\({values}\)")
    });
    let action = format!("Action: ({})", calls.collect::<Vec<_>>().join("|"));
    let answer = r"Answer: [^\n]{1,200}";
    let end = match (first, last) {
        (true, _) => action,
        (_, true) => answer.to_owned(),
        _ => format!("({action}|{answer})"),
    };
    Grammar::regex(&format!("Thought: [^\\n]{{1,200}}\n{end}\n"))
}

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
    loop {
        let shape = step(calls.is_empty(), calls.len() == steps);
        let mut written = context.generate(Sampler::greedy()).grammar(&shape).max_tokens(most);
        let text = written.read_text().await?;
        if !written.is_complete()? {
            return Err(Error::usage(format!("{text:?} is no whole step: give more --max-tokens")));
        }
        session::stream(&text).await?;
        if let Some((_, answer)) = text.rsplit_once("Answer: ") {
            let (answer, tokens) = (quote(answer.trim()), context.len());
            let calls = calls.join(", ");
            return Ok(format!(
                r#"{{"answer": {answer}, "calls": [{calls}], "tokens": {tokens}}}"#
            ));
        }
        let call = text.rsplit_once("Action: ").map_or("", |(_, call)| call.trim());
        let answer = http::get(&address(&url, call)?, &[]).await?.text().await?;
        calls.push(quote(&format!("{call}: {answer}")));
        context.fill(&format!("Observation: {answer}\n"))?;
    }
}
