//! Random numbers: repeatable with a seed, drawn from the host without.

use crate::error::Result;
use crate::runtime;

/// A generator of random numbers, xoshiro256++ (Blackman and Vigna, 2019). Not for cryptography.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The same seed gives the same numbers.
    pub fn seeded(seed: u64) -> Random {
        // SplitMix64 spreads the seed, as xoshiro's authors advise.
        let mut word = seed;
        let state = std::array::from_fn(|_| {
            word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mixed = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            mixed ^ (mixed >> 31)
        });
        Random { state }
    }

    /// Seeded by the host.
    pub fn from_host() -> Result<Random> {
        let seed = runtime::random_bytes(8)?;
        let seed = seed.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        Ok(Random::seeded(seed))
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let out = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        out
    }

    /// A number from 0 up to, but not, 1.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}
