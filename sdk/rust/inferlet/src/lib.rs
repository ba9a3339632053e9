//! SDK of pie_py for Rust: programs that run beside a language model and drive its inference.
//!
//! ```ignore
//! use inferlet::{get_auto_model, max_len, session, Args, Result, Sampler};
//!
//! #[inferlet::main]
//! async fn main(mut args: Args) -> Result {
//!     let prompt: String = args.value_from_str("--prompt")?;
//!     args.finish()?;
//!     let mut context = get_auto_model()?.create_context()?;
//!     context.fill(&prompt)?;
//!     let mut generation = context.stream(Sampler::greedy(), max_len(64));
//!     while let Some(piece) = generation.next().await? {
//!         session::stream(&piece).await?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! The modules [`runtime`], [`session`], [`allocate`], [`forward`] and [`text`] are the API itself, one
//! function for each of the contract's; [`Model`], [`Context`] and [`Sampler`] stand on them.

#![warn(missing_docs)]

mod abi;
pub mod allocate;
mod args;
mod error;
#[doc(hidden)]
pub mod export;
pub mod forward;
mod future;
mod log;
pub mod runtime;
pub mod session;
pub mod task;
pub mod text;

pub use args::{Args, Keys};
pub use error::{Error, ErrorCode, Result};
pub use future::HostFuture;
pub use inferlet_macros::main;
pub use task::{join, join_all, select, select_all, spawn, timeout};
