//! A request, as the gateway writes it. The gateway has checked what users can get wrong.

use std::cell::RefCell;
use std::rc::Rc;

use inferlet::json::Value;
use inferlet::{session, Context};
use inferlet::{Error, ErrorCode, Generator, Grammar, Model, Result, Sampler};

/// Precedes the text of a token that is a marker.
const MARK: char = '\u{f8ff}';

/// What the model is to continue.
pub enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    /// What the chat template gets.
    Messages(Messages),
}

pub struct Messages {
    /// A JSON list.
    pub list: String,
    /// A JSON object of the template's further arguments.
    pub arguments: Option<String>,
    /// Whether the assistant's turn starts.
    pub cue: bool,
    /// The end of the last message, which is not ended but continued.
    pub continued: Option<String>,
}

pub struct Request {
    pub model: Model,
    pub adapter: Option<String>,
    pub prompt: Prompt,
    /// Number of image files that come as messages.
    pub images: usize,
    pub choices: usize,
    pub max_tokens: Option<usize>,
    /// Whether the prompt is only counted, however long it is.
    pub counts: bool,
    /// Whether `max_tokens` beyond the model's longest context means up to its end.
    pub clamp: bool,
    pub sampler: Sampler,
    /// So many tokens are chosen before those that end the text.
    pub min_tokens: u32,
    /// Log-probabilities are told.
    pub logprobs: bool,
    /// How many likeliest tokens are told with the log-probability of each of the prompt's tokens.
    pub prompt_logprobs: Option<usize>,
    /// Tokens at the end of the prompt that are kept; all by default.
    pub truncate: Option<usize>,
    /// Whether a text has no token before it that begins every text.
    pub bare: bool,
    /// Of the queues.
    pub priority: i32,
    /// Token ids are told.
    pub ids: bool,
    /// Text is told as it comes.
    pub stream: bool,
    pub stop: Vec<String>,
    /// Whether the stop string that was found belongs to the text.
    pub include_stop: bool,
    /// Tokens that end a choice; the model's own by default.
    pub stop_tokens: Option<Vec<u32>>,
    /// Ranges of tokens that have no text in the answer: first and last.
    pub hidden: Vec<(u32, u32)>,
    /// Tokens that are markers, and their text.
    pub marks: Vec<(u32, String)>,
    pub grammar: Option<Grammar>,
    /// What is told, where that goes in one message at the end: a list in JSON without its brackets.
    pub held: Option<Rc<RefCell<String>>>,
    /// In turn how a prompt may end, and what then may precede the text of the grammar.
    leads: Vec<String>,
}

/// The model that a request names.
pub fn model_of(asked: &Value) -> Result<Model> {
    Model::named(asked.get("model").and_then(Value::as_str).ok_or_else(|| wrong("model"))?)
}

impl Request {
    pub fn read(asked: &Value) -> Result<Request> {
        let given = asked.get("sampler").ok_or_else(|| wrong("sampler"))?;
        let model = model_of(asked)?;
        let mut sampler = Sampler::from_json(given);
        let banned = banned(&model, &texts(asked, "bad_words"))?;
        if !banned.is_empty() {
            sampler = sampler.with("banned_sequences", banned);
        }
        Ok(Request {
            model,
            adapter: text(asked, "adapter"),
            prompt: prompt(asked)?,
            images: number(asked, "images").unwrap_or(0.0) as usize,
            choices: number(asked, "choices").unwrap_or(1.0) as usize,
            max_tokens: number(asked, "max_tokens").map(|count| count as usize),
            counts: flag(asked, "counts"),
            clamp: flag(asked, "clamp"),
            sampler,
            min_tokens: given.get("min_tokens").and_then(Value::as_u32).unwrap_or_default(),
            logprobs: flag(asked, "logprobs"),
            prompt_logprobs: number(asked, "prompt_logprobs").map(|count| count as usize),
            truncate: number(asked, "truncate").map(|count| count as usize),
            bare: flag(asked, "bare"),
            priority: number(asked, "priority").unwrap_or(0.0) as i32,
            ids: flag(asked, "ids"),
            stream: flag(asked, "stream"),
            stop: texts(asked, "stop"),
            include_stop: flag(asked, "include_stop"),
            stop_tokens: asked.get("stop_tokens").map(numbers).transpose()?,
            hidden: pairs(asked.get("hidden"))?,
            marks: marks(asked.get("marks")),
            grammar: grammar(asked),
            held: None,
            leads: texts(asked, "leads"),
        })
    }

    /// Tells the gateway something.
    pub async fn tell(&self, message: &str) -> Result {
        let Some(held) = &self.held else { return session::stream(message).await };
        let mut held = held.borrow_mut();
        let comma = if held.is_empty() { "" } else { "," };
        *held += comma;
        *held += message;
        Ok(())
    }

