//! Life of the instance, command queues, futures, time, randomness, logging, child instances.
//!
//! One function for each of the contract's interface `runtime`; see `sdk/wit/inferlet.wit` for
//! their errors. Functions that give a future return a [`HostFuture`] to be awaited.

use std::time::Duration;

use crate::future::HostFuture;
use crate::host::runtime as host;

pub use crate::host::runtime::*;

/// Ready when every command queued before it has taken effect; gives their first error.
pub fn synchronize(queue: u32) -> HostFuture<()> {
    HostFuture::new(host::synchronize(queue), take)
}

/// Ready after a time.
pub fn sleep(time: Duration) -> HostFuture<()> {
    HostFuture::new(host::sleep(nanoseconds(time)), take)
}

/// A time as the contract has it; more than 584 years are as good as that.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// How much a line of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// For the author of the inferlet.
    Debug,
    /// For its operator.
    Info,
    /// Something is odd.
    Warning,
    /// Something failed.
    Error,
}

/// Writes a line to the instance's log; see also the macros `debug!`, `info!`, `warning!`,
/// `error!`.
pub fn log(level: LogLevel, message: &str) {
    host::log(level as u32, message)
}

/// Starts a child instance of a program (its name or content hash). Gives its result, or the error
/// `failed-dependency` with the child's own error text, or `cancelled` if it was killed.
/// Dropped, it kills the child, which ends with this instance at the latest.
///
/// A child has no client: to talk with it, hand it a topic of [`crate::messaging`] as an argument.
pub fn launch(program: &str, arguments: &[&str]) -> HostFuture<String> {
    HostFuture::new(host::launch(program, arguments), take_text)
}
