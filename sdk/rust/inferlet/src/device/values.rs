//! What programs are given, and samplers of programs.

use super::language::{HEADS, REMEMBERED, TOKENS};
use super::recording::Recorded;
use super::types::{Kind, Type};
use crate::error::{invalid, Error, Result};
use crate::json::{self, quote};

/// What a program is given by a name.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    /// A number that is a float.
    Float(f64),
    /// A whole number.
    Int(i64),
    /// True or false.
    Bool(bool),
    /// Values of one kind and of the same sizes.
    List(Vec<Given>),
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

given! { f64 => Float, f32 => Float, i64 => Int, i32 => Int, u32 => Int, bool => Bool, }

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
    /// Its kind and sizes; or what is wrong.
    fn type_of(&self) -> Result<Type, &'static str> {
        let kind = match self {
            Given::Float(_) => Kind::Float,
            Given::Int(_) => Kind::Int,
            Given::Bool(_) => Kind::Bool,
            Given::PerToken(value) | Given::PerTokenByHead(value) => {
                let of = value.type_of()?;
                let heads: &[i64] = match self {
                    Given::PerTokenByHead(_) => &[HEADS],
                    _ => &[],
                };
                return match of.shape.is_empty() {
                    true => Ok(Type::new(of.kind, &[heads, &[TOKENS]].concat())),
                    false => Err("a list for each token"),
                };
            }
            Given::List(values) => {
                let parts = values.iter().map(Given::type_of).collect::<Result<Vec<_>, _>>()?;
                let Some(first) = parts.first() else { return Err("an empty list") };
                if parts.iter().any(|part| part != first) {
                    return Err("a list of values of different kinds or sizes");
                }
                let count = [values.len() as i64];
                return Ok(Type::new(first.kind, &[&count, &first.shape[..]].concat()));
            }
        };
        Ok(Type::new(kind, &[]))
    }

    /// Writes JSON, which has null for minus infinity. False if JSON has no such number.
    fn write(&self, out: &mut String) -> bool {
        match self {
            Given::Float(f64::NEG_INFINITY) => out.push_str("null"),
            Given::Float(number) if !number.is_finite() => return false,
            Given::Float(number) => out.push_str(&format!("{number:?}")),
            Given::Int(number) => out.push_str(&number.to_string()),
            Given::Bool(truth) => out.push_str(&truth.to_string()),
            Given::PerToken(value) | Given::PerTokenByHead(value) => {
                let by_head = matches!(self, Given::PerTokenByHead(_));
                out.push_str(if by_head { "[[" } else { "[" });
                if !value.write(out) {
                    return false;
                }
                out.push_str(if by_head { "]]" } else { "]" });
            }
            Given::List(values) => {
                for (i, value) in values.iter().enumerate() {
                    out.push(if i == 0 { '[' } else { ',' });
                    if !value.write(out) {
                        return false;
                    }
                }
                out.push(']');
            }
        }
        true
    }

    /// The same with what the server says that it is now.
    fn after(&self, found: &json::Value) -> Option<Given> {
        match self {
            Given::Float(_) if *found == json::Value::Null => Some(Given::Float(f64::NEG_INFINITY)),
            Given::Float(_) => found.as_f64().map(Given::Float),
            Given::Int(_) => found.as_i64().map(Given::Int),
            Given::Bool(_) => found.as_bool().map(Given::Bool),
            Given::PerToken(_) | Given::PerTokenByHead(_) => None, // no state of a sampler
            Given::List(values) => {
                let pairs = values.iter().zip(found.as_list()?);
                pairs.map(|(one, now)| one.after(now)).collect::<Option<_>>().map(Given::List)
            }
        }
    }
}

