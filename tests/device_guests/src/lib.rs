//! Device programs of Rust: texts, mistakes, and what they choose; the argument says which.

use inferlet::device::{
    self, named_attend, per_token, per_token_by_head, Attend, DeviceProgram, Values,
};
use inferlet::json::quote;
use inferlet::{Context, Error, Grammar, Model, Result, Rule, Sampler};

#[inferlet::main]
async fn main(arguments: Vec<String>) -> Result<String> {
    match arguments.first().map(String::as_str) {
        Some("mistakes") => mistakes().await,
        Some("runs") => runs().await,
        Some("ways") => ways().await,
        Some("put") => put().await,
        Some("beside") => beside().await,
        Some("like") => like().await,
        Some("attend") => attending().await,
        Some("undone") => undone().await,
        _ => Err(Error::usage("which?")),
    }
}

fn counting() -> DeviceProgram {
    let text = "
        def after(state):
            state.next += least
            return state.next

        def counting(logits, state):
            return after(state) + offsets[1] if name == 'nine' else 0
    ";
    let program = device::program(text).constant("least", 1).constant("offsets", [0, 9]);
    program.constant("name", "nine")
}

fn told<T>(result: Result<T>) -> String {
    quote(&result.err().map_or(String::new(), |error| error.to_string()))
}

/// What a generation by a rule is refused for.
async fn refused(rule: impl Into<Rule>, attend: Option<Attend>) -> Result<String> {
    let mut context = Context::new(&Model::load()?)?;
    context.fill("Once")?;
    let mut generation = context.generate(rule).max_tokens(2);
    if let Some(attend) = &attend {
        generation = generation.attend(attend);
    }
    Ok(told(generation.collect_text().await))
}

async fn mistakes() -> Result<String> {
    let kinds = "\n  def f(logits):\n      return (logits +  step()).argmax()";
    let mut found = vec![refused(device::program(kinds).with(()), None).await?];
    let greedy = device::program("def f(logits): return logits.argmax()");
    found.push(refused(greedy.with([("x", Vec::<f64>::new())]), None).await?);
    found.push(refused(greedy.with([("x", f64::NAN)]), None).await?);
    found.push(refused(Sampler::greedy().with("temprature", 1), None).await?);
    let wrong = "def f(scores): return iota(HEADS) >= 0"; // as a literal it would not be built
    found.push(refused(Sampler::greedy(), Some(device::attend(wrong).with(()))).await?);
    Ok(format!("[{}]", found.join(",")))
}

/// Tokens of samplers, read as a text, as tokens, and step by step.
async fn ways() -> Result<String> {
    let many = Sampler::top_k_top_p(0.5, 20, 0.9)
        .with("logit_bias", [(3, 1.0), (4, f64::NEG_INFINITY)])
        .with("repetition_penalty", 1.5)
        .with("no_repeat_ngram_size", 3)
        .with("banned_sequences", [vec![5], vec![1, 2, 3]])
        .with("dry_multiplier", 0.5)
        .with("typical_p", 0.9)
        .with("xtc_probability", 0.5);
    let mirostat = device::named("mirostat").with([("mu", 10.0), ("tau", 5.0), ("rate", 0.1)]);
    let rules = || [Rule::from(&many), Sampler::top_p(1.0, 0.9).into(), Rule::from(&mirostat)];
    let mut found = Vec::new();
    for number in 0..rules().len() {
        let mut all = Vec::new();
        for way in 0..3 {
            let mut context = Context::new(&Model::load()?)?;
            context.fill("Once upon a time")?;
            let before = context.len();
            let rule = rules().into_iter().nth(number).ok_or("no rule")?;
            let mut generation = context.generate(rule).seed(7).max_tokens(8).stop_tokens([]);
            match way {
                0 => drop(generation.collect_text().await?),
                1 => drop(generation.collect_tokens().await?),
                _ => while generation.next_sampled().await?.is_some() {},
            }
            let tokens = [context.tokens(), context.buffer()].concat();
            all.push(tokens[before..].to_vec());
        }
        found.push(all);
    }
    Ok(format!("{found:?}"))
}