    /// Lets precede the text of the grammar what may behind a prompt that ends so.
    pub fn lead(&mut self, tail: &str) {
        let mut pairs = self.leads.chunks_exact(2);
        let fits = pairs.find(|pair| tail.trim_end().ends_with(pair[0].as_str()));
        let lead = fits.map_or("", |pair| pair[1].as_str());
        if let (Some(form), false) = (&self.grammar, lead.is_empty()) {
            let lead = Grammar::lark(&format!("start: {lead}"));
            self.grammar = Some(Grammar::sequence([&lead, form]));
        }
    }

    /// Whether a token has no text in the answer.
    pub fn hides(&self, token: u32) -> bool {
        self.hidden.iter().any(|&(first, last)| first <= token && token <= last)
    }

    /// The text of a token with what precedes it if it is a marker.
    pub fn marked(&self, token: u32, mut text: String) -> String {
        if let Some((_, marker)) = self.marks.iter().find(|(mark, _)| *mark == token) {
            if let Some(at) = text.rfind(marker.as_str()) {
                text.insert(at, MARK);
            }
        }
        text
    }

    /// The generation of one choice.
    pub fn generator<'a>(&self, index: usize, context: &'a mut Context) -> Generator<'a> {
        let seed = self.sampler.seed().map(|seed| seed.wrapping_add(index as u64));
        let mut generator = context.generate(&self.sampler).seed(seed);
        if let Some(grammar) = &self.grammar {
            // A token that is forced is not sampled, and has no log-probability.
            generator = generator.grammar(grammar).forced(!self.logprobs);
        }
        if let Some(tokens) = &self.stop_tokens {
            generator = generator.stop_tokens(tokens.iter().copied());
        }
        match self.max_tokens {
            Some(count) => generator.max_tokens(count),
            None => generator,
        }
    }
}

/// The tokens of words, at the start of a text and behind a space.
fn banned(model: &Model, words: &[String]) -> Result<Vec<Vec<u32>>> {
    let mut found = Vec::new();
    for word in words {
        let word = word.trim_start();
        found.push(model.tokenizer().encode(word)?);
        found.push(model.tokenizer().encode(&format!(" {word}"))?);
    }
    found.retain(|each| !each.is_empty());
    Ok(found)
}

fn prompt(asked: &Value) -> Result<Prompt> {
    if let Some(list) = text(asked, "messages") {
        return Ok(Prompt::Messages(Messages {
            list,
            arguments: text(asked, "template"),
            cue: flag(asked, "cue"),
            continued: text(asked, "continued"),
        }));
    }
    if let Some(tokens) = asked.get("tokens") {
        return Ok(Prompt::Tokens(numbers(tokens)?));
    }
    text(asked, "text").map(Prompt::Text).ok_or_else(|| wrong("text"))
}

fn grammar(asked: &Value) -> Option<Grammar> {
    let given = asked.get("grammar")?;
    let text = text(given, "text")?;
    match given.get("kind")?.as_str()? {
        "json-schema" => Some(Grammar::json_schema(&text)),
        "regex" => Some(Grammar::regex(&text)),
        _ => Some(Grammar::lark(&text)),
    }
}

fn text(object: &Value, key: &str) -> Option<String> {
    object.get(key)?.as_str().map(str::to_owned)
}

fn number(object: &Value, key: &str) -> Option<f64> {
    object.get(key)?.as_f64()
}

fn flag(object: &Value, key: &str) -> bool {
    object.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn texts(object: &Value, key: &str) -> Vec<String> {
    let list = object.get(key).and_then(Value::as_list).unwrap_or_default();
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn numbers(list: &Value) -> Result<Vec<u32>> {
    let list = list.as_list().ok_or_else(|| wrong("tokens"))?;
    list.iter().map(|each| each.as_u32().ok_or_else(|| wrong("tokens"))).collect()
}

fn pairs(list: Option<&Value>) -> Result<Vec<(u32, u32)>> {
    let list = list.and_then(Value::as_list).unwrap_or_default();
    let pair = |each: &Value| match numbers(each)?[..] {
        [first, last] => Ok((first, last)),
        _ => Err(wrong("hidden")),
    };
    list.iter().map(pair).collect()
}

fn marks(list: Option<&Value>) -> Vec<(u32, String)> {
    let list = list.and_then(Value::as_list).unwrap_or_default();
    let mark = |each: &Value| match each.as_list()? {
        [token, text] => Some((token.as_u32()?, text.as_str()?.to_owned())),
        _ => None,
    };
    list.iter().filter_map(mark).collect()
}

fn wrong(field: &str) -> Error {
    let message = format!("the gateway's request has no usable `{field}`");
    Error::new(ErrorCode::InvalidArgument, message)
}