/// What a program is given, by name: `[("mu", 10.0), ("tau", 5.0)].into()`, or
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

    /// With those of others.
    pub(crate) fn with(self, others: impl Into<Values>) -> Values {
        others.into().0.into_iter().fold(self, |all, (name, value)| all.and(&name, value))
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

    pub(super) fn types(&self) -> Result<Vec<(String, Type)>> {
        let typed = self.0.iter().map(|(name, value)| match value.type_of() {
            Ok(of) => Ok((name.clone(), of)),
            Err(what) => invalid(format!("{name} is {what}")),
        });
        typed.collect()
    }

    pub(crate) fn to_json(&self) -> Result<String> {
        let mut out = String::from("{");
        for (i, (name, value)) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            out.push_str(&format!("{comma}{}:", quote(name)));
            if !value.write(&mut out) {
                return invalid(format!("{name}: a program is given numbers, or minus infinity"));
            }
        }
        out.push('}');
        Ok(out)
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

/// A device program with what it was given: [`Context::generate`](crate::Context::generate) takes
/// it as a sampler.
#[derive(Clone, Debug)]
pub struct ProgramSampler {
    text: String,
    values: Values,
    sent: String,
    pub(crate) counts: bool,
    pub(crate) looks_back: bool,
    /// Contexts beside its own that it reads the logits of.
    pub(crate) beside: usize,
    pub(crate) seed: Option<u64>,
    logprobs: u32,
}

impl ProgramSampler {
    pub(super) fn new(recorded: Recorded, values: Values) -> Result<ProgramSampler> {
        let Recorded { text, operations, beside, .. } = recorded;
        let sent = format!("{{\"program\":{},\"given\":{}", quote(&text), values.to_json()?);
        let counts = operations.contains("counts") || operations.contains("given");
        let looks_back = REMEMBERED.iter().any(|name| operations.contains(name));
        let (seed, logprobs) = (None, 0);
        Ok(ProgramSampler { text, values, sent, counts, looks_back, beside, seed, logprobs })
    }

    /// The same sampler with other values of some names.
    ///
    /// Errors: `invalid-argument` if one is of another kind or size than what it takes the place of.
    pub fn given_again(&self, values: impl Into<Values>) -> Result<ProgramSampler> {
        let (values, types) = (values.into(), self.values.types()?);
        for (name, found) in values.types()? {
            match types.iter().find(|(one, _)| *one == name) {
                Some((_, of)) if *of == found => {}
                Some((_, of)) => return invalid(format!("{name} is {of}, and is given {found}")),
                None => return invalid(format!("the program was given no {name}")),
            }
        }
        let all = self.values.clone().with(values);
        let sent = format!("{{\"program\":{},\"given\":{}", quote(&self.text), all.to_json()?);
        Ok(ProgramSampler { values: all, sent, ..self.clone() })
    }

    /// With a seed: same seed, same tokens. Without one the server draws it.
    pub fn seed(self, seed: u64) -> ProgramSampler {
        ProgramSampler { seed: Some(seed), ..self }
    }

    /// Also reports so many of the most likely tokens in each step.
    pub fn logprobs(self, count: u32) -> ProgramSampler {
        ProgramSampler { logprobs: count, ..self }
    }

    /// The program, as it is sent.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What it was given.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Whether some of what it was given changes from token to token.
    pub fn has_state(&self) -> bool {
        !self.text.ends_with("\"next\":[]}")
    }

    /// The parameters as the contract wants them, without the seed and the closing brace.
    pub(crate) fn open_json(&self) -> String {
        format!("{},\"logprobs\":{}", self.sent, self.logprobs)
    }
}

/// A program of the stage `attend` with what it was given: see
/// [`Generator::attend`](crate::Generator::attend).
#[derive(Clone, Debug)]
pub struct Attend {
    text: String,
    sent: String,
    told: usize,
}

impl Attend {
    pub(super) fn new(text: String, told: usize, values: &Values) -> Result<Attend> {
        let sent = format!("{{\"program\":{},\"given\":{}}}", quote(&text), values.to_json()?);
        Ok(Attend { text, sent, told })
    }

    /// Last inputs of a prompt whose weights it takes.
    pub(crate) fn told(&self) -> usize {
        self.told
    }

    /// The program, as it is sent.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The parameter `attend` as the contract wants it.
    pub fn to_json(&self) -> &str {
        &self.sent
    }
}
