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

use crate::error::Result;
use crate::json::{self, object, quote, Value};

/// State of the stage `attend` that has a value for each token: at first, and of new ones.
pub fn per_token(value: impl Into<Value>) -> Value {
    Value::Object(vec![("per_token".into(), value.into())])
}

/// As [`per_token`], of each head.
pub fn per_token_by_head(value: impl Into<Value>) -> Value {
    Value::Object(vec![("per_token".into(), value.into()), ("by_head".into(), true.into())])
}

/// State from a file of tensors that the user has uploaded.
pub fn uploaded(file: &str, tensor: &str) -> Value {
    Value::Object(vec![("tensor".into(), format!("{file}/{tensor}").as_str().into())])
}

/// The values that a program is given, by name: `[("mu", 10.0), ("tau", 5.0)].into()`, or
/// `Values::from([("mu", 10.0)]).and("key", 42)`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values(Vec<(String, Value)>);

impl Values {
    /// With one more value, or another one.
    pub fn and(mut self, name: &str, value: impl Into<Value>) -> Values {
        self.0.retain(|(one, _)| one != name);
        self.0.push((name.into(), value.into()));
        self
    }

    /// A value by its name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(one, _)| one == name).map(|(_, value)| value)
    }

    /// The number of this name, if it has one.
    pub fn number(&self, name: &str) -> Option<f64> {
        match self.get(name)? {
            Value::Null => Some(f64::NEG_INFINITY),
            value => value.as_f64(),
        }
    }

    pub(crate) fn to_json(&self) -> String {
        object(self.0.iter().map(|(name, value)| format!("{}:{}", quote(name), value.to_json())))
    }

    /// The same with the state that the server tells.
    pub(crate) fn after(&self, state: &str) -> Result<Values> {
        let found = json::parse(state)?;
        let now = |(name, value): &(String, Value)| {
            (name.clone(), found.get(name).unwrap_or(value).clone())
        };
        Ok(Values(self.0.iter().map(now).collect()))
    }
}

impl From<()> for Values {
    fn from((): ()) -> Values {
        Values::default()
    }
}

impl<T: Into<Value>, const N: usize> From<[(&str, T); N]> for Values {
    fn from(values: [(&str, T); N]) -> Values {
        values.into_iter().fold(Values::default(), |all, (name, value)| all.and(name, value))
    }
}

/// A program that runs where the model does: its text, or its name in the server's library, and values
/// that it names. Made by [`program`], or by [`attend`] one that chooses what layers read.
#[derive(Clone, Debug)]
pub struct DeviceProgram {
    /// As JSON.
    program: String,
    constants: Values,
}

/// Makes a device program of a text, whose last function takes `logits` and, if it has any, `state`,
/// and returns the token.
///
/// `logits` is float `[vocabulary]`, with minus infinity where a grammar rules a token out.
pub fn program(text: &str) -> DeviceProgram {
    let program = format!("[[\"program\",1,{}]]", quote(text));
    DeviceProgram { program, constants: Values::default() }
}

/// The program of a name: one of the server's library, as `mirostat`, or one of yours that was
/// uploaded. `pie_py/device_programs/rules/` has the texts of the library.
pub fn named(name: &str) -> DeviceProgram {
    DeviceProgram { program: quote(name), constants: Values::default() }
}

impl DeviceProgram {
    /// With a value that the text names; each makes another program.
    pub fn constant(self, name: &str, value: impl Into<Value>) -> DeviceProgram {
        DeviceProgram { constants: self.constants.and(name, value), ..self }
    }

    /// A sampler of the program, with what it is given: `()` is nothing.
    pub fn with(&self, values: impl Into<Values>) -> ProgramSampler {
        let (program, layers) = (self.clone(), String::new());
        ProgramSampler { program, values: values.into(), layers, seed: None, logprobs: 0 }
    }

    /// Members of an object, as the contract wants it, with what it is given.
    fn members(&self, values: &Values) -> Vec<String> {
        let (constants, given) = (self.constants.to_json(), values.to_json());
        [("program", &self.program), ("constants", &constants), ("given", &given)]
            .map(|(name, value)| format!("\"{name}\":{value}"))
            .into()
    }
}

/// A device program with what it was given: [`Context::generate`](crate::Context::generate) takes
/// it as a sampler, and [`Generator::attend`](crate::Generator::attend) one of the stage `attend`.
#[derive(Clone, Debug)]
pub struct ProgramSampler {
    program: DeviceProgram,
    values: Values,
    layers: String, // members of a program in the layers
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

    /// The same as a program in the layers: before each of them (-1 is the last one) it changes
    /// the residual stream, or keeps something of it. It runs for each generated token, and by
    /// `prompt`, `true` or `"last"`, for the tokens of the prompt or the last one. Of the library:
    /// `named("steer").constant("strength", 4.0).with([("vector", vector)]).at(&[12], true)`, by the
    /// names of `pie_py/device_programs/rules/layers.py`.
    pub fn at(self, layers: &[i32], prompt: impl Into<Value>) -> Attend {
        let layers = format!("\"at\":{layers:?},\"prompt\":{}", prompt.into().to_json());
        ProgramSampler { layers, ..self }
    }

    /// The values that it was given.
    pub fn values(&self) -> &Values {
        &self.values
    }

    pub(crate) fn is_in_layers(&self) -> bool {
        !self.layers.is_empty()
    }

    /// The parameter `attend` as the contract wants it.
    pub(crate) fn as_attend(&self) -> String {
        let layers = Some(self.layers.clone()).filter(|layers| !layers.is_empty());
        object(self.program.members(&self.values).into_iter().chain(layers))
    }

    /// The parameters as the contract wants them, as members of an object without the seed.
    pub(crate) fn members(&self) -> Vec<String> {
        let mut found = self.program.members(&self.values);
        found.push(format!("\"logprobs\":{}", self.logprobs));
        found
    }
}

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
pub fn attend(text: &str) -> DeviceProgram {
    program(text)
}

/// The policy of a name in the server's library, as `sinks`, with its constants, as `first` and
/// `window`: `pie_py/device_programs/rules/attention.py` has their texts.
pub fn named_attend(name: &str) -> DeviceProgram {
    named(name)
}

/// A program of the stage `attend` with what it was given: see
/// [`Generator::attend`](crate::Generator::attend).
pub type Attend = ProgramSampler;
