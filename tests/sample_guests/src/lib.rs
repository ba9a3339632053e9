//! Tokens chosen by the server, and texts within grammars: what tests launch; the first argument says
//! which, the second is JSON.
//!
//! `tests/end_to_end/guests/grammar.py` does the same in Python.

use std::time::Duration;

use inferlet::json::{parse, quote, Value};
use inferlet::{allocate, grammar, join_all, timeout};
use inferlet::{Context, Error, Grammar, Matcher, Model, Result, Sampler};

#[inferlet::main]
async fn main(arguments: Vec<String>) -> Result<String> {
    let [mode, given] = &arguments[..] else { return Err(Error::usage("a mode and JSON")) };
    let given = parse(given)?;
    match &mode[..] {
        "ways" => ways(&given).await,
        "grammars" => grammars(&given).await,
        "own" => own_choice(&given).await,
        "objects" => objects(&given).await,
        "run-ahead" => run_ahead(&given).await,
        _ => Err(Error::usage(format!("no guest is called {mode}"))),
    }
}

fn field<'a>(given: &'a Value, name: &str) -> Result<&'a Value> {
    given.get(name).ok_or_else(|| Error::usage(format!("{name} is missing")))
}

fn number(given: &Value, name: &str) -> Result<u32> {
    field(given, name)?.as_u32().ok_or_else(|| Error::usage(format!("{name}: a number")))
}

fn numbers(given: &Value, name: &str) -> Result<Vec<f64>> {
    let list = field(given, name)?.as_list().ok_or_else(|| Error::usage("a list"))?;
    Ok(list.iter().filter_map(Value::as_f64).collect())
}

fn tokens(given: &Value) -> Result<Vec<u32>> {
    Ok(numbers(given, "tokens")?.iter().map(|token| *token as u32).collect())
}

/// Texts of samplers, each read whole, by tokens, step by step, and with looks at some steps.
async fn ways(given: &Value) -> Result<String> {
    let model = Model::load()?;
    let prompt: Vec<u32> = numbers(given, "prompt")?.iter().map(|token| *token as u32).collect();
    let mut told = Vec::new();
    for parameters in field(given, "samplers")?.as_list().unwrap_or_default() {
        let ends = parameters.get("end_tokens").and_then(Value::as_list).unwrap_or_default();
        let ends: Vec<u32> = ends.iter().filter_map(Value::as_u32).collect();
        let mut texts = Vec::new();
        for way in 0..4 {
            let mut context = Context::new(&model)?;
            context.append(&prompt)?;
            let generation = context.generate(Sampler::from_json(parameters)).max_tokens(12);
            let mut generation = generation.stop_tokens(ends.iter().copied());
            let mut tokens = Vec::new();
            texts.push(quote(&match way {
                0 => generation.collect_text().await?,
                1 => model.tokenizer().decode(&generation.collect_tokens().await?)?,
                2 => {
                    while let Some(sampled) = generation.next_sampled().await? {
                        tokens.push(sampled.token);
                    }
                    model.tokenizer().decode(&tokens)?
                }
                _ => {
                    generation.distribution(5).await?;
                    while let Some(token) = generation.next_token().await? {
                        tokens.push(token);
                        if tokens.len() % 3 == 1 && !generation.is_done() {
                            generation.distribution(5).await?;
                        }
                    }
                    model.tokenizer().decode(&tokens)?
                }
            }));
        }
        told.push(format!("[{}]", texts.join(",")));
    }
    Ok(format!("[{}]", told.join(",")))
}

fn grammar_of(given: &Value) -> Result<Grammar> {
    let text = field(given, "text")?.as_str().unwrap_or_default();
    match field(given, "kind")?.as_str() {
        Some("json-schema") => Ok(Grammar::json_schema(text)),
        Some("regex") => Ok(Grammar::regex(text)),
        _ => Ok(Grammar::lark(text)),
    }
}

async fn grammars(given: &Value) -> Result<String> {
    let model = Model::load()?;
    let mut context = Context::new(&model)?;
    context.append(&tokens(given)?)?;
    context.flush().await?;
    let temperature = field(given, "temperature")?.as_f64().unwrap_or(1.0) as f32;
    let (seed, count) = (number(given, "seed")?, number(given, "count")?);
    let forced = field(given, "forced")?.as_bool().unwrap_or(true);
    let list = field(given, "grammars")?.as_list().unwrap_or_default();
    let mut jobs = Vec::new();
    for (i, item) in list.iter().enumerate() {
        let mut fork = context.fork()?;
        let grammar = grammar_of(item)?;
        jobs.push(async move {
            let mut generation = fork
                .generate(Sampler::multinomial(temperature))
                .grammar(&grammar)
                .forced(forced)
                .seed(u64::from(seed) + i as u64)
                .max_tokens(count as usize);
            let mut out = String::new();
            while let Some(piece) = generation.next_text().await? {
                out.push_str(&piece);
            }
            let complete = generation.is_complete()?;
            Ok(format!("{{\"text\": {}, \"complete\": {complete}}}", quote(&out)))
        });
    }
    let answers: Result<Vec<String>> = join_all(jobs).await.into_iter().collect();
    Ok(format!("[{}]", answers?.join(", ")))
}

