//! Device programs of Rust: their texts, mistakes, and what they choose; the argument says which.
//!
//! `tests/support/device_texts.py` has the same programs in Python.

use inferlet::device::{
    self, per_token, Attend, ProgramSampler, State, Tensor, Values, HEADS, PAGES, VOCABULARY,
};
use inferlet::json::quote;
use inferlet::{attention, samplers, Context, DeviceSampler, Error, Model, Result, Rule, Sampler};

#[inferlet::main]
async fn main(arguments: Vec<String>) -> Result<String> {
    match arguments.first().map(String::as_str) {
        Some("texts") => texts(),
        Some("mistakes") => mistakes(),
        Some("outside") => Ok(format!("{:?}", device::iota(3))),
        Some("runs") => runs().await,
        Some("attend texts") => attend_texts(),
        Some("put") => put().await,
        Some("beside") => beside().await,
        Some("like") => like().await,
        Some("attend") => attending().await,
        Some("undone") => undone().await,
        _ => Err(Error::usage("which?")),
    }
}

fn greedy(logits: Tensor, _: &mut State) -> Tensor {
    logits.argmax()
}

fn penalized(logits: Tensor, _: &mut State) -> Tensor {
    let less = device::where_(logits.gt(0), logits / 1.2, logits * 1.2);
    less.where_(device::counts().gt(0) | device::given(), logits).argmax()
}

fn green(logits: Tensor, state: &mut State) -> Tensor {
    let before = device::newest(1).at(0);
    let first = device::hash(state.get("key"), before);
    let drawn = (device::hash(first, device::iota(VOCABULARY)) >> 40) & 0xFFFFFF;
    device::draw(logits + drawn.to_float().lt(0.5 * 16_777_216.0).to_float() * 2)
}

fn surprised(logits: Tensor, state: &mut State) -> Tensor {
    let surprise = -logits.log_softmax() / std::f64::consts::LN_2;
    let token = device::draw(logits.where_(surprise.le(state.get("mu")), f64::NEG_INFINITY));
    state.set("mu", state.get("mu") - (surprise.at(token) - 5.0) * 0.1);
    token
}

fn shapes(logits: Tensor, state: &mut State) -> Tensor {
    let top = logits.top(8);
    let mean = logits.at(top).reshape(&[2, 4]).transpose().sum().mean();
    let folded = state.get("table").slice(1, -1).iter().fold(mean, |a, x| a + x);
    device::where_(!folded.ne(0), top.at(-1), device::step() % 3)
}

fn operators(logits: Tensor, state: &mut State) -> Tensor {
    let (x, n, flags, table) =
        (state.get("x"), state.get("n"), state.get("flags"), state.get("table"));
    let x = device::concat(x.flip(), x.abs()).sort().slice(0, 6).pow(0.5) * x.min();
    let x = (x.sqrt().tanh() + x.sigmoid().floor() - x.exp().log()) / device::maximum(x, 0.25);
    let n = ((n.floordiv(3) | 5) ^ !n) << 2;
    let some = flags.any() ^ flags.all() & n.ne(7).any();
    let chance = device::random(n, 1).sum() + device::uniform(2) - device::exponential(3, 1);
    let matrix = device::matvec(table, x.slice(0, 3));
    let places = device::one_hot(n.at(0), 6).to_int() + flags.to_bool().to_int();
    let added = x.scatter_add(places, chance).is_nan().to_int().sum();
    state.set("n", n.scatter_max(n.argsort(), 9));
    let rows = table.at(1).cumsum().argmax() + matrix.argmax();
    device::where_(some, added + rows, logits.descending().at(0))
}

fn counting(_: Tensor, state: &mut State) -> Tensor {
    state.set("next", state.get("next") + 1);
    state.get("next") + 9
}

fn drawn(rule: impl Fn(Tensor, &mut State) -> Tensor) -> Result<ProgramSampler> {
    let given = Values::from([("p", 0.5)]).and("k", 5).and("tokens", [3, 4]);
    let sequences = samplers::padded(&[vec![5], vec![1, 2, 3]]);
    let given = given.and("values", [1.0, -1.0]).and("sequences", sequences);
    device::program(|logits, state| device::draw(rule(logits, state))).with(given)
}