async fn runs() -> Result<String> {
    let model = Model::load()?;
    let mut context = Context::new(&model)?;
    context.fill("Once upon a time")?;
    let first = counting().with([("next", 0)]);
    let mut generation = context.generate(&first).max_tokens(5).stop_tokens([]);
    let tokens = generation.read_tokens().await?;
    let state = generation.state().await?;
    drop(generation);
    let again = counting().with(state);
    let more = context.generate(again).max_tokens(3).stop_tokens([]).collect_tokens().await?;
    // A whole number beyond what a float has exactly goes there and comes back.
    let huge = 9_007_199_254_740_993_i64; // 2^53 + 1, beyond floats
    let shifted =
        device::program("def f(x, s):\n  s.x += 2\n  return x.where(s.low < 0, inf).argmax()");
    let huge = shifted.with(Values::from([("x", huge)]).and("low", f64::NEG_INFINITY));
    let mut generation = context.generate(huge).max_tokens(2).stop_tokens([]);
    generation.read_tokens().await?;
    let state = generation.state().await?;
    drop(generation);
    let mut drawn = Vec::new();
    for seed in [3, 3, 4] {
        let mut fresh = Context::new(&model)?;
        fresh.fill("Once upon a time")?;
        let rule = device::named("tempered").with([("temperature", 1.5), ("p", 0.99)]).seed(seed);
        drawn.push(fresh.generate(rule).max_tokens(8).stop_tokens([]).collect_tokens().await?);
    }
    let mut plain = context.generate(Sampler::greedy()).max_tokens(1);
    plain.read_tokens().await?;
    let none = plain.state().await.err().map_or(String::new(), |error| error.to_string());
    let state = format!("{state:?} {:?}", state.number("low"));
    let (state, none) = (quote(&state), quote(&none));
    Ok(format!(
        r#"{{"tokens":{tokens:?},"more":{more:?},"state":{state},"drawn":{drawn:?},"none":{none}}}"#
    ))
}

/// A program that counts tokens and has state can't go on with a text that was cut.
async fn undone() -> Result<String> {
    let mut context = Context::new(&Model::load()?)?;
    context.fill("Once upon a time")?;
    let rule = device::program(
        "def f(logits, state):\n  state.n += 1\n  return (logits - counts().to_float()).argmax()",
    );
    let mut generation = context.generate(rule.with([("n", 0)])).max_tokens(40).stop_tokens([]);
    generation.next_token().await?;
    generation.accept(5)?;
    generation.next_token().await?;
    Ok("went on".into())
}