/// The program samples itself, from the mask that it asks for.
async fn own_choice(given: &Value) -> Result<String> {
    let model = Model::load()?;
    let count = number(given, "count")? as usize;
    let mut matcher: Matcher = grammar_of(given)?.matcher(&model).await?;
    let mut context = Context::new(&model)?;
    context.append(&tokens(given)?)?;
    let mut own = Vec::new();
    while own.len() < count && !matcher.is_finished()? {
        let mask = matcher.mask()?;
        let distribution = context.distribution(model.vocab_size()).await?;
        let allowed = |token: &&u32| mask[**token as usize / 32] >> (**token % 32) & 1 == 1;
        let token = *distribution.tokens.iter().find(allowed).ok_or("nothing is allowed")?;
        if model.stop_tokens().contains(&token) {
            break;
        }
        assert_eq!(matcher.count_allowed(&[token])?, 1);
        matcher.advance(&[token])?;
        matcher.rollback(1)?;
        matcher.advance(&[token])?;
        context.append(&[token])?;
        own.push(token);
    }
    assert!(grammar::advance(matcher.handle(), &[0]).is_err());
    let mut other = Context::new(&model)?;
    other.append(&tokens(given)?)?;
    let same = other.generate(Sampler::greedy()).grammar(&grammar_of(given)?).forced(false);
    let theirs = same.max_tokens(count).collect_tokens().await?;
    Ok(format!("{{\"own\": {own:?}, \"theirs\": {theirs:?}}}"))
}

/// Which of some texts may go on being an object, and whether they are whole ones.
async fn objects(given: &Value) -> Result<String> {
    let model = Model::load()?;
    let mut told = Vec::new();
    for text in field(given, "texts")?.as_list().unwrap_or_default() {
        let mut matcher = Grammar::json().matcher(&model).await?;
        let tokens = model.tokenizer().encode(text.as_str().unwrap_or_default())?;
        let allowed = matcher.count_allowed(&tokens)? == tokens.len();
        assert_eq!(matcher.allows(tokens[0])?, matcher.count_allowed(&tokens[..1])? == 1);
        told.push(format!("[{allowed}, {}]", allowed && matcher.advance(&tokens)?));
    }
    Ok(format!("[{}]", told.join(", ")))
}

/// Generations one after the other on one context: what each gave, and what the context then is.
async fn run_ahead(given: &Value) -> Result<String> {
    let wanted = field(given, "ahead")?.as_bool().unwrap_or(true);
    let mut context = Context::new(&Model::load()?)?.prefix_cache(false);
    context.append(&tokens(given)?)?;
    let mut told = Vec::new();
    for step in field(given, "steps")?.as_list().unwrap_or_default() {
        let out = read(&mut context, step, wanted).await?;
        let stats = parse(&allocate::pool_stats(context.queue())?)?;
        let pages = number(&stats, "kv_pages_mine")?;
        let all = [context.tokens(), context.buffer()].concat();
        told.push(format!("[{out}, {all:?}, {}, {pages}]", context.seq_len()));
        if field(step, "fork")?.as_bool().unwrap_or_default() {
            context = context.fork()?;
        }
        let then = numbers(step, "then")?;
        context.append(&then.iter().map(|token| *token as u32).collect::<Vec<_>>())?;
    }
    let last = context.generate(Sampler::greedy()).max_tokens(4).stop_tokens([]).run_ahead(false);
    Ok(format!("[[{}], {:?}]", told.join(", "), last.collect_tokens().await?))
}

/// One generation, read in the way it says.
async fn read(context: &mut Context, given: &Value, ahead: bool) -> Result<String> {
    let temperature = field(given, "temperature")?.as_f64().unwrap_or_default() as f32;
    let penalty = field(given, "penalty")?.as_f64().unwrap_or_default();
    let (seed, after) = (number(given, "seed")?, number(given, "after")?);
    let stops: Vec<u32> = numbers(given, "stop_tokens")?.iter().map(|t| *t as u32).collect();
    let strings = field(given, "stop_strings")?.as_list().unwrap_or_default();
    let strings: Vec<String> =
        strings.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let length = context.len();
    let sampler = match penalty == 0.0 {
        true => Sampler::top_p(temperature, 0.9),
        false => Sampler::multinomial(temperature).with("presence_penalty", penalty),
    };
    let mut generation = context
        .generate(sampler.seeded(seed.into()))
        .max_tokens(number(given, "most")? as usize)
        .stop_tokens(stops)
        .stop_strings(strings)
        .run_ahead(ahead);
    let mut out = Vec::new();
    match field(given, "how")?.as_str() {
        Some("tokens") => out = generation.collect_tokens().await?,
        Some("text") => return Ok(quote(&generation.collect_text().await?)),
        Some("send") => return Ok(quote(&generation.send_text().await?)),
        Some("break") => {
            while let Some(token) = generation.next_token().await? {
                out.push(token);
                if out.len() == after as usize {
                    break;
                }
            }
        }
        // Given up while a token is on its way.
        _ => {
            for _ in 0..after {
                let _ = timeout(Duration::from_millis(2), generation.next_token()).await?;
            }
            drop(generation);
            context.truncate(length)?;
        }
    }
    Ok(format!("{out:?}"))
}
