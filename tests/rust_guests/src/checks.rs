//! Tests of the SDK that run where it runs, in Wasm. A failed one panics: its log has the line.

use std::cell::RefCell;
use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use inferlet::json::{parse, quote, Value};
use inferlet::runtime::sleep;
use inferlet::stream::{StopStrings, TextDecoder};
use inferlet::task::yield_now;
use inferlet::Sampler;
use inferlet::{allocate, gather, join, join_all, race, runtime};
use inferlet::{timeout, Args, Context, Distribution, Error, ErrorCode, Grammar, Model, Result};

pub async fn run(area: &str) -> Result<String> {
    match area {
        "json" => json(),
        "args" => args()?,
        "sampler" => sampler(),
        "stop-strings" => stop_strings(),
        "tasks" => tasks().await?,
        "logs" => logs(),
        "decoder" => broken_characters()?,
        "byte-fallback" => byte_fallback()?,
        "grammar" => grammar().await?,
        "text" => text_after_tokens().await?,
        "lone" => lone_tokens().await?,
        "begun" => begun_characters().await?,
        "full" => full().await?,
        "exports" => exports().await?,
        "context" => context().await?,
        "several" => several().await?,
        "branches" => branches().await?,
        "chat" => chat().await?,
        _ => return Err(Error::usage(format!("no checks are called {area}"))),
    }
    Ok("ok".to_owned())
}

fn code<T>(result: Result<T>) -> ErrorCode {
    result.err().expect("an error").code
}

