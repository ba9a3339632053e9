//! Device programs of Rust: texts, mistakes, and what they choose; the argument says which.

use inferlet::device::{self, DeviceProgram, Values};
use inferlet::json::quote;
use inferlet::{Context, Error, Model, Result, Rule, Sampler};

#[inferlet::main]
async fn main(arguments: Vec<String>) -> Result<String> {
    match arguments.first().map(String::as_str) {
        Some("mistakes") => mistakes().await,
        Some("runs") => runs().await,
        Some("ways") => ways().await,
        Some("guessed") => guessed().await,
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
async fn refused(rule: impl Into<Rule>) -> Result<String> {
    let mut context = Context::new(&Model::load()?)?;
    context.fill("Once")?;
    Ok(told(context.generate(rule).max_tokens(2).collect_text().await))
}

async fn mistakes() -> Result<String> {
    let kinds = "\n  def f(logits):\n      return (logits +  step()).argmax()";
    let mut found = vec![refused(device::program(kinds).with(())).await?];
    let greedy = device::program("def f(logits): return logits.argmax()");
    found.push(refused(greedy.with([("x", Vec::<f64>::new())])).await?);
    found.push(refused(greedy.with([("x", f64::NAN)])).await?);
    found.push(refused(Sampler::greedy().with("temprature", 1)).await?);
    let nothing = device::uploaded("nothing", "vector");
    found.push(refused(greedy.with([("x", nothing)])).await?);
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
    let rule = counting().with([("next", 0)]);
    let tokens = context.generate(&rule).max_tokens(5).stop_tokens([]).collect_tokens().await?;
    // A whole number beyond what a float has exactly goes there.
    let huge = 9_007_199_254_740_993_i64; // 2^53 + 1, beyond floats
    let text = "def f(x, s): return (s.x - 9007199254740983) * (s.low < 0.0).to_int()";
    let shifted = device::program(text);
    let huge = shifted.with(Values::from([("x", huge)]).and("low", f64::NEG_INFINITY));
    let exact = context.generate(huge).max_tokens(1).stop_tokens([]).collect_tokens().await?;
    let mut drawn = Vec::new();
    for seed in [3, 3, 4] {
        let mut fresh = Context::new(&model)?;
        fresh.fill("Once upon a time")?;
        let rule = device::named("tempered").with([("temperature", 1.5), ("p", 0.99)]).seed(seed);
        drawn.push(fresh.generate(rule).max_tokens(8).stop_tokens([]).collect_tokens().await?);
    }
    Ok(format!(r#"{{"tokens":{tokens:?},"exact":{exact:?},"drawn":{drawn:?}}}"#))
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

/// Tokens without guesses, and with them.
async fn guessed() -> Result<String> {
    let mut found = Vec::new();
    for most in [0, 8] {
        let mut context = Context::new(&Model::load()?)?;
        context.fill("one two three one two three one two")?;
        let generation = context.generate(Sampler::greedy()).max_tokens(24).stop_tokens([]);
        found.push(generation.speculate(most).collect_tokens().await?);
    }
    Ok(format!("{found:?}"))
}
