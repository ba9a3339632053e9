//! Tree of thought: several next lines for each of the best ones so far, judged by code.
//!
//! Options: `--question TEXT` (a sum or a difference), `--branches N` (4), `--best N` (2),
//! `--depth N` (8), `--temperature T` (1), `--seed N` (1).

use inferlet::json::quote;
use inferlet::{join_all, Args, Context, Error, Grammar, Model, Result, Sampler};

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

/// How the lines of a worked sum or difference begin, as far as the lines so far tell.
fn starts(question: &[&str; 3], lines: &[String]) -> Vec<String> {
    let [first, sign, second] = question;
    let width = first.len().max(second.len());
    let (top, bottom) = (format!("{first:0>width$}"), format!("{second:0>width$}"));
    let mut starts = vec![format!("{top}{sign}{bottom}:")];
    let mut carry = String::new();
    let digits = top.chars().rev().zip(bottom.chars().rev()).zip(PLACES);
    for (number, ((a, b), place)) in digits.enumerate().take(lines.len().max(1)) {
        starts.push(format!("{place}: {a}{sign}{b}{carry}"));
        let line = lines.get(number + 1).map_or("", |line| line);
        let found = ["carry ", "borrow "].iter().find_map(|word| line.split_once(word));
        carry = found.map_or(String::new(), |(_, rest)| format!("{sign}{}", &rest[..1]));
    }
    if lines.len() > width {
        starts.push("Answer: ".to_owned());
    }
    starts
}

/// What the next line may be.
fn shape(question: &[&str; 3], lines: &[String]) -> Grammar {
    let start = starts(question, lines)[lines.len()].replace('+', r"\+");
    let width = question[0].len().max(question[2].len());
    Grammar::regex(&match (lines.len(), question[1]) {
        (0, _) => format!("{start}\n"),
        (at, _) if at > width => format!(r"{start}-?\d{{1,5}}"),
        (_, "-") => format!("{start} borrow [01], 1?\\d(-\\d)+=\\d so \\d{{1,5}}\n"),
        (at, _) if at == width => format!("{start}=\\d{{1,2}} so \\d{{1,5}}\n"),
        _ => format!("{start}=\\d{{1,2}} carry [01] so \\d{{1,5}}\n"),
    })
}

/// How many lines of a worked sum or difference hold, from the first on.
fn judge(question: &[&str; 3], lines: &[String]) -> usize {
    let right =
        |(start, line): &(&String, &String)| line.starts_with(start.as_str()) && is_true(line);
    starts(question, lines).iter().zip(lines).take_while(right).count()
}

struct Thought {
    value: usize,
    lines: Vec<String>,
    context: Context,
}

#[inferlet::main]
async fn main(mut args: Args) -> Result<String> {
    let asked: String = args.value_from_str("--question")?;
    let branches: usize = args.opt_value_from_str("--branches")?.unwrap_or(4);
    let best: usize = args.opt_value_from_str("--best")?.unwrap_or(2);
    let depth: usize = args.opt_value_from_str("--depth")?.unwrap_or(8);
    let temperature: f32 = args.opt_value_from_str("--temperature")?.unwrap_or(1.0);
    let seed: u64 = args.opt_value_from_str("--seed")?.unwrap_or(1);
    args.finish()?;
    let words: Vec<&str> = asked.trim_end_matches('?').split(' ').collect();
    let question = match words[..] {
        [.., a, sign @ ("+" | "-"), b] if a.len().max(b.len()) <= PLACES.len() => [a, sign, b],
        _ => return Err(Error::usage("--question is of two numbers: What is 5 + 6?")),
    };

    let mut context = Context::new(&Model::load()?)?;
    context.user(&asked)?.cue()?.flush().await?;
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
            text.grammar(&shape(&question, &thought.lines)).max_tokens(48).collect_text()
        });
        for (text, thought) in join_all(texts).await.into_iter().zip(&mut tried) {
            thought.lines.push(text?.trim().to_owned());
            thought.value = judge(&question, &thought.lines);
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
