//! Choosing a token from the distribution that the host returns.
//!
//! No message here shows a float: formatting one would add 20 KB to every inferlet.

use crate::device_sampler::DeviceSampler;
use crate::random::Random;
use crate::text::Distribution;

/// How many of the likeliest tokens a sampler looks at, at most.
pub const DISTRIBUTION_SIZE: u32 = 256;

/// How to choose a token, as in `Sampler::top_p(0.6, 0.95)`.
///
/// The filters apply in this order: temperature, top-k, top-p, min-p. A temperature of 0 takes the
/// likeliest token. At most the 256 likeliest tokens are looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampler {
    temperature: f32,
    k: u32,
    p: f32,
    minimum: f32,
    seed: Option<u64>,
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
    ///
    /// # Panics
    /// If the temperature is negative.
    pub fn multinomial(temperature: f32) -> Sampler {
        assert!(temperature >= 0.0, "a temperature is not negative; 0 is greedy");
        Sampler { temperature, k: DISTRIBUTION_SIZE, p: 1.0, minimum: 0.0, seed: None }
    }

    /// Nucleus sampling: the fewest likeliest tokens whose probabilities reach `p`.
    ///
    /// # Panics
    /// Unless 0 < p ≤ 1.
    pub fn top_p(temperature: f32, p: f32) -> Sampler {
        assert!(p > 0.0 && p <= 1.0, "the p of top-p is above 0 and at most 1");
        Sampler { p, ..Sampler::multinomial(temperature) }
    }

    /// Among the `k` likeliest tokens.
    ///
    /// # Panics
    /// If `k` is 0.
    pub fn top_k(temperature: f32, k: u32) -> Sampler {
        assert!(k > 0, "the k of top-k is at least 1");
        Sampler { k: k.min(DISTRIBUTION_SIZE), ..Sampler::multinomial(temperature) }
    }

    /// Top-k, then top-p among those.
    ///
    /// # Panics
    /// As `top_k` and `top_p`.
    pub fn top_k_top_p(temperature: f32, k: u32, p: f32) -> Sampler {
        Sampler { p: Sampler::top_p(temperature, p).p, ..Sampler::top_k(temperature, k) }
    }

    /// Among the tokens that are at least `p` times as likely as the likeliest one.
    ///
    /// # Panics
    /// Unless 0 ≤ p ≤ 1.
    pub fn min_p(temperature: f32, p: f32) -> Sampler {
        assert!((0.0..=1.0).contains(&p), "the p of min-p is from 0 to 1");
        Sampler { minimum: p, ..Sampler::multinomial(temperature) }
    }

    /// The same sampler with a seed: the same choices each time.
    pub fn seeded(self, seed: u64) -> Sampler {
        Sampler { seed: Some(seed), ..self }
    }

    /// The same choice, made by the server among the whole vocabulary.
    pub fn on_device(&self) -> DeviceSampler {
        let top_k = if self.k < DISTRIBUTION_SIZE { self.k } else { 0 };
        DeviceSampler {
            temperature: self.temperature,
            top_k,
            top_p: self.p,
            min_p: self.minimum,
            seed: self.seed,
            ..DeviceSampler::default()
        }
    }

    /// The same choice as the contract wants it, without the seed and the closing brace. No float
    /// is formatted: a number is given in units of 1e-12.
    pub(crate) fn open_json(&self) -> String {
        if self.is_greedy() {
            return String::from("{\"temperature\":0");
        }
        let units = |number: f32| (f64::from(number) * 1e12) as u64;
        let top_k = if self.k < DISTRIBUTION_SIZE { self.k } else { 0 };
        let (temperature, p, minimum) =
            (units(self.temperature), units(self.p), units(self.minimum));
        format!(
            "{{\"top_k\":{top_k},\"temperature\":{temperature}e-12,\"top_p\":{p}e-12,\"min_p\":{minimum}e-12"
        )
    }

    /// The seed, if there is one.
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// Whether it always takes the likeliest token.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// How many of the likeliest tokens the sampler needs to see.
    pub fn size(&self) -> u32 {
        if self.is_greedy() {
            1
        } else {
            self.k
        }
    }

    /// Chooses one of the tokens.
    pub fn choose(&self, distribution: &Distribution, random: &mut Random) -> u32 {
        if self.is_greedy() {
            return distribution.max_index();
        }
        let most = distribution.probabilities.len().min(self.k as usize);
        let best = distribution.probabilities[0];
        // Relative to the likeliest, so that a small temperature does not make all of them zero.
        let weigh = |probability: &f32| (probability / best).powf(1.0 / self.temperature);
        let mut weights: Vec<f32> = distribution.probabilities[..most].iter().map(weigh).collect();

        let mut total: f32 = weights.iter().sum();
        if self.p < 1.0 {
            let wanted = self.p * total;
            let mut sum = 0.0;
            let count = weights.iter().take_while(|weight| {
                let short = sum < wanted;
                sum += **weight;
                short
            });
            let count = count.count().max(1);
            weights.truncate(count);
        }
        if self.minimum > 0.0 {
            let count = weights.iter().take_while(|weight| **weight >= self.minimum).count();
            weights.truncate(count.max(1));
        }

        total = weights.iter().sum::<f32>().min(total);
        let mut left = random.uniform() as f32 * total;
        for (token, weight) in distribution.tokens.iter().zip(&weights) {
            left -= weight;
            if left < 0.0 {
                return *token;
            }
        }
        distribution.tokens[weights.len() - 1] // rounding went past the end
    }
}
