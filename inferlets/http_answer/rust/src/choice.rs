//! One choice: tokens are generated, and their text goes to the gateway.

use inferlet::stream::{StopStrings, TextDecoder};
use inferlet::{Context, Result, UNKNOWN_TOKEN};

use crate::report::{self, Piece};
use crate::request::Request;

/// Tokens of the prompt that the decoder sees, for the space before the first word.
const BEFORE: usize = 10;

/// Generates the choice of this number to its end.
pub async fn run(index: usize, context: &mut Context, request: &Request) -> Result {
    let mut decoder = TextDecoder::new(request.model.tokenizer(), &tail(context))?;
    let mut stops = StopStrings::new(request.stop.clone());
    let mut piece = Piece::new(index);
    let mut stopped = false;
    let mut generator = request.generator(index, context);
    loop {
        // What is told of a token goes step by step; else the server goes on by itself.
        let sampled = match request.logprobs {
            true => generator.next_sampled().await?,
            false => None,
        };
        let token = match &sampled {
            Some(sampled) => Some(sampled.token),
            None => generator.next_token().await?,
        };
        let Some(token) = token else { break };
        if piece.is_long() {
            report::piece(&mut piece, request).await?;
        }
        piece.add(token, sampled.as_ref(), request);
        if request.hides(token) {
            continue;
        }
        let text = request.marked(token, decoder.feed(token)?);
        // No text ends before it has its least tokens.
        let early = generator.tokens_generated() <= request.min_tokens as usize;
        let (text, found) = if early { (text, false) } else { stops.feed(text) };
        piece.text.push_str(&text);
        if found {
            stopped = true;
            break;
        }
        if request.stream && !piece.text.is_empty() {
            report::piece(&mut piece, request).await?;
        }
    }
    let count = generator.tokens_generated();
    let cut = generator.is_full();
    let complete = request.grammar.is_some() && generator.is_complete()?;
    drop(generator);
    if !stopped {
        let (text, found) = stops.feed(decoder.finish()?);
        piece.text.push_str(&text);
        piece.text.push_str(&stops.finish());
        stopped = found;
    }
    if request.include_stop {
        piece.text.push_str(stops.found().unwrap_or_default());
    }
    let reason = if cut && !stopped && !complete { "length" } else { "stop" };
    report::piece(&mut piece, request).await?;
    let cached = context.found_tokens();
    report::end(request, index, reason, stops.found(), count, cached).await
}

fn tail(context: &Context) -> Vec<u32> {
    let known = context.tokens().iter().chain(context.buffer()).copied();
    let known: Vec<u32> = known.filter(|&token| token != UNKNOWN_TOKEN).collect();
    known[known.len().saturating_sub(BEFORE)..].to_vec()
}