/// Tokens of a program that is given other values meanwhile, and errors.
async fn put() -> Result<String> {
    let mut context = Context::new(&Model::load()?)?;
    context.fill("Once upon a time")?;
    // The token that it is told, and one more each time.
    let rule = device::program("def f(x, s):\n  s.more += 1\n  return s.token + s.more - 1");
    let rule = rule.with([("token", 10), ("more", 0)]);
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
    let errors: Vec<String> = errors.into_iter().map(told).collect();
    let errors = errors.join(",");
    Ok(format!(r#"{{"tokens":{tokens:?},"state":{state:?},"errors":[{errors}]}}"#))
}

/// Tokens of two texts, of one that guidance takes wholly and of one that it leaves for the other;
/// and without a context beside.
async fn beside() -> Result<String> {
    let model = Model::load()?;
    let read = device::program("def f(x, s): return guidance(x, beside(0), s.scale).argmax()");
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
        let generation = context.generate(read.with([("scale", scale)])).max_tokens(6);
        let generation = generation.stop_tokens([]).beside([&mut other]);
        found.push(generation.collect_tokens().await?);
    }
    let mut context = Context::new(&model)?;
    context.fill("Once")?;
    let alone = context.generate(read.with([("scale", 1.0)])).max_tokens(2).collect_tokens().await;
    let alone = told(alone);
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
    let mistake = context.generate(Sampler::greedy()).jacobi().collect_tokens().await;
    let mistake = quote(&mistake.err().map_or(String::new(), |error| error.to_string()));
    Ok(format!("[{found:?},{mistake}]"))
}

/// Tokens by policy of what layers read, and what is refused.
async fn attending() -> Result<String> {
    let model = Model::load()?;
    let prompt = "The quick brown fox jumps over the lazy dog, and runs on through the woods. ";
    let all = device::attend(
        "
        def all(scores, state):
            state.kept = state.kept & (step() >= least)
            return (scores > -inf).transpose().any() | state.kept.any()
        ",
    );
    let quest = |pages, full_layers| {
        let program = named_attend("quest").constant("pages", pages);
        program.constant("full_layers", full_layers).constant("together", false).with(())
    };
    let policies: [Option<Attend>; 7] = [
        None,
        Some(quest(512, 0)),
        Some(all.constant("least", 0).with([("kept", per_token(true))])),
        Some(quest(2, 1)),
        Some(named_attend("sinks").constant("first", 4).constant("window", 12).with(())),
        Some(
            named_attend("h2o")
                .constant("heavy", 6)
                .constant("recent", 4)
                .constant("together", false)
                .with([("sums", per_token_by_head(0.0))]),
        ),
        Some(
            named_attend("snapkv")
                .constant("budget", 5)
                .constant("window", 3)
                .constant("kernel", 7)
                .with(()),
        ),
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
    let mut ways = Vec::new();
    for attend in policies[3..].iter().flatten() {
        ways.push(attended_ways(&model, attend).await?);
    }
    let mut context = Context::new(&model)?;
    context.fill("Once")?;
    let tova = named_attend("tova").constant("budget", 9).with(());
    let mut generation = context.generate(Sampler::greedy()).attend(&tova);
    generation.distribution(1).await?;
    let refused = told(generation.accept(5));
    let layers = in_layers(&model).await?;
    Ok(format!(r#"{{"tokens":{found:?},"ways":{ways:?},"refused":{refused},"layers":{layers}}}"#))
}

/// Tokens without a program in the layers, with one that keeps something, and with a sampler that
/// looks at it; and what is kept.
async fn in_layers(model: &Model) -> Result<String> {
    let all = |value: f64| vec![value; 64];
    let given = Values::from([("weights", vec![all(1.0)])]).and("bias", vec![0.0]);
    let given = given.and("scores", vec![0.0]).and("sums", vec![0.0]);
    let probe = device::named("probe").with(given).at(&[1], true);
    let early = device::named("early").with([("early", vec![all(0.0); 2])]).at(&[0, 1], "last");
    let vector = device::uploaded("nothing", "vector");
    let steer = device::named("steer").constant("strength", 1.0).with([("vector", vector)]);
    let (greedy, dola) = (Sampler::greedy(), device::named("dola").with([("temperature", 0.0)]));
    let begin = || -> Result<Context> {
        let mut context = Context::new(model)?;
        context.fill("The quick brown fox")?;
        Ok(context)
    };
    let mut context = begin()?;
    let plain = context.generate(&greedy).max_tokens(8).stop_tokens([]).collect_tokens().await?;
    let mut context = begin()?;
    let mut generation = context.generate(&greedy).max_tokens(8).stop_tokens([]).attend(&probe);
    let probed = generation.read_tokens().await?;
    let sums = generation.state().await?.get("sums").map(|sums| sums.to_json());
    let mut context = begin()?;
    let contrasted = context.generate(dola).max_tokens(8).stop_tokens([]).attend(&early);
    let contrasted = contrasted.collect_tokens().await?;
    let mut context = begin()?;
    let missing = context.generate(&greedy).attend(&steer.at(&[1], false)).collect_tokens().await;
    let (sums, missing) = (sums.unwrap_or_default(), told(missing));
    Ok(format!("[{plain:?},{probed:?},{contrasted:?},{sums},{missing}]"))
}

/// Tokens by a policy, read in ways between which the server can't go on by itself.
async fn attended_ways(model: &Model, attend: &Attend) -> Result<Vec<Vec<u32>>> {
    // Within the grammar there are the same tokens for long, so that a sampler can have them.
    let grammar = Grammar::regex("[a-m ]{200}");
    let mask = grammar.matcher(model).await?.mask()?;
    let is_allowed = |id: &u32| mask[*id as usize / 32] >> (id % 32) & 1 == 1;
    let allowed: Vec<u32> = (0..model.vocab_size()).filter(is_allowed).collect();
    let warm = Sampler::top_p(0.8, 0.95);
    let same = warm.clone().with("allowed_tokens", allowed);
    let mut found = Vec::new();
    for way in ["run", "steps", "grammar", "sampled", "looks"] {
        let mut context = Context::new(model)?;
        context.fill("The quick brown fox jumps over the lazy dog, and runs on. ")?;
        let sampler = if way == "grammar" { &warm } else { &same };
        let mut generation = context.generate(sampler).seed(7).attend(attend);
        generation = generation.max_tokens(10).stop_tokens([]).run_ahead(way != "steps");
        if way == "grammar" {
            generation = generation.grammar(&grammar);
        }
        let mut tokens = Vec::new();
        while !generation.is_done() {
            if way == "looks" && tokens.len() % 3 != 1 {
                generation.distribution(3).await?;
            }
            tokens.extend(match way {
                "sampled" => generation.next_sampled().await?.map(|sampled| sampled.token),
                _ => generation.next_token().await?,
            });
        }
        found.push(tokens);
    }
    Ok(found)
}
