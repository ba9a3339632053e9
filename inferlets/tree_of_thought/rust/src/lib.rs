//! Tree of thought: several next lines for each of the best ones so far, judged by code.
//!
//! Options: `--question TEXT` (a sum or a difference), `--branches N` (4), `--best N` (2),
//! `--depth N` (8), `--temperature T` (1), `--seed N` (1).

use inferlet::json::quote;
use inferlet::{join_all, Args, Context, Error, Model, Result, Sampler};

const PLACES: [&str; 4] = ["ones", "tens", "hundreds", "thousands"];

/// The value of a chain of sums and differences.
fn value(chain: &str) -> Option<i64> {
    let chain = chain.replace('-', "+-");
    chain.split('+').filter(|part| !part.is_empty()).map(|part| part.parse::<i64>().ok()).sum()
}

/// Whether each `chain=number` and each `chain borrow 0 or 1` in a line is true.
fn is_true(line: &str) -> bool {
    let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let sums = words.iter().filter_map(|word| word.split_once('='));
    let borrows = words.windows(3).filter(|words| words[1] == "borrow");
    sums.clone().all(|(left, right)| value(left) == right.parse().ok())
        && borrows.into_iter().all(|w| (value(w[0]) < Some(0)) == (w[2] == "1"))
}

/// How many lines of a worked sum or difference hold, from the first on.
fn judge(question: &[&str; 3], lines: &[String]) -> usize {
    let [first, sign, second] = question;
    let width = first.len().max(second.len());
    let (top, bottom) = (format!("{first:0>width$}"), format!("{second:0>width$}"));
    let mut starts = vec![format!("{top}{sign}{bottom}:")];
    let mut carry = String::new();
    let digits = top.chars().rev().zip(bottom.chars().rev());
    for (((a, b), place), line) in digits.zip(PLACES).zip(lines.iter().skip(1)) {
        starts.push(format!("{place}: {a}{sign}{b}{carry}"));
        let found = ["carry ", "borrow "].iter().find_map(|word| line.split_once(word));
        carry = found.map_or(String::new(), |(_, rest)| format!("{sign}{}", &rest[..1]));
    }
    if starts.len() == width + 1 {
        starts.push("Answer: ".to_owned());
    }
    let right =
        |(start, line): &(&String, &String)| line.starts_with(start.as_str()) && is_true(line);
    starts.iter().zip(lines).take_while(right).count()
}

struct Thought {
    value: usize,
    lines: Vec<String>,
    context: Context,
}

#[inferlet::main]
async fn main(mut args: Args) -> Result<String> {
    let question: String = args.value_from_str("--question")?;
    let branches: usize = args.opt_value_from_str("--branches")?.unwrap_or(4);
    let best: usize = args.opt_value_from_str("--best")?.unwrap_or(2);
    let depth: usize = args.opt_value_from_str("--depth")?.unwrap_or(8);
    let temperature: f32 = args.opt_value_from_str("--temperature")?.unwrap_or(1.0);
    let seed: u64 = args.opt_value_from_str("--seed")?.unwrap_or(1);
    args.finish()?;
    let words: Vec<&str> = question.trim_end_matches('?').split(' ').collect();
    let [.., first, sign, second] = words[..] else {
        return Err(Error::usage("--question is a sum or a difference: What is 5 + 6?"));
    };

    let mut context = Context::new(&Model::load()?)?;
    context.user(&question)?.cue()?.flush().await?;
    let mut thoughts = vec![Thought { value: 0, lines: Vec::new(), context }];
    for step in 0..depth {
        let mut tried = Vec::new();
        for thought in &mut thoughts {
            for _ in 0..branches {
                let context = thought.context.fork()?;
                tried.push(Thought { value: 0, lines: thought.lines.clone(), context });
            }
        }
        let texts = tried.iter_mut().enumerate().map(|(i, thought)| {
            let sampler = match i % branches {
                0 => Sampler::greedy(),
                _ => Sampler::multinomial(temperature),
            };
            let text = thought.context.generate(sampler).seed(seed + (100 * step + i) as u64);
            text.max_tokens(48).stop_strings(["\n"]).collect_text()
        });
        for (text, thought) in join_all(texts).await.into_iter().zip(&mut tried) {
            thought.lines.push(text?);
            thought.value = judge(&[first, sign, second], &thought.lines);
        }
        tried.sort_by_key(|thought| std::cmp::Reverse(thought.value));
        tried.truncate(best);
        thoughts = tried;
        if thoughts[0].lines[step].starts_with("Answer") {
            break;
        }
    }
    let Thought { value, lines, .. } = &thoughts[0];
    let answer = quote(lines.last().map_or("", |line| line));
    Ok(format!(r#"{{"answer": {answer}, "value": {value}}}"#))
}
