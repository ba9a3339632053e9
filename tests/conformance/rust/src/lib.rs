//! Performs the contract's functions as its client tells it; see `tests/conformance/README.md`.
//!
//! The same program as `tests/conformance/guests/interpreter.py`, in Rust. Its arguments say what it is:
//! `serve` calls, `return TEXT` or `fail TEXT`.

mod arguments;
mod functions;
mod results;

use inferlet::json::{parse, quote, Value};
use inferlet::{runtime, session, Error, Result};

use crate::arguments::resolve;

#[inferlet::main]
async fn main(arguments: Vec<String>) -> Result<String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["return", ref texts @ ..] => return Ok(texts.join(" ")),
        ["fail", ref texts @ ..] => return Err(Error::other(texts.join(" "))),
        _ => {}
    }
    loop {
        let future = session::receive().into_handle()?;
        while runtime::wait(&[future])?.is_empty() {}
        let text = runtime::take_text(future)?;
        if text.is_empty() {
            return Ok("done".into());
        }
        let outcomes = perform(parse(&text)?.as_list().ok_or("calls are a list")?)?;
        session::send(&format!("[{}]", outcomes.join(",")))?;
    }
}

/// Performs calls, `[function, arguments]` each; what came of each, as JSON.
fn perform(calls: &[Value]) -> Result<Vec<String>> {
    let mut outcomes: Vec<Result<Value>> = Vec::new();
    let mut texts = Vec::new();
    for call in calls {
        let Some([name, arguments]) = call.as_list() else {
            return Err("a call is a function and its arguments".into());
        };
        let name = name.as_str().ok_or("a function's name is text")?;
        let arguments = arguments.as_list().ok_or("arguments are a list")?;
        let resolved: Result<Vec<Value>> =
            arguments.iter().map(|argument| resolve(argument, &outcomes)).collect();
        let outcome = resolved.and_then(|values| functions::call(name, &values));
        texts.push(match &outcome {
            Ok(json) => format!("{{\"ok\":{json}}}"),
            Err(error) => format!("{{\"error\":{}}}", quote(&error.to_string())),
        });
        // What no call refers to need not be valid JSON for our reader: it stays the client's.
        outcomes.push(outcome.and_then(|json| parse(&json)));
    }
    Ok(texts)
}
