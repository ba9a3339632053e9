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

use crate::json::{object, quote, Value};

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

    pub(crate) fn to_json(&self) -> String {
        object(self.0.iter().map(|(name, value)| format!("{}:{}", quote(name), value.to_json())))
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
/// that it names.
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
        ProgramSampler { program: self.clone(), values: values.into(), seed: None, logprobs: 0 }
    }
}

/// A device program with what it was given: [`Context::generate`](crate::Context::generate) takes
/// it as a sampler.
#[derive(Clone, Debug)]
pub struct ProgramSampler {
    program: DeviceProgram,
    values: Values,
    pub(crate) seed: Option<u64>,
    logprobs: u32,
}

impl ProgramSampler {
    /// With a seed: same seed, same tokens. Without one the server draws it.
    pub fn seed(self, seed: u64) -> ProgramSampler {
        ProgramSampler { seed: Some(seed), ..self }
    }

    /// Also reports so many of the most likely tokens in each step.
    pub fn logprobs(self, count: u32) -> ProgramSampler {
        ProgramSampler { logprobs: count, ..self }
    }

    /// The parameters as the contract wants them, as members of an object without the seed.
    pub(crate) fn members(&self) -> Vec<String> {
        let DeviceProgram { program, constants } = &self.program;
        let (constants, given) = (constants.to_json(), self.values.to_json());
        let logprobs = self.logprobs.to_string();
        [
            ("program", program),
            ("constants", &constants),
            ("given", &given),
            ("logprobs", &logprobs),
        ]
        .map(|(name, value)| format!("\"{name}\":{value}"))
        .into()
    }
}
