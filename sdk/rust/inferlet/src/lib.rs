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
pub mod attention;
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
pub mod introspect;
pub mod json;
mod log;
pub mod mcp;
pub mod messaging;
mod model;
pub mod offload;
mod random;
pub mod sample;
mod sampler;
pub mod session;
pub mod store;
pub mod stream;
pub mod task;
pub mod text;

pub use args::{Args, Keys};
pub use choice::Rule;
pub use context::{Context, Forward, UNKNOWN_TOKEN};
pub use error::{Error, ErrorCode, Result};
pub use future::HostFuture;
pub use generation::Generator;
pub use grammar::{Grammar, Matcher};
pub use host::{adapter, allocate, forward, prefix_cache, runtime};
pub use inferlet_macros::main;
pub use introspect::{Attention, Detail};
pub use model::{Model, Tokenizer};
pub use random::Random;
pub use sample::Sampled;
pub use sampler::{Sampler, DISTRIBUTION_SIZE};
pub use task::{gather, join, join_all, race, timeout};
pub use text::Distribution;
