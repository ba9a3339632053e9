//! SDK of pie_py for Rust: programs that run beside a language model and drive its inference.
//!
//! ```ignore
//! use inferlet::{Args, Context, Model, Result, Sampler};
//!
//! #[inferlet::main]
//! async fn main(mut args: Args) -> Result {
//!     let prompt: String = args.value_from_str("--prompt")?;
//!     args.finish()?;
//!     let mut context = Context::new(&Model::load()?)?;
//!     context.fill(&prompt)?;
//!     context.generate(Sampler::greedy()).max_tokens(64).send_text().await?;
//!     Ok(())
//! }
//! ```
//!
//! The modules [`runtime`], [`session`], [`allocate`], [`forward`] and [`text`] are the API itself,
//! one function for each of the contract's; [`Model`], [`Context`] and [`Sampler`] stand on them.
//! Programs of one user talk through [`messaging`] and keep what lasts in [`store`].

#![warn(missing_docs)]

mod abi;
mod args;
pub mod chat;
mod choice;
mod context;
pub mod device;
mod error;
#[doc(hidden)]
pub mod export;
mod future;
mod generation;
pub mod grammar;
mod host;
pub mod http;
pub mod images;
pub mod json;
pub mod mcp;
pub mod messaging;
mod model;
pub mod offload;
pub mod sample;
mod sampler;
pub mod store;
pub mod stream;
pub mod task;

pub use args::{Args, Keys};
pub use choice::Rule;
pub use context::{Context, UNKNOWN_TOKEN};
pub use error::{Error, ErrorCode, Result};
pub use future::HostFuture;
pub use generation::Generator;
pub use grammar::{Grammar, Matcher};
pub use host::{adapter, allocate, forward, introspect, prefix_cache};
pub use inferlet_macros::main;
pub use introspect::{Attention, Detail};
pub use model::{Model, Tokenizer};
pub use sample::Sampled;
pub use sampler::{Sampler, DISTRIBUTION_SIZE};
pub use task::{gather, join, join_all, race, timeout};
pub use text::Distribution;

pub mod runtime {
    //! The server and this instance: the contract's interface `runtime`.

    pub use crate::host::runtime::*;

    const MOST_OF_A_LINE: usize = 1 << 16; // bytes

    /// Logs a line. A log keeps less, and a text of over 8 MiB would be a trap: it is cut.
    pub fn log(level: LogLevel, message: &str) {
        let mut end = message.len().min(MOST_OF_A_LINE);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        crate::host::runtime::log(level, &message[..end]);
    }
}

pub mod session {
    //! Messages between the instance and the client that launched it.
    //!
    //! One function for each of the contract's interface `session`, and [`stream`] for what is sent
    //! piece by piece.

    use std::future::ready;

    use crate::error::Result;
    use crate::future::when_room;

    pub use crate::host::session::*;

    /// Sends text to the client, waiting while it has no room.
    pub async fn stream(message: &str) -> Result {
        when_room(|| ready(send(message)), writable).await
    }

    /// Sends bytes to the client, waiting while it has no room.
    pub async fn stream_blob(data: &[u8]) -> Result {
        when_room(|| ready(send_blob(data)), writable).await
    }
}

pub mod text {
    //! Text into tokens and embeds, output embeds into distributions: the contract's interfaces
    //! `input-text`, `tokenize`, `encode` and `output-text`.

    pub use crate::host::encode::*;
    pub use crate::host::input_text::*;
    pub use crate::host::output_text::*;
    pub use crate::host::tokenize::*;

    impl Distribution {
        /// The likeliest token.
        pub fn max_index(&self) -> u32 {
            self.tokens[0]
        }

        /// A token's log-probability; minus infinity if it is not among these.
        pub fn logprob(&self, token: u32) -> f32 {
            let found = self.tokens.iter().position(|&other| other == token);
            found.map_or(f32::NEG_INFINITY, |at| self.probabilities[at].ln())
        }
    }
}

/// Logs a line for the author of the inferlet.
#[macro_export]
macro_rules! debug {
    ($($part:tt)*) => { $crate::runtime::log($crate::runtime::LogLevel::Debug, &::std::format!($($part)*)) };
}

/// Logs a line for the operator of the inferlet.
#[macro_export]
macro_rules! info {
    ($($part:tt)*) => { $crate::runtime::log($crate::runtime::LogLevel::Info, &::std::format!($($part)*)) };
}

/// Logs that something is odd.
#[macro_export]
macro_rules! warning {
    ($($part:tt)*) => { $crate::runtime::log($crate::runtime::LogLevel::Warning, &::std::format!($($part)*)) };
}

/// Logs that something failed.
#[macro_export]
macro_rules! error {
    ($($part:tt)*) => { $crate::runtime::log($crate::runtime::LogLevel::Error, &::std::format!($($part)*)) };
}