fn every_step() -> DeviceSampler {
    DeviceSampler {
        logit_bias: vec![(3, Some(1.0)), (4, None)],
        allowed_tokens: Some(vec![1, 2]),
        repetition_penalty: 1.5,
        presence_penalty: 0.5,
        frequency_penalty: 0.5,
        no_repeat_ngram_size: 3,
        banned_sequences: vec![vec![5], vec![1, 2, 3]],
        min_tokens: 3,
        end_tokens: vec![1],
        dry_multiplier: 0.5,
        dry_sequence_breakers: vec![4],
        temperature: 0.5,
        top_k: 20,
        top_p: 0.5,
        min_p: 0.25,
        typical_p: 0.5,
        epsilon_cutoff: 0.25,
        eta_cutoff: 0.25,
        xtc_probability: 0.5,
        ..DeviceSampler::default()
    }
}

fn texts() -> Result<String> {
    let watermark = Values::from([("temperature", 1.0)]).and("key", 42);
    let many = Values::default().and("x", [0.5, 1.0, 2.0, -1.0]).and("n", [1, 2, 3]);
    let many = many.and("flags", [true, false, true, false, true, false]);
    let many = many.and("table", [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    let miro = [("mu", 10.0), ("tau", 5.0), ("rate", 0.1)];
    let edt = [("temperature", 1.0), ("theta", 1.0)];
    let found = [
        ("greedy", device::program(greedy).with(())),
        ("penalized", device::program(penalized).with(())),
        ("green", device::program(green).with([("key", 42)])),
        ("surprised", device::program(surprised).with([("mu", 10.0)])),
        ("shapes", device::program(shapes).with([("table", [0.5, 1.0, 2.0, -1.0])])),
        ("operators", device::program(operators).with(many)),
        ("top_k", drawn(|logits, _| samplers::top_k(logits, 40))),
        ("top_k of state", drawn(|logits, state| samplers::top_k(logits, state.get("k")))),
        ("top_p", drawn(|logits, _| samplers::top_p(logits, 0.9))),
        ("min_p", drawn(|logits, _| samplers::min_p(logits, 0.05))),
        ("min_p of state", drawn(|logits, state| samplers::min_p(logits, state.get("p")))),
        ("top_a", drawn(|logits, _| samplers::top_a(logits, 0.2))),
        ("epsilon_cutoff", drawn(|logits, _| samplers::epsilon_cutoff(logits, 3e-4))),
        ("eta_cutoff", drawn(|logits, _| samplers::eta_cutoff(logits, 3e-4))),
        ("eta_cutoff of state", drawn(|logits, s| samplers::eta_cutoff(logits, s.get("p")))),
        ("typical_p", drawn(|logits, _| samplers::typical_p(logits, 0.95))),
        ("tail_free", drawn(|logits, _| samplers::tail_free(logits, 0.95, 256))),
        ("xtc", drawn(|logits, _| samplers::xtc(logits, 0.1, 0.5))),
        ("repetition_penalty", drawn(|logits, _| samplers::repetition_penalty(logits, 1.2))),
        ("presence_penalty", drawn(|logits, _| samplers::presence_penalty(logits, 0.5))),
        ("frequency_penalty", drawn(|logits, _| samplers::frequency_penalty(logits, 0.5))),
        ("no_repeat_ngram", drawn(|logits, _| samplers::no_repeat_ngram(logits, 3, 1024))),
        (
            "banned_sequences",
            drawn(|logits, s| samplers::banned_sequences(logits, s.get("sequences"))),
        ),
        ("dry", drawn(|logits, s| samplers::dry(logits, 0.8, 1.75, 2, Some(s.get("tokens")), 64))),
        ("watermark", drawn(|logits, _| samplers::watermark(logits, 2.0, 0.5, 7))),
        (
            "logit_bias",
            drawn(|logits, state| {
                samplers::logit_bias(logits, state.get("tokens"), state.get("values"))
            }),
        ),
        ("allowed_tokens", drawn(|logits, s| samplers::allowed_tokens(logits, s.get("tokens")))),
        ("min_tokens", drawn(|logits, s| samplers::min_tokens(logits, 4, s.get("tokens")))),
        ("healed", drawn(|logits, state| samplers::healed(logits, state.get("tokens")))),
        ("guidance", drawn(|logits, _| samplers::guidance(logits, device::beside(0), 3.0))),
        (
            "guidance of state",
            drawn(|logits, state| samplers::guidance(logits, device::beside(1), state.get("p"))),
        ),
        ("contrastive", drawn(|logits, _| samplers::contrastive(logits, device::beside(0), 0.1))),
        (
            "context_aware",
            drawn(|logits, _| samplers::context_aware(logits, device::beside(0), 0.5)),
        ),
        (
            "context_aware of state",
            drawn(|logits, state| {
                samplers::context_aware(logits, device::beside(0), state.get("p"))
            }),
        ),
        ("with_at", drawn(|logits, s| logits.with_at(s.get("k"), s.get("p")).with_at(7, 0))),
        ("tempered", device::program(samplers::tempered).with([("temperature", 0.7), ("p", 0.9)])),
        ("mirostat", device::program(samplers::mirostat).with(miro)),
        ("entropy_temperature", device::program(samplers::entropy_temperature).with(edt)),
        ("gumbel_watermark", device::program(samplers::gumbel_watermark).with(watermark.clone())),
        ("synthid", device::program(samplers::synthid).with(watermark)),
        ("device sampler", every_step().resolved().map(|found| found.expect("no program"))),
    ];
    let members = found.into_iter().map(|(name, sampler)| {
        let sampler = sampler.map_err(|error| format!("{name}: {error}"))?;
        Ok(format!("{}: {}", quote(name), quote(sampler.text())))
    });
    Ok(format!("{{{}}}", members.collect::<Result<Vec<_>>>()?.join(",")))
}

/// A mistake each, at the line of its `// N`.
#[rustfmt::skip]
fn mistakes() -> Result<String> {
    let told = |rule: fn(Tensor, &mut State) -> Tensor| {
        device::program(rule).with([("x", 1.0)]).err().map_or(String::new(), |e| e.to_string())
    };
    let mut leaked = None;
    let leak = std::cell::RefCell::new(&mut leaked);
    device::program(|logits, _| {
        **leak.borrow_mut() = Some(logits);
        logits.argmax()
    })
    .with(())?;
    let other = device::program(|logits, _| (logits + leaked.unwrap_or(logits)).argmax()).with(()); // 8
    let found = [
        told(|logits, _| (logits + device::newest(5).to_float()).argmax()), // 0
        told(|logits, _| (logits + device::step()).argmax()), // 1
        told(|logits, state| { state.set("x", logits); logits.argmax() }), // 2
        told(|_, state| state.get("y")), // 3
        told(|logits, _| logits),
        told(|logits, _| logits.mean().to_int()), // 5
        told(|logits, _| logits.at(-1).to_int()), // 6
        told(|logits, _| device::draw(logits.max())), // 7
        other.err().map_or(String::new(), |error| error.to_string()),
        told(|logits, _| samplers::top_p(logits.max(), logits).argmax()), // 9
        told(|logits, _| { let _ = device::program(greedy).with(()); logits }),
        device::program(greedy).with([("x", Vec::<f64>::new())]).err().map_or(String::new(), |e| e.to_string()),
        device::program(greedy).with([("x", f64::NAN)]).err().map_or(String::new(), |e| e.to_string()),
    ];
    let found: Vec<String> = found.iter().map(|one| quote(one)).collect();
    Ok(format!("[{}]", found.join(",")))
}

async fn runs() -> Result<String> {
    let model = Model::load()?;
    let mut context = Context::new(&model)?;
    context.fill("Once upon a time")?;
    let first = device::program(counting).with([("next", 0)])?;
    let mut generation = context.generate(&first).max_tokens(5).stop_tokens([]);
    let tokens = generation.read_tokens().await?;
    let state = generation.state().await?;
    drop(generation);
    let again = device::program(counting).with(state)?;
    let more = context.generate(again).max_tokens(3).stop_tokens([]).collect_tokens().await?;
    // A whole number beyond what a float has exactly goes there and comes back.
    let huge = 9_007_199_254_740_993_i64; // 2^53 + 1, beyond floats
    let shifted = device::program(|logits, state| {
        state.set("x", state.get("x") + 2);
        logits.argmax()
    });
    let huge = shifted.with(Values::from([("x", huge)]).and("low", f64::NEG_INFINITY))?;
    let mut generation = context.generate(huge).max_tokens(2).stop_tokens([]);
    generation.read_tokens().await?;
    let state = generation.state().await?;
    drop(generation);
    let mut drawn = Vec::new();
    for seed in [3, 3, 4] {
        let mut fresh = Context::new(&model)?;
        fresh.fill("Once upon a time")?;
        let rule = device::program(samplers::tempered);
        let rule = rule.with([("temperature", 1.5), ("p", 0.99)])?.seed(seed);
        drawn.push(fresh.generate(rule).max_tokens(8).stop_tokens([]).collect_tokens().await?);
    }
    let mut plain = context.generate(Sampler::greedy()).max_tokens(1);
    plain.read_tokens().await?;
    let none = plain.state().await.err().map_or(String::new(), |error| error.to_string());
    let state = format!("{state:?}");
    let (state, none) = (quote(&state), quote(&none));
    Ok(format!(
        r#"{{"tokens":{tokens:?},"more":{more:?},"state":{state},"drawn":{drawn:?},"none":{none}}}"#
    ))
}

/// A program that counts tokens and has state can't go on with a text that was cut.
async fn undone() -> Result<String> {
    let mut context = Context::new(&Model::load()?)?;
    context.fill("Once upon a time")?;
    let rule = device::program(|logits, state| {
        state.set("n", state.get("n") + 1);
        (logits - device::counts().to_float()).argmax()
    });
    let mut generation = context.generate(rule.with([("n", 0)])?).max_tokens(40).stop_tokens([]);
    generation.next_token().await?;
    generation.accept(5)?;
    generation.next_token().await?;
    Ok("went on".into())
}

fn attend_texts() -> Result<String> {
    let own = device::attend(|state| {
        let most = device::shared(device::scores()).max();
        let kept = most.gt(device::iota(HEADS).to_float() * state.get("share"));
        state.set("reached", state.get("reached") & device::step().lt(device::layer()));
        let pages = device::iota(PAGES);
        pages.eq(device::tokens().floordiv(16)) | kept.any() & (pages % 2).eq(0)
    });
    let given = Values::from([("share", 0.5)]).and("reached", per_token(true));
    let found = [
        ("sinks", attention::sinks(4, 1020)?),
        ("sinks of", attention::sinks(0, 64)?),
        ("quest", attention::quest(8, 2)?),
        ("tova", attention::tova(256)?),
        ("h2o", attention::h2o(32, 64, false)?),
        ("h2o together", attention::h2o(32, 64, true)?),
        ("snapkv", attention::snapkv(128, 32, 7)?),
        ("own", own.with(given)?),
    ];
    let members = found.iter().map(|(name, one)| format!("{}: {}", quote(name), quote(one.text())));
    Ok(format!("{{{}}}", members.collect::<Vec<_>>().join(",")))
}

/// The token that it is told, and one more each time.
fn told(_: Tensor, state: &mut State) -> Tensor {
    state.set("more", state.get("more") + 1);
    state.get("token") + state.get("more") - 1
}

/// Tokens of a program that is given other values meanwhile, and errors.
async fn put() -> Result<String> {
    let mut context = Context::new(&Model::load()?)?;
    context.fill("Once upon a time")?;
    let rule = device::program(told).with([("token", 10), ("more", 0)])?;
    let mut generation = context.generate(rule).max_tokens(9).stop_tokens([]);
    let mut errors = vec![generation.put([("token", 50)])];
    let mut tokens = Vec::new();
    while let Some(token) = generation.next_token().await? {
        tokens.push(token);
        match tokens.len() {
            3 => generation.put([("token", 50)])?,
            6 => {
                errors.push(generation.put([("token", 0.5)]));
                errors.push(generation.put([("other", 1)]));
                generation.put([("token", 20), ("more", 0)])?;
            }
            _ => {}
        }
    }
    let state = generation.state().await?;
    let state = [state.number("token"), state.number("more")].map(|one| one.unwrap_or(-1.0));
    let told = |error: Result| quote(&error.err().map_or(String::new(), |e| e.to_string()));
    let errors: Vec<String> = errors.into_iter().map(told).collect();
    let errors = errors.join(",");
    Ok(format!(r#"{{"tokens":{tokens:?},"state":{state:?},"errors":[{errors}]}}"#))
}

/// Tokens of two texts, of one that guidance takes wholly and of one that it leaves for the other;
/// and without a context beside.
async fn beside() -> Result<String> {
    let model = Model::load()?;
    let read = device::program(|logits, s| {
        samplers::guidance(logits, device::beside(0), s.get("scale")).argmax()
    });
    let mut found = Vec::new();
    for text in ["Once upon a time", "Rain. Once"] {
        let mut context = Context::new(&model)?;
        context.fill(text)?;
        let alone = context.generate(Sampler::greedy()).max_tokens(6).stop_tokens([]);
        found.push(alone.collect_tokens().await?);
    }
    for scale in [1.0, 0.0] {
        let (mut context, mut other) = (Context::new(&model)?, Context::new(&model)?);
        context.fill("Once upon a time")?;
        other.fill("Rain. Once")?;
        let generation = context.generate(read.with([("scale", scale)])?).max_tokens(6);
        let generation = generation.stop_tokens([]).beside([&mut other]);
        found.push(generation.collect_tokens().await?);
    }
    let mut context = Context::new(&model)?;
    context.fill("Once")?;
    let alone = context.generate(read.with([("scale", 1.0)])?).max_tokens(2).collect_tokens().await;
    let alone = quote(&alone.err().map_or(String::new(), |error| error.to_string()));
    Ok(format!(r#"{{"texts":{found:?},"alone":{alone}}}"#))
}

/// Tokens without guesses, with guesses from another text, and with those of the run's own steps.
async fn like() -> Result<String> {
    let model = Model::load()?;
    let mut found = Vec::new();
    for most in [0, 8] {
        let mut context = Context::new(&model)?;
        context.fill("one two three one two three one two")?;
        let like = model.tokenizer().encode("one two three four")?;
        let generation = context.generate(Sampler::greedy()).max_tokens(24).stop_tokens([]);
        found.push(generation.speculate(most).like(like).collect_tokens().await?);
    }
    let mut context = Context::new(&model)?;
    context.fill("one two three one two three one two")?;
    let generation = context.generate(Sampler::greedy()).max_tokens(24).stop_tokens([]);
    found.push(generation.speculate(8).jacobi().collect_tokens().await?);
    let mut small = Context::new(&model)?;
    let mut context = Context::new(&model)?;
    context.fill("one two three one two three one two")?;
    let generation = context.generate(Sampler::greedy()).max_tokens(10).stop_tokens([]);
    let mut drafted = generation.speculate(4).drafter(&mut small).collect_tokens().await?;
    let generation = context.generate(Sampler::greedy()).max_tokens(14).stop_tokens([]);
    drafted.extend(generation.speculate(4).drafter(&mut small).collect_tokens().await?);
    found.push(drafted);
    let mistake = context.generate(Sampler::greedy()).jacobi().collect_tokens().await;
    let mistake = quote(&mistake.err().map_or(String::new(), |error| error.to_string()));
    Ok(format!("[{found:?},{mistake}]"))
}

/// Tokens by policy of what layers read, and what is refused.
async fn attending() -> Result<String> {
    let model = Model::load()?;
    let prompt = "The quick brown fox jumps over the lazy dog, and runs on through the woods. ";
    let policies: [Option<Attend>; 6] = [
        None,
        Some(attention::quest(512, 0)?),
        Some(attention::quest(2, 1)?),
        Some(attention::sinks(4, 12)?),
        Some(attention::h2o(6, 4, false)?),
        Some(attention::snapkv(5, 3, 7)?),
    ];
    let mut found = Vec::new();
    for policy in &policies {
        let mut context = Context::new(&model)?;
        context.fill(&prompt.repeat(2))?;
        let mut generation = context.generate(Sampler::greedy()).max_tokens(24).stop_tokens([]);
        if let Some(attend) = policy {
            generation = generation.attend(attend);
        }
        found.push(generation.collect_tokens().await?);
    }
    let mut context = Context::new(&model)?;
    context.fill("Once")?;
    let attend = attention::tova(9)?;
    let steps = context.generate(Sampler::greedy()).attend(&attend).next_sampled().await.err();
    let alone = context.generate(Sampler::greedy()).attend(&attend).run_ahead(false);
    let alone = alone.collect_tokens().await.err();
    let wrong = device::attend(|_| device::scores().max().gt(0.0)).with(()).err();
    let refused = [steps, alone, wrong];
    let refused = refused.map(|error| quote(&error.map_or(String::new(), |e| e.to_string())));
    let refused = refused.join(",");
    Ok(format!(r#"{{"tokens":{found:?},"refused":[{refused}]}}"#))
}
