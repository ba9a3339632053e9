//! Device programs: a rule for choosing tokens, a text in the server's subset of Python, that runs
//! where the model runs.
//!
//! ```ignore
//! let mirostat = device::program("
//!     def mirostat(logits, state):
//!         surprise = -logits.log_softmax() / log(2)
//!         token = draw(logits.where(surprise <= state.mu, -inf))
//!         state.mu -= rate * (surprise[token] - 5.0)
//!         return token
//! ");
//! let rule = mirostat.constant("rate", 0.1).with([("mu", 10.0)]);
//! let text = context.generate(rule).max_tokens(64).collect_text().await?;
//! ```
//!
//! The text may be a file's, by `include_str!`. Its last function is the program; it may call the
//! others, and the rules of the library. A mistake is an error with line and column, when the first
//! token is asked for. `docs/device-programs.md` has examples and the operations.

use crate::error::{Error, Result};
use crate::json::{self, object, quote};

/// A value that a program is given by name, or that its text names.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    /// A number that is a float.
    Float(f64),
    /// A whole number.
    Int(i64),
    /// True or false.
    Bool(bool),
    /// A text, which only constants are.
    Text(String),
    /// Values of one kind and of the same sizes; of [`Given::Bias`] an object.
    List(Vec<Given>),
    /// An addition to a token's logit, in the parameter `logit_bias` of a sampler.
    Bias(u32, f64),
    /// A number or bool for each token of the context; see [`per_token`].
    PerToken(Box<Given>),
    /// A number or bool for each head's tokens; see [`per_token_by_head`].
    PerTokenByHead(Box<Given>),
}

/// State of the stage `attend` that has a value for each token: at first, and of new ones.
pub fn per_token(value: impl Into<Given>) -> Given {
    Given::PerToken(Box::new(value.into()))
}

/// As [`per_token`], of each head.
pub fn per_token_by_head(value: impl Into<Given>) -> Given {
    Given::PerTokenByHead(Box::new(value.into()))
}

macro_rules! given {
    ($($number:ty => $kind:ident,)*) => {
        $(impl From<$number> for Given {
            fn from(number: $number) -> Given {
                Given::$kind(number.into())
            }
        })*
    };
}

given! {
    f64 => Float, f32 => Float, i64 => Int, i32 => Int, u32 => Int, bool => Bool, &str => Text,
}

impl From<(u32, f64)> for Given {
    fn from((token, bias): (u32, f64)) -> Given {
        Given::Bias(token, bias)
    }
}

