//! How the server chooses tokens.

use crate::json::{object, quote, Value};

/// How many of the likeliest tokens a distribution has, by default.
pub const DISTRIBUTION_SIZE: u32 = 256;

/// How the server chooses a token, among the whole vocabulary: `Sampler::top_p(0.6, 0.95)`, with other
/// parameters by name: `Sampler::greedy().with("repetition_penalty", 1.2)`.
///
/// A temperature of 0 takes the likeliest token. The same seed gives the same text, however it is
/// read. `docs/device-programs.md` has the parameters, in the order in which they act; the server
/// checks names and values, when the first token is asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampler {
    /// Names, and values as JSON.
    members: Vec<(String, String)>,
    pub(crate) seed: Option<u64>,
}

impl Sampler {
    /// Always the likeliest token.
    pub fn argmax() -> Sampler {
        Sampler::multinomial(0.0)
    }

    /// Always the likeliest token.
    pub fn greedy() -> Sampler {
        Sampler::argmax()
    }

    /// By probability, after temperature.
    pub fn multinomial(temperature: f32) -> Sampler {
        Sampler::default().put("temperature", short(temperature))
    }

    /// Nucleus sampling: the fewest likeliest tokens whose probabilities reach `p`.
    pub fn top_p(temperature: f32, p: f32) -> Sampler {
        Sampler::multinomial(temperature).put("top_p", short(p))
    }

    /// Among the `k` likeliest tokens.
    pub fn top_k(temperature: f32, k: u32) -> Sampler {
        Sampler::multinomial(temperature).put("top_k", k.to_string())
    }

    /// Top-k, then top-p among those.
    pub fn top_k_top_p(temperature: f32, k: u32, p: f32) -> Sampler {
        Sampler::top_k(temperature, k).put("top_p", short(p))
    }

    /// Among the tokens that are at least `p` times as likely as the likeliest one.
    pub fn min_p(temperature: f32, p: f32) -> Sampler {
        Sampler::multinomial(temperature).put("min_p", short(p))
    }

    /// With another parameter, or another value of one: a number, or a list; of `logit_bias` a list of
    /// tokens with a number each.
    pub fn with(self, name: &str, value: impl Into<Value>) -> Sampler {
        self.put(name, value.into().to_json())
    }

    /// The same sampler with a seed: the same choices each time.
    pub fn seeded(self, seed: u64) -> Sampler {
        Sampler { seed: Some(seed), ..self }
    }

    /// The sampler of an object of parameters, as they are.
    pub fn from_json(given: &Value) -> Sampler {
        let Value::Object(members) = given else { return Sampler::default() };
        let seed = given.get("seed").and_then(|seed| match seed {
            Value::Whole(whole) => Some(*whole as u64), // modulo 2^64
            _ => seed.as_f64().map(|number| number as i128 as u64),
        });
        let members = members.iter().filter(|(name, _)| name != "seed");
        let members = members.map(|(name, value)| (name.clone(), value.to_json())).collect();
        Sampler { members, seed }
    }

    /// The seed, if there is one.
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// The parameters as the contract wants them.
    pub fn to_json(&self) -> String {
        object(self.members().into_iter().chain(self.seed.map(seed_member)))
    }

    /// The same as members of an object, without the seed.
    pub(crate) fn members(&self) -> Vec<String> {
        self.members.iter().map(|(name, value)| format!("{}:{value}", quote(name))).collect()
    }

    fn put(mut self, name: &str, json: String) -> Sampler {
        self.members.retain(|(one, _)| one != name);
        self.members.push((name.to_owned(), json));
        self
    }
}

/// The seed, as the contract wants it.
pub(crate) fn seed_member(seed: u64) -> String {
    format!("\"seed\":{seed}")
}

/// A number as JSON, in units of 1e-12: to format a float would add 20 KB to every inferlet.
fn short(number: f32) -> String {
    match number.is_finite() {
        true => format!("{}e-12", (f64::from(number) * 1e12) as i64),
        false => "NaN".to_owned(), // which the server refuses
    }
}
