//! Answers one request of the HTTP gateway (docs/http.md tells what an operator's own program has
//! to understand).
//!
//! Its argument is a request in JSON. What it tells is a JSON list per message:
//! `["prompt", tokens, ids, text, logprobs]` once, then for each choice `["piece", choice, text, tokens, ids,
//! logprobs]` as text comes, and `["end", choice, reason, stop string, tokens, cached]`. A request
//! `{"model": NAME, "describe": true}` is answered by `["model", special tokens, arguments of the chat
//! template, markers in it]` and the bytes of the vocabulary.
//!
//! With the argument `several` it takes requests as messages, `[[number, request], ...]` each, until an
//! empty list. It answers each with one message: `[number, error or null, [what it tells, ...]]`.

mod choice;
mod describe;
mod prompt;
mod report;
mod request;

use inferlet::allocate;
use inferlet::json;
use inferlet::{join_all, session, Context, Error, ErrorCode, Result};
use request::Request;
use std::cell::RefCell;
use std::future::{poll_fn, Future};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

/// Of fewer tokens it is asked whether what the grammar forces has room in them.
const FEW: usize = 256;

/// Pages that every pool has.
const SMALL: usize = 16;

const HELP: &str = r#"usage: http_answer REQUEST

Answers one request of the HTTP gateway: REQUEST is JSON with "model", "text" or "messages", and
what docs/http.md lists. It sends a JSON list for the prompt, one for each piece of text, one for
the end.

Example:
  pie-py run http_answer '{"model": "pie-tiny", "text": "The capital of", "max_tokens": 16}'
"#;

#[inferlet::main]
async fn main(args: Vec<String>) -> Result {
    if let ["-h" | "--help"] = args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return Ok(session::send(HELP)?);
    }
    let [text] = args.as_slice() else {
        return Err(Error::usage("one argument is wanted: a request of the HTTP gateway, in JSON"));
    };
    if text == "several" {
        return several().await;
    }
    let asked = json::parse(text)?;
    if asked.get("describe").is_some() {
        return describe::run(&request::model_of(&asked)?).await;
    }
    answer(&mut Request::read(&asked)?).await
}

/// Answers requests as they come, at once.
async fn several() -> Result {
    let mut coming = Some(session::receive());
    let mut running: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    poll_fn(|context| {
        while let Some(next) = &mut coming {
            let Poll::Ready(message) = Pin::new(next).poll(context) else { break };
            let list = json::parse(&message?)?;
            let list = list.as_list().unwrap_or_default();
            coming = if list.is_empty() { None } else { Some(session::receive()) };
            running.extend(list.iter().map(|each| Box::pin(one(each.clone())) as Pin<Box<_>>));
        }
        running.retain_mut(|each| each.as_mut().poll(context).is_pending());
        match coming.is_none() && running.is_empty() {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    })
    .await
}

/// Answers one of several requests, `[number, request]`, in one message.
async fn one(given: json::Value) {
    let Some([number, text]) = given.as_list() else { return };
    let held = Rc::new(RefCell::new(String::new()));
    let done = async {
        let mut request = Request::read(&json::parse(text.as_str().unwrap_or_default())?)?;
        request.held = Some(held.clone());
        answer(&mut request).await
    };
    let error = done.await.err().map_or("null".to_owned(), |error| json::quote(&error.to_string()));
    let number = number.to_json();
    let told = format!("[{number},{error},[{}]]", held.borrow());
    if let Err(error) = session::stream(&told).await {
        // It is too long. If this cannot be sent either, the instance has ended: the gateway sees it.
        let error = json::quote(&error.to_string());
        let _ = session::stream(&format!("[{number},{error},[]]")).await;
    }
}

async fn answer(request: &mut Request) -> Result {
    let (mut context, tail) = prompt::context(request).await?;
    if request.counts {
        return report::prompt(request, &context, &tail, "").await;
    }
    request.lead(&tail);
    check_length(request, &context)?;
    check_form(request).await?;
    let logprobs = match request.prompt_logprobs {
        Some(top) => prompt::logprobs(request, &mut context, top).await?,
        None => String::new(),
    };
    report::prompt(request, &context, &tail, &logprobs).await?;
    run(request, &mut context).await
}

async fn run(request: &Request, context: &mut Context) -> Result {
    if request.choices == 1 {
        return choice::run(0, context, request).await;
    }
    context.flush().await?;
    let forks = (1..request.choices).map(|_| context.fork()).collect::<Result<Vec<Context>>>();
    let mut forks = forks?;
    forks.iter().try_for_each(|fork| prompt::rank(request, fork))?;
    let contexts = std::iter::once(context).chain(forks.iter_mut());
    let runs = contexts.enumerate().map(|(index, each)| choice::run(index, each, request));
    join_all(runs).await.into_iter().collect()
}

/// Refuses what can never be answered, however often it is asked.
fn check_length(request: &Request, context: &Context) -> Result {
    let (prompt, longest) = (context.len(), request.model.max_position() as usize);
    let wanted = if request.clamp { 1 } else { request.max_tokens.unwrap_or(1) };
    let name = request.model.name();
    if prompt + wanted > longest {
        let less = if prompt < longest { "max-tokens: " } else { "" }; // would do
        let message = format!(
            "context-length: {less}{name} takes {longest} tokens; the prompt has {prompt}, and \
             {wanted} are to follow"
        );
        return Err(Error::new(ErrorCode::InvalidArgument, message));
    }
    let page = request.model.page_size() as usize;
    let pages = prompt / page + request.choices; // full ones are shared
    if pages <= SMALL {
        return Ok(());
    }
    let pool = json::parse(&allocate::pool_stats(context.queue())?)?;
    let all = pool.get("kv_pages").and_then(json::Value::as_u32).unwrap_or(u32::MAX) as usize;
    if pages <= all {
        return Ok(());
    }
    let message = format!(
        "context-length: a prompt of {prompt} tokens and {} answers take {pages} pages of KV \
         memory; {name} has {all} of {page} tokens",
        request.choices
    );
    Err(Error::new(ErrorCode::InvalidArgument, message))
}

/// Refuses a bound that no text within the grammar keeps to: at least what is forced comes. A token
/// whose log-probability is told is chosen, and may be a longer one.
async fn check_form(request: &Request) -> Result {
    let (Some(grammar), Some(most @ ..FEW)) = (&request.grammar, request.max_tokens) else {
        return Ok(());
    };
    let mut matcher = grammar.matcher(&request.model).await?;
    let forced = matcher.forced()?;
    matcher.advance(&forced)?;
    let least = forced.len() + usize::from(!matcher.is_accepting()?);
    if request.logprobs || least <= most {
        return Ok(());
    }
    let message = format!(
        "max-tokens: a text of the form that is asked for has at least {least} tokens, and {most} \
         are allowed"
    );
    Err(Error::new(ErrorCode::InvalidArgument, message))
}