impl<T: Into<Given>> From<Vec<T>> for Given {
    fn from(values: Vec<T>) -> Given {
        Given::List(values.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Given>, const N: usize> From<[T; N]> for Given {
    fn from(values: [T; N]) -> Given {
        Given::List(values.into_iter().map(Into::into).collect())
    }
}

impl Given {
    /// As JSON, whose numbers with a point are floats.
    pub(crate) fn to_json(&self) -> String {
        match self {
            Given::Float(f64::NEG_INFINITY) => "null".into(),
            Given::Float(number) if number.is_infinite() => "Infinity".into(), // which is refused
            Given::Float(number) => format!("{number:?}"),
            Given::Int(number) => number.to_string(),
            Given::Bool(truth) => truth.to_string(),
            Given::Text(text) => quote(text),
            Given::List(values) => {
                let list: Vec<String> = values.iter().map(Given::to_json).collect();
                match values.first() {
                    Some(Given::Bias(..)) => object(list),
                    _ => format!("[{}]", list.join(",")),
                }
            }
            Given::Bias(token, bias) => format!("\"{token}\":{}", Given::Float(*bias).to_json()),
            Given::PerToken(value) => format!("{{\"per_token\":{}}}", value.to_json()),
            Given::PerTokenByHead(value) => {
                format!("{{\"per_token\":{},\"by_head\":true}}", value.to_json())
            }
        }
    }

    /// The same with what the server says that it is now.
    fn after(&self, found: &json::Value) -> Option<Given> {
        match (self, found) {
            (Given::List(values), found) => {
                let pairs = values.iter().zip(found.as_list()?);
                pairs.map(|(one, now)| one.after(now)).collect::<Option<_>>().map(Given::List)
            }
            (_, json::Value::Null) => Some(Given::Float(f64::NEG_INFINITY)),
            (_, json::Value::Bool(truth)) => Some(Given::Bool(*truth)),
            (Given::Int(_), found) if found.as_i64().is_some() => found.as_i64().map(Given::Int),
            (_, found) => found.as_f64().map(Given::Float),
        }
    }
}

/// The values that a program is given, by name: `[("mu", 10.0), ("tau", 5.0)].into()`, or
/// `Values::from([("mu", 10.0)]).and("key", 42)`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values(Vec<(String, Given)>);

impl Values {
    /// With one more value, or another one.
    pub fn and(mut self, name: &str, value: impl Into<Given>) -> Values {
        self.0.retain(|(one, _)| one != name);
        self.0.push((name.into(), value.into()));
        self
    }

    /// A value by its name.
    pub fn get(&self, name: &str) -> Option<&Given> {
        self.0.iter().find(|(one, _)| one == name).map(|(_, value)| value)
    }

    /// The number of this name, if it has one.
    pub fn number(&self, name: &str) -> Option<f64> {
        match self.get(name)? {
            Given::Float(number) => Some(*number),
            Given::Int(number) => Some(*number as f64),
            _ => None,
        }
    }

    pub(crate) fn to_json(&self) -> String {
        object(self.0.iter().map(|(name, value)| format!("{}:{}", quote(name), value.to_json())))
    }

    /// The same with the state that the server tells.
    pub(crate) fn after(&self, state: &str) -> Result<Values> {
        let found = json::parse(state)?;
        let values = self.0.iter().map(|(name, value)| match found.get(name) {
            None => Ok((name.clone(), value.clone())),
            Some(now) => match value.after(now) {
                Some(value) => Ok((name.clone(), value)),
                None => Err(Error::other(format!("state.{name} is of another kind now"))),
            },
        });
        values.collect::<Result<_>>().map(Values)
    }
}

impl From<()> for Values {
    fn from((): ()) -> Values {
        Values::default()
    }
}

impl<T: Into<Given>, const N: usize> From<[(&str, T); N]> for Values {
    fn from(values: [(&str, T); N]) -> Values {
        values.into_iter().fold(Values::default(), |all, (name, value)| all.and(name, value))
    }
}

/// A program's text, or its name in the server's library, and values that it names.
#[derive(Clone, Debug)]
struct Source {
    /// As JSON.
    program: String,
    constants: Values,
}

impl Source {
    fn of_text(text: &str) -> Source {
        let program = format!("[[\"program\",1,{}]]", quote(text));
        Source { program, constants: Values::default() }
    }

    fn of_name(name: &str) -> Source {
        Source { program: quote(name), constants: Values::default() }
    }

    fn constant(self, name: &str, value: impl Into<Given>) -> Source {
        Source { constants: self.constants.and(name, value), ..self }
    }

    /// Members of an object, as the contract wants it, with what it is given.
    fn members(&self, values: &Values) -> Vec<String> {
        let (constants, given) = (self.constants.to_json(), values.to_json());
        [("program", &self.program), ("constants", &constants), ("given", &given)]
            .map(|(name, value)| format!("\"{name}\":{value}"))
            .into()
    }
}

/// Chooses tokens where the model runs; made by [`program`].
#[derive(Clone, Debug)]
pub struct DeviceProgram(Source);

/// Makes a device program of a text, whose last function takes `logits` and, if it has any, `state`,
/// and returns the token.
///
/// `logits` is float `[vocabulary]`, with minus infinity where a grammar rules a token out.
pub fn program(text: &str) -> DeviceProgram {
    DeviceProgram(Source::of_text(text))
}

/// The program of a name: one of the server's library, as `mirostat`, or one of yours that was
/// uploaded. `pie_py/device_programs/rules/` has the texts of the library.
pub fn named(name: &str) -> DeviceProgram {
    DeviceProgram(Source::of_name(name))
}

impl DeviceProgram {
    /// With a value that the text names; each makes another program.
    pub fn constant(self, name: &str, value: impl Into<Given>) -> DeviceProgram {
        DeviceProgram(self.0.constant(name, value))
    }

    /// A sampler of the program, with what it is given: `()` is nothing.
    pub fn with(&self, values: impl Into<Values>) -> ProgramSampler {
        let (source, values) = (self.0.clone(), values.into());
        ProgramSampler { source, values, seed: None, logprobs: 0 }
    }
}

/// A device program with what it was given: [`Context::generate`](crate::Context::generate) takes
/// it as a sampler.
#[derive(Clone, Debug)]
pub struct ProgramSampler {
    source: Source,
    values: Values,
    pub(crate) seed: Option<u64>,
    logprobs: u32,
}

impl ProgramSampler {
    /// The same sampler with other values of some names.
    pub fn given_again(&self, values: impl Into<Values>) -> ProgramSampler {
        let others = values.into().0.into_iter();
        let values = others.fold(self.values.clone(), |all, (name, value)| all.and(&name, value));
        ProgramSampler { values, ..self.clone() }
    }

    /// With a seed: same seed, same tokens. Without one the server draws it.
    pub fn seed(self, seed: u64) -> ProgramSampler {
        ProgramSampler { seed: Some(seed), ..self }
    }

    /// Also reports so many of the most likely tokens in each step.
    pub fn logprobs(self, count: u32) -> ProgramSampler {
        ProgramSampler { logprobs: count, ..self }
    }

    /// The values that it was given.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// The parameters as the contract wants them, as members of an object without the seed.
    pub(crate) fn members(&self) -> Vec<String> {
        let mut found = self.source.members(&self.values);
        found.push(format!("\"logprobs\":{}", self.logprobs));
        found
    }
}

/// Chooses what layers read; made by [`attend`].
#[derive(Clone, Debug)]
pub struct AttendProgram(Source);

/// Makes a program of the stage `attend` of a text: called once for each layer and generated token.
///
/// The parameters of its last function say what it is given. With `scores`, float `[heads, pages]`,
/// it returns which pages the layer reads, bool `[pages]`. With `weights`, float `[heads, tokens]`, it
/// returns which tokens the layer still reads in the steps that follow, bool `[tokens]`, and what it
/// drops does not come back. With neither it returns which tokens a layer reads. The newest token is
/// always read. Beside them, `state`.
///
/// A prompt reads all. With `weights` the program is called for it, too, once in each layer, as
/// `step()` is 0: they are then those of the prompt's last inputs, as many as the constant `window`
/// says (1), added up; with 0, of all.
pub fn attend(text: &str) -> AttendProgram {
    AttendProgram(Source::of_text(text))
}

/// The policy of a name in the server's library, as `sinks`, with its constants, as `first` and
/// `window`: `pie_py/device_programs/rules/attention.py` has their texts.
pub fn named_attend(name: &str) -> AttendProgram {
    AttendProgram(Source::of_name(name))
}

impl AttendProgram {
    /// With a value that the text names.
    pub fn constant(self, name: &str, value: impl Into<Given>) -> AttendProgram {
        AttendProgram(self.0.constant(name, value))
    }

    /// The program with its state: `()` is nothing.
    pub fn with(&self, values: impl Into<Values>) -> Attend {
        Attend(object(self.0.members(&values.into())))
    }
}

/// A program of the stage `attend` with what it was given: see
/// [`Generator::attend`](crate::Generator::attend).
#[derive(Clone, Debug)]
pub struct Attend(String);

impl Attend {
    /// The parameter `attend` as the contract wants it.
    pub fn to_json(&self) -> &str {
        &self.0
    }
}