fn json() {
    let value =
        parse(r#" {"a": [1, -2.5e3, true, null], "b": {"c": "x\n\"\u00e9\ud83d\ude00/"}} "#);
    let value = value.expect("JSON");
    let list = value.get("a").and_then(Value::as_list).expect("a list");
    assert_eq!(list[0].as_u32(), Some(1));
    assert_eq!(list[1].as_f64(), Some(-2500.0));
    assert_eq!(list[1].as_u32(), None);
    assert_eq!(list[2].as_bool(), Some(true));
    assert_eq!(list[3], Value::Null);
    let inner = value.get("b").and_then(|b| b.get("c")).and_then(Value::as_str);
    assert_eq!(inner, Some("x\n\"é😀/"));
    assert_eq!(parse(&quote("\u{1}\"\\\n é😀")), Ok(Value::Text("\u{1}\"\\\n é😀".to_owned())));
    assert_eq!(quote("\u{7f}\u{80}\u{9f}\u{a0}"), "\"\\u007f\\u0080\\u009f\u{a0}\"");
    let deep = "[".repeat(100_000);
    let wrong = ["", "[1", "[1,]", "{", r#"{"a" 1}"#, "tru", "1 2", "\"", r#""\x""#, r#""\ud83d""#];
    for text in wrong.into_iter().chain([r#""\u12""#, r#""\ud83d\u0041""#, "-", &deep]) {
        assert_eq!(code(parse(text)), ErrorCode::InvalidArgument, "{:.20}", text);
    }
}

fn args() -> Result {
    let given = ["--prompt", "Hi there", "-n=7", "--verbose", "--seed", "-3"];
    let mut args = Args::new(given.map(str::to_owned).to_vec());
    assert_eq!(args.value_from_str::<String>("--prompt")?, "Hi there");
    assert_eq!(args.value_from_str::<u32>(["-n", "--max-tokens"])?, 7);
    assert_eq!(args.opt_value_from_str::<f32>("--temperature")?, None);
    assert!(args.contains("--verbose") && !args.contains("--verbose"));
    assert_eq!(code(args.clone().finish()), ErrorCode::Usage);
    assert_eq!(code(args.clone().value_from_str::<u32>("--seed")), ErrorCode::Usage);
    assert_eq!(args.value_from_str::<i32>("--seed")?, -3);
    assert_eq!(code(args.value_from_str::<u32>("--missing")), ErrorCode::Usage);
    args.finish()?;
    let mut args = Args::new(vec!["--prompt".to_owned()]);
    assert_eq!(code(args.value_from_str::<String>("--prompt")), ErrorCode::Usage);
    Ok(())
}

fn sampler() {
    let sampler = Sampler::top_p(0.5, 0.75).with("logit_bias", [(4, f64::NEG_INFINITY), (5, 1.5)]);
    let wanted = r#"{"temperature":500000000000e-12,"top_p":750000000000e-12,"logit_bias":{"4":null,"5":1.5}}"#;
    assert_eq!(sampler.to_json(), wanted);
    let text = r#"{"top_k":40,"top_p":0.95,"end_tokens":[1,2],"logit_bias":{"7":null},"none":null,"seed":9223372036854775809}"#;
    let read = Sampler::from_json(&parse(text).expect("JSON"));
    assert_eq!((read.to_json().as_str(), read.seed()), (text, Some((1 << 63) + 1)));
    let again = read.with("top_p", 0.5).with("banned_sequences", [vec![1, 2], vec![3]]).seeded(8);
    assert!(again.to_json().contains(r#","top_p":0.5,"banned_sequences":[[1,2],[3]],"seed":8}"#));
    assert!(Sampler::multinomial(f32::NAN).to_json().contains("NaN"));
}

fn stop_strings() {
    let mut stops = StopStrings::new(["END", "\n\n", "é!"]);
    let mut feed = |text: &str| stops.feed(text.to_owned());
    assert_eq!(feed("ab E"), ("ab ".to_owned(), false));
    assert_eq!(feed("N"), (String::new(), false));
    assert_eq!(feed("x\n"), ("ENx".to_owned(), false));
    assert_eq!(feed("yé"), ("\ny".to_owned(), false));
    assert_eq!(feed("?EN"), ("é?".to_owned(), false));
    assert_eq!(feed("DEND"), (String::new(), true));
    let mut stops = StopStrings::new(["abc"]);
    assert_eq!(stops.feed("xab".to_owned()).0, "x");
    assert_eq!(stops.finish(), "ab");
}

async fn tasks() -> Result {
    let order = RefCell::new(Vec::new());
    let log = async |name: &'static str, place: usize| {
        while order.borrow().len() < place {
            sleep(Duration::from_millis(1)).await?;
        }
        order.borrow_mut().push(name);
        Ok::<_, Error>(name)
    };
    assert_eq!(join(log("slow", 1), log("quick", 0)).await, (Ok("slow"), Ok("quick")));
    let all = join_all([log("c", 4), log("a", 2), log("b", 3)]).await;
    assert_eq!(all, [Ok("c"), Ok("a"), Ok("b")]);
    assert_eq!(*order.borrow(), ["quick", "slow", "a", "b", "c"]);
    assert!(join_all(Vec::<std::future::Ready<()>>::new()).await.is_empty());

    let second = Duration::from_secs(1000);
    assert_eq!(timeout(Duration::from_millis(1), sleep(second)).await?, None);
    assert_eq!(timeout(second, std::future::ready(5)).await?, Some(5));

    // Many at once, each of which gives every other a turn; one that wakes itself goes on.
    let count = RefCell::new(0);
    let workers = (0..50).map(|_| async {
        for _ in 0..4 {
            yield_now().await?;
            let mut again = true;
            let waking = |context: &mut std::task::Context<'_>| {
                context.waker().wake_by_ref();
                if std::mem::take(&mut again) {
                    Poll::Pending
                } else {
                    Poll::Ready(())
                }
            };
            std::future::poll_fn(waking).await;
            *count.borrow_mut() += 1;
        }
        Ok::<_, Error>(())
    });
    gather(workers).await?;
    assert_eq!(*count.borrow(), 200);
    Ok(())
}

fn logs() {
    inferlet::debug!("one of {}", 4);
    inferlet::info!("two");
    inferlet::warning!("three é");
    inferlet::error!("four");
    inferlet::info!("{}", "é".repeat(9 << 20));
}

/// Tokens of one byte each; characters rather than mere bytes, where there are both.
fn byte_tokens(model: &Model, bytes: &[u8]) -> Result<Vec<u32>> {
    let vocabs = model.tokenizer().vocabs()?;
    let token = |byte: &u8| vocabs.iter().rposition(|text| text[..] == [*byte]);
    Ok(bytes.iter().map(|byte| token(byte).expect("a token of each byte") as u32).collect())
}

/// Broken and incomplete characters come out as they do when the whole is decoded at once.
fn broken_characters() -> Result {
    let model = Model::load()?;
    let tokenizer = model.tokenizer();
    let long = "é\u{7ff}日😀".repeat(20);
    let broken = [b"\xf0\x9f\x98".repeat(15), "😀".as_bytes().to_vec()].concat();
    for (bytes, wanted) in [
        (&b"a\xf0\x9f\xf0\x9f\x98\x80b"[..], "a\u{fffd}😀b".to_owned()),
        (b"\xff\xff\xff\xff\xff\xe2\x82\xac", "\u{fffd}".repeat(5) + "€"),
        (b"\xf0\x9f\x98a\xe2\x82", "\u{fffd}a\u{fffd}".to_owned()),
        (&broken, "\u{fffd}".repeat(15) + "😀"),
        (long.as_bytes(), long.clone()),
    ] {
        let tokens = byte_tokens(&model, bytes)?;
        assert_eq!(tokenizer.decode(&tokens)?, wanted);
        // Whatever comes before: what is given out then completes the text before it.
        for start in 0..tokens.len().min(12) {
            let mut decoder = TextDecoder::new(tokenizer.clone(), &tokens[..start])?;
            let mut text = String::new();
            for token in &tokens[start..] {
                text.push_str(&decoder.feed(*token)?);
            }
            text.push_str(&decoder.finish()?);
            let mut before = tokenizer.decode(&tokens[..start])?;
            while !wanted.starts_with(&before) {
                assert_eq!(before.pop(), Some(char::REPLACEMENT_CHARACTER));
            }
            assert_eq!(text, wanted[before.len()..], "from {start}");
        }
    }
    Ok(())
}

/// A run of byte tokens is decoded as a whole, and is lost while its last character is incomplete.
fn byte_fallback() -> Result {
    let model = Model::load()?;
    let tokenizer = model.tokenizer();
    for text in ["a日😀éb", &"😀".repeat(20), &"日é".repeat(20)] {
        let tokens = byte_tokens(&model, text.as_bytes())?;
        assert_eq!(tokenizer.decode(&tokens)?, text);
        for (start, _) in text.char_indices() {
            let mut decoder = TextDecoder::new(tokenizer.clone(), &tokens[..start])?;
            let mut rest = String::new();
            for token in &tokens[start..] {
                rest.push_str(&decoder.feed(*token)?);
            }
            assert_eq!(rest + &decoder.finish()?, text[start..], "from {start}");
        }
    }
    // Text that was given out and then given up costs nothing of what follows.
    let mut decoder = TextDecoder::new(tokenizer.clone(), &[])?;
    let mut text = String::new();
    for token in byte_tokens(&model, b"\xf0\x9f\x98\x80\xe2\x82ab")? {
        text.push_str(&decoder.feed(token)?);
    }
    assert!(text.starts_with('😀') && text.ends_with("ab"), "{text}");
    Ok(())
}

async fn grammar() -> Result {
    let model = Model::load()?;
    let mut matcher = Grammar::choice(["a\u{7f}", "b\u{85}\"\t"]).matcher(&model).await?;
    for token in byte_tokens(&model, b"b\xc2\x85\"\t")? {
        matcher.advance(&[token])?;
    }
    assert!(matcher.is_accepting()?);
    Ok(())
}

/// Text that is read after tokens is the text from there on.
async fn text_after_tokens() -> Result {
    let model = Model::load()?;
    let tokenizer = model.tokenizer();
    let prompt = "Once upon a time there was a small model that lived in a test";
    let mut fresh = Context::new(&model)?;
    fresh.fill(prompt)?;
    let wanted = greedy(&mut fresh).await?;
    let (first, whole) = (tokenizer.decode(&wanted[..1])?, tokenizer.decode(&wanted)?);
    for way in ["token", "accept", "text"] {
        let mut context = Context::new(&model)?;
        context.fill(prompt)?;
        let mut generation = context.generate(Sampler::greedy()).stop_tokens([]).max_tokens(12);
        match way {
            "token" => assert_eq!(generation.next_token().await?, Some(wanted[0])),
            "accept" => {
                generation.distribution(1).await?;
                assert!(generation.accept(wanted[0])?);
            }
            _ => assert_eq!(generation.next_text().await?, Some(first.clone())),
        }
        assert_eq!(first.clone() + &generation.collect_text().await?, whole, "{way}");
    }
    // A stop string, found by the server and by the program.
    let stop: String = whole.chars().skip(5).take(2).collect();
    let before = whole.split(&stop).next();
    for at_once in [true, false] {
        let mut context = Context::new(&model)?;
        context.fill(prompt)?;
        let generation = context.generate(Sampler::greedy()).stop_tokens([]).max_tokens(12);
        let mut generation = generation.stop_strings([stop.as_str()]).run_ahead(at_once);
        assert_eq!(Some(generation.read_text().await?.as_str()), before);
        assert!(generation.is_done());
    }
    // An accepted token may complete a stop string.
    let mut context = Context::new(&model)?;
    context.fill(prompt)?;
    let mut generation = context.generate(Sampler::greedy()).stop_tokens([]).stop_strings(["xy"]);
    let [x, y] = byte_tokens(&model, b"xy")?[..] else { unreachable!("two bytes") };
    assert!(generation.accept(x)? && generation.accept(y)? && generation.is_done());
    assert_eq!(generation.next_text().await?, None);
    assert_eq!(generation.collect_text().await?, "");
    Ok(())
}

/// While a token is all that is waited for, one call of the host waits for it and takes it.
async fn lone_tokens() -> Result {
    const COUNT: usize = 12;
    let model = Model::load()?;
    let begun = || -> Result<Context> {
        let mut context = Context::new(&model)?;
        context.fill("Once upon a time")?;
        Ok(context)
    };
    let collect = |mut context: Context| async move {
        context.generate(Sampler::greedy()).stop_tokens([]).max_tokens(COUNT).collect_tokens().await
    };
    // What the server tells of each token is asked for here, so that it goes step by step.
    let (mut told, mut wanted, mut chances) = (begun()?, Vec::new(), Vec::new());
    let generation = told.generate(Sampler::greedy().with("logprobs", 2));
    let mut generation = generation.stop_tokens([]).max_tokens(COUNT);
    while let Some(sampled) = generation.next_sampled().await? {
        assert!(sampled.logprob <= 0.0);
        assert_eq!((sampled.top_tokens[0], sampled.top_tokens.len()), (sampled.token, 2));
        assert!((sampled.top_logprobs[0] - sampled.logprob).abs() < 1e-3);
        wanted.push(sampled.token);
        chances.push(sampled.logprob);
    }
    assert_eq!(wanted.len(), COUNT);
    drop(generation);

    let mut scored = begun()?;
    let generation = scored.generate(Sampler::greedy()).stop_tokens([]);
    let (tokens, logprobs) = generation.max_tokens(COUNT).collect_scored().await?;
    assert_eq!(tokens, wanted);
    assert!(logprobs.iter().zip(&chances).all(|(one, other)| (one - other).abs() < 1e-3));

    assert_eq!(collect(begun()?).await?, wanted);
    let ticks = async {
        for _ in 0..COUNT {
            sleep(Duration::from_millis(1)).await?;
        }
        Ok::<_, Error>(())
    };
    assert_eq!(join(collect(begun()?), ticks).await, (Ok(wanted.clone()), Ok(())));
    let both = join_all([collect(begun()?), collect(begun()?)]).await;
    assert_eq!(both, [Ok(wanted.clone()), Ok(wanted.clone())]);

    // Given up before it has come, or with the token here and not looked at.
    for turns in 1..4 {
        let (mut context, mut tokens) = (begun()?, Vec::new());
        let generation = context.generate(Sampler::greedy()).stop_tokens([]);
        let mut generation = generation.max_tokens(COUNT);
        for _ in 0..COUNT {
            {
                let (mut token, mut left) = (Box::pin(generation.next_token()), turns);
                std::future::poll_fn(|waker| {
                    left -= 1;
                    match left > 0 && token.as_mut().poll(waker).is_pending() {
                        true => Poll::Pending,
                        false => Poll::Ready(()),
                    }
                })
                .await;
            }
            if generation.tokens_generated() == tokens.len() {
                tokens.push(generation.next_token().await?.expect("a token"));
            } else {
                tokens.push(wanted[tokens.len()]); // it came in time
            }
        }
        assert_eq!((tokens, generation.next_token().await?), (wanted.clone(), None), "{turns}");
    }
    Ok(())
}

/// A character that the context begins comes whole; one that is broken anyway is not the answer's.
async fn begun_characters() -> Result {
    let model = Model::load()?;
    for (before, next, wanted) in [
        (&b"a\xf0\x9f\x98"[..], 0x80, "😀"),
        (b"a\xc3", 0xa9, "é"),
        (b"a\xff", b'b', "b"),
        (b"a\xff", 0xe2, "\u{fffd}"),
    ] {
        let next = byte_tokens(&model, &[next])?[0];
        let sampler = Sampler::multinomial(1.0).with("logit_bias", [(next, 100.0)]);
        let mut context = Context::new(&model)?;
        context.append(&byte_tokens(&model, before)?)?;
        let mut fork = context.fork()?;
        let nothing = context.generate(Sampler::greedy()).max_tokens(0).collect_text().await?;
        assert_eq!(nothing, "");
        let generation = context.generate(&sampler).max_tokens(1);
        assert_eq!(generation.collect_text().await?, wanted);
        let mut generation = fork.generate(&sampler).max_tokens(1);
        assert_eq!(generation.next_text().await?.as_deref(), Some(wanted));
        assert_eq!(generation.next_text().await?, None);
    }
    Ok(())
}

/// A context as long as the model's longest, and one that is longer.
async fn full() -> Result {
    let model = Model::load()?;
    let longest = model.max_position() as usize;
    let mut context = Context::new(&model)?;
    context.append(&vec![1; longest])?;
    assert_eq!(context.generate(Sampler::greedy()).collect_tokens().await?, []);
    context.append(&[1; 4])?;
    let error = context.generate(Sampler::greedy()).collect_text().await.expect_err("too long");
    assert_eq!(error.code, ErrorCode::InvalidArgument);
    for number in [longest, longest + 4] {
        assert!(error.message.contains(&number.to_string()), "{error}");
    }
    let mut generation = context.generate(Sampler::greedy()).max_tokens(1);
    for _ in 0..2 {
        assert_eq!(code(generation.next_token().await), ErrorCode::InvalidArgument);
    }
    assert_eq!(code(generation.accept(1)), ErrorCode::InvalidArgument);
    context.truncate(longest - 2)?;
    let tokens = context.generate(Sampler::greedy()).stop_tokens([]).collect_tokens().await?;
    assert_eq!(tokens.len(), 2);
    assert_eq!(code(context.truncate(longest + 1)), ErrorCode::InvalidArgument);
    context.truncate(longest)?;
    assert_eq!(context.len(), longest);
    Ok(())
}

fn same(first: &Distribution, second: &Distribution) {
    assert_eq!(first.max_index(), second.max_index());
    let pairs = first.probabilities.iter().zip(&second.probabilities);
    assert!(pairs.clone().all(|(a, b)| (a - b).abs() < 1e-4), "{first:?} {second:?}");
}

async fn exports() -> Result {
    let model = Model::load()?;
    let name = format!("checks of {}", runtime::instance_id());
    let mut saved = Context::new(&model)?;
    saved.fill("The quick brown fox jumps over the lazy dog and runs away")?;
    assert_eq!(code(saved.save(&name, false, None)), ErrorCode::InvalidArgument);
    saved.flush().await?;
    saved.save(&name, false, None)?;
    assert_eq!(code(saved.save(&name, false, None)), ErrorCode::AlreadyExists);
    assert!(Context::saved(&model)?.contains(&name));
    assert_eq!(code(Context::open(&model, &name, &[1])), ErrorCode::InvalidArgument);
    let mut opened = Context::open(&model, &name, saved.tokens())?;
    Context::delete(&model, &name)?;
    assert!(!Context::saved(&model)?.contains(&name));
    assert_eq!(code(Context::delete(&model, &name)), ErrorCode::NotFound);
    assert_eq!(code(Context::open(&model, &name, &[])), ErrorCode::NotFound);
    let texts = (greedy(&mut saved).await?, greedy(&mut opened).await?);
    assert_eq!(texts.0, texts.1);

    saved.flush().await?;
    saved.retain(0..saved.seq_len(), 3, Duration::from_secs(60))?;
    assert_eq!(code(saved.retain(0..9, 101, Duration::ZERO)), ErrorCode::InvalidArgument);
    assert_eq!(code(saved.save(&name, false, Some(Duration::ZERO))), ErrorCode::InvalidArgument);
    assert!(!Context::saved(&model)?.contains(&name));
    saved.save(&name, false, Some(Duration::from_micros(1)))?;
    sleep(Duration::from_millis(20)).await?;
    assert!(!Context::saved(&model)?.contains(&name));
    Ok(())
}

const PROMPT: &str =
    "The quick brown fox jumps over the lazy dog and runs away from the small hen \
    that has told the old bear all there is to know of the fox and of the dog and of the way";

async fn filled(model: &Model) -> Result<Context> {
    let mut context = Context::new(model)?.prefix_cache(false);
    context.fill(PROMPT)?.flush().await?;
    Ok(context)
}

/// What follows the tokens.
async fn after(model: &Model, tokens: &[u32]) -> Result<Distribution> {
    let mut context = Context::new(model)?;
    context.append(tokens)?.distribution(64).await
}

async fn several() -> Result {
    let model = Model::load()?;
    let mut context = filled(&model).await?;
    let prompt = context.tokens().to_vec();
    let wanted = greedy(&mut context.fork()?).await?;
    context.append(&wanted[..1])?;
    let found = context.forward(&wanted[1..4], 64).await?;
    for (i, one) in found.iter().enumerate() {
        same(one, &after(&model, &[&prompt[..], &wanted[..i + 2]].concat()).await?);
        assert_eq!(one.max_index(), wanted[i + 2]);
    }
    assert_eq!(context.seq_len(), prompt.len() + 4);
    context.truncate(prompt.len() + 2)?;
    assert_eq!(greedy(&mut context).await?[..3], wanted[2..5]);
    assert!(context.forward(&[], 1).await?.is_empty());
    Ok(())
}

async fn branches() -> Result {
    let ended = RefCell::new(Vec::new());
    let value = |number: u64| {
        let ended = &ended;
        async move {
            sleep(Duration::from_millis(4 * number)).await?;
            ended.borrow_mut().push(number);
            if number == 5 {
                Err(Error::other("five"))
            } else {
                Ok(number)
            }
        }
    };
    assert_eq!(gather([3, 1, 2].map(value)).await?, [3, 1, 2]);
    assert_eq!(code(gather([5, 900].map(value)).await), ErrorCode::Other);
    assert_eq!(race([900, 1, 3, 2].map(value), |number| number % 2 == 0).await?, Some(2));
    assert_eq!(race([1, 2].map(value), |_| false).await?, None);
    assert!(!ended.borrow().contains(&900)); // those were stopped
    Ok(())
}

async fn greedy(context: &mut Context) -> Result<Vec<u32>> {
    context.generate(Sampler::greedy()).stop_tokens([]).max_tokens(12).collect_tokens().await
}

async fn context() -> Result {
    let model = Model::load()?;
    let queue = runtime::create_queue(model.name())?;
    let mine = || -> Result<Option<u32>> {
        Ok(parse(&allocate::pool_stats(queue)?)?.get("kv_pages_mine").and_then(Value::as_u32))
    };
    let prompt = "Once upon a time there was a small model that lived in a test";
    let mut fresh = Context::new(&model)?;
    assert_eq!(code(fresh.distribution(1).await), ErrorCode::InvalidArgument);
    fresh.fill(prompt)?;
    let wanted = greedy(&mut fresh).await?;
    assert_eq!(wanted.len(), 12);

    // Forks of every age continue as a fresh context does.
    let mut base = Context::new(&model)?;
    base.fill(prompt)?;
    let mut early = base.fork()?;
    base.flush().await?;
    let mut forks = vec![early.fork()?, base.fork()?, base.fork()?];
    let mut after = forks[2].fork()?;
    drop(forks.pop());
    let lists =
        join_all(forks.iter_mut().chain([&mut early, &mut base, &mut after]).map(greedy)).await;
    for list in lists {
        assert_eq!(list?, wanted);
    }
    drop(base);
    let mut late = after.fork()?;
    late.truncate(after.len() - wanted.len())?;
    assert_eq!(greedy(&mut late).await?, wanted);
    late.truncate(2)?;
    late.truncate(1)?;
    assert_eq!(late.len(), 1);

    // A generation that is dropped halfway leaves a context that goes on.
    let length = after.len();
    let _ = timeout(Duration::ZERO, greedy(&mut after)).await?;
    after.truncate(length - wanted.len())?;
    assert_eq!(greedy(&mut after).await?, wanted);

    let mut stopping = Context::new(&model)?;
    stopping.fill(prompt)?;
    let generation = stopping.generate(Sampler::greedy()).stop_tokens([wanted[0]]);
    assert_eq!(generation.collect_tokens().await?, []);

    // Own choices.
    let mut own = Context::new(&model)?;
    own.fill(prompt)?;
    let mut generation = own.generate(Sampler::greedy()).max_tokens(2);
    assert_eq!(generation.distribution(4).await?.max_index(), wanted[0]);
    assert!(generation.accept(wanted[0])?);
    assert_eq!(generation.distribution(4).await?.max_index(), wanted[1]);
    drop(generation);

    // A long prompt goes in chunks.
    let most = model.max_batch_tokens() as usize;
    let room = model.max_position() as usize;
    if most + 10 < room {
        let mut long = Context::new(&model)?;
        long.append(&vec![1; most + 5])?;
        long.flush().await?;
        assert_eq!(long.seq_len(), most + 5);
    }

    drop((fresh, forks, early, after, late, stopping, own));
    assert_eq!(mine()?, Some(0));
    Ok(())
}

async fn chat() -> Result {
    let model = Model::load()?;
    if !model.has_chat_template() {
        let mut context = Context::new(&model)?;
        context.user("Hi")?;
        assert_eq!(code(context.flush().await), ErrorCode::Unsupported);
        return Ok(());
    }
    use inferlet::chat::Message;
    let tokenizer = model.tokenizer();
    let mut messages = vec![Message::system("Be \"brief\".\n"), Message::user("Hi é")];
    let mut context = Context::new(&model)?;
    context.system("Be \"brief\".\n")?.user("Hi é")?;
    context.generate(Sampler::greedy()).max_tokens(0).collect_text().await?;
    let text = tokenizer.decode(&[context.tokens(), context.buffer()].concat())?;
    assert_eq!(text, tokenizer.apply_chat_template(&messages, true)?);
    let request = r#"{"tools": [], "enable_thinking": false}"#;
    assert_eq!(text, tokenizer.apply_chat_template_with(&messages, true, request)?);
    let other = Context::new(&model)?.chat(request).message(Message::user("Hi"))?.cue().is_ok();
    assert!(other && tokenizer.apply_chat_template_with(&messages, true, "[]").is_err());
    let said = context.generate(Sampler::greedy()).max_tokens(5).collect_text().await?;
    context.seal()?.user("And?")?.cue()?;
    let text = tokenizer.decode(&[context.tokens(), context.buffer()].concat())?;
    messages.extend([Message::assistant(said.clone()), Message::user("And?")]);
    if said.trim() == said {
        assert_eq!(text, tokenizer.apply_chat_template(&messages, true)?);
    }

    // The assistant's turn starts after a message, whether that has run already or not.
    let messages = [Message::user("Hi"), Message::assistant("Hm."), Message::user("And?")];
    let cued = tokenizer.apply_chat_template(&messages[..1], true)?;
    for way in ["flush", "distribution", "fork", "cue", "fill"] {
        let mut context = Context::new(&model)?;
        context.user("Hi")?;
        let mut wanted = cued.clone();
        match way {
            "flush" => context.flush().await?,
            "distribution" => drop(context.distribution(1).await?),
            "fork" => {
                context.flush().await?;
                context = context.fork()?;
            }
            "cue" => {
                context.flush().await?;
                context.cue()?.cue()?;
            }
            // What follows a message is the program's own affair.
            _ => {
                wanted = tokenizer.apply_chat_template(&messages[..1], false)? + "So";
                context.fill("So")?;
            }
        }
        for _ in 0..2 {
            context.generate(Sampler::greedy()).max_tokens(0).collect_text().await?;
            assert_eq!(all_text(&context)?, wanted, "{way}");
        }
    }
    // Each message may run by itself, the assistant's too.
    let mut context = Context::new(&model)?;
    context.user("Hi")?.flush().await?;
    context.assistant("Hm.")?.flush().await?;
    context.user("And?")?.flush().await?;
    context.generate(Sampler::greedy()).max_tokens(0).collect_text().await?;
    assert_eq!(all_text(&context)?, tokenizer.apply_chat_template(&messages, true)?);
    // A turn that was generated is closed by the message after it.
    let mut context = Context::new(&model)?;
    context.user("Hi")?.generate(Sampler::greedy()).max_tokens(0).collect_text().await?;
    context.fill("Hm.")?.user("And?")?.flush().await?;
    context.generate(Sampler::greedy()).max_tokens(0).collect_text().await?;
    assert_eq!(all_text(&context)?, tokenizer.apply_chat_template(&messages, true)?);
    Ok(())
}

fn all_text(context: &Context) -> Result<String> {
    context.model().tokenizer().decode(&[context.tokens(), context.buffer()].concat())
}
