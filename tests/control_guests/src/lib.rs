//! Messaging, store and children: what tests launch; the first argument says which.
//!
//! `tests/end_to_end/guests/control.py` does the same in Python.

mod children;
mod messages;
mod stored;

use inferlet::{Error, Result};

#[inferlet::main]
async fn main(arguments: Vec<String>) -> Result<String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["worker", jobs, results] => messages::worker(jobs, results).await,
        ["produce", topic, count] => messages::produce(topic, number(count)?).await,
        ["collect", topic, count] => messages::collect(topic, number(count)?).await,
        ["listen", topic] => messages::listen(topic).await,
        ["flood", topic] => messages::flood(topic).await,
        ["count", key, times] => stored::count(key, number(times)?).await,
        ["put", key, value] => stored::put(key, value).await,
        ["get", key] => stored::get(key).await,
        ["keys", prefix] => stored::keys(prefix).await,
        ["fill", prefix, count] => stored::fill(prefix, number(count)?).await,
        ["bulk", count] => stored::bulk(number(count)?).await,
        ["transact"] => stored::transact().await,
        ["echo", ref texts @ ..] => Ok(texts.join(" ")),
        ["fail", text] => Err(Error::other(text)),
        ["sleep"] => children::sleep().await,
        ["run", program, ref rest @ ..] => children::run(program, rest).await,
        ["hello", topic] => children::hello(topic).await,
        ["family", program, size] => children::family(program, number(size)?).await,
        ["give-up", program] => children::give_up(program).await,
        ["burst", program, size] => children::burst(program, number(size)?),
        ["nest", program, depth] => children::nest(program, number(depth)?).await,
        ["talk", program] => children::talk(program).await,
        ["answer", questions, answers] => children::answer(questions, answers).await,
        ["chatter"] => children::chatter(),
        _ => Err(Error::usage(format!("no guest is called by {arguments:?}"))),
    }
}

fn number(text: &str) -> Result<usize> {
    text.parse().map_err(|error| Error::usage(format!("{text}: {error}")))
}
