//! Life of the instance, command queues, futures, time, randomness, logging, child instances.
//!
//! One function for each of the contract's interface `runtime`; see `sdk/wit/inferlet.wit` for their
//! errors. Functions that give a future return a [`HostFuture`] to be awaited.

use std::time::Duration;

use crate::abi::call;
use crate::error::Result;
use crate::future::HostFuture;

mod host {
    #[link(wasm_import_module = "pie:inferlet/runtime@0.1.0")]
    unsafe extern "C" {
        #[link_name = "get-arg"]
        pub fn get_arg(area: *mut usize);
        #[link_name = "instance-id"]
        pub fn instance_id(area: *mut usize);
        pub fn user(area: *mut usize);
        pub fn version(area: *mut usize);
        #[link_name = "available-models"]
        pub fn available_models(area: *mut usize);
        #[link_name = "available-traits"]
        pub fn available_traits(model: *const u8, length: usize, area: *mut usize);
        #[link_name = "model-info"]
        pub fn model_info(model: *const u8, length: usize, area: *mut usize);
        #[link_name = "create-queue"]
        pub fn create_queue(model: *const u8, length: usize, area: *mut usize);
        #[link_name = "destroy-queue"]
        pub fn destroy_queue(queue: u32, area: *mut usize);
        pub fn synchronize(queue: u32, area: *mut usize);
        #[link_name = "set-queue-priority"]
        pub fn set_queue_priority(queue: u32, priority: i32, area: *mut usize);
        pub fn wait(futures: *const u32, count: usize, area: *mut usize);
        pub fn take(future: u32, area: *mut usize);
        #[link_name = "take-text"]
        pub fn take_text(future: u32, area: *mut usize);
        #[link_name = "take-texts"]
        pub fn take_texts(future: u32, area: *mut usize);
        #[link_name = "take-blob"]
        pub fn take_blob(future: u32, area: *mut usize);
        pub fn cancel(future: u32, area: *mut usize);
        pub fn now() -> u64;
        #[link_name = "monotonic-now"]
        pub fn monotonic_now() -> u64;
        pub fn sleep(nanoseconds: u64, area: *mut usize);
        #[link_name = "random-bytes"]
        pub fn random_bytes(count: u32, area: *mut usize);
        pub fn log(level: u32, message: *const u8, length: usize);
        pub fn launch(
            program: *const u8,
            length: usize,
            arguments: *const [usize; 2],
            count: usize,
            area: *mut usize,
        );
    }
}

/// The arguments given at launch, in order.
pub fn get_arg() -> Vec<String> {
    call(|area| unsafe { host::get_arg(area) })
}

/// This instance's identifier, unique on the server.
pub fn instance_id() -> String {
    call(|area| unsafe { host::instance_id(area) })
}

/// The user who launched this instance.
pub fn user() -> String {
    call(|area| unsafe { host::user(area) })
}

/// The server's version.
pub fn version() -> String {
    call(|area| unsafe { host::version(area) })
}

/// Names of the models being served; the first one is the default.
pub fn available_models() -> Vec<String> {
    call(|area| unsafe { host::available_models(area) })
}

/// Names of the traits that a model offers.
pub fn available_traits(model: &str) -> Result<Vec<String>> {
    call(|area| unsafe { host::available_traits(model.as_ptr(), model.len(), area) })
}

/// Facts about a model, as a JSON object; `Model` reads them.
pub fn model_info(model: &str) -> Result<String> {
    call(|area| unsafe { host::model_info(model.as_ptr(), model.len(), area) })
}

/// Creates a command queue of a model and returns its handle.
pub fn create_queue(model: &str) -> Result<u32> {
    call(|area| unsafe { host::create_queue(model.as_ptr(), model.len(), area) })
}

/// Destroys a queue. Commands already in it still take effect.
pub fn destroy_queue(queue: u32) -> Result {
    call(|area| unsafe { host::destroy_queue(queue, area) })
}

/// Ready when every command queued before it has taken effect; gives their first error.
pub fn synchronize(queue: u32) -> HostFuture<()> {
    HostFuture::new(call(|area| unsafe { host::synchronize(queue, area) }), take)
}

/// Sets a queue's priority, 0 unless set, from -100 to 100; higher goes first.
pub fn set_queue_priority(queue: u32, priority: i32) -> Result {
    call(|area| unsafe { host::set_queue_priority(queue, priority, area) })
}

/// Suspends the whole instance until a future is ready, and returns those that are. Awaiting a
/// [`HostFuture`] lets other tasks run meanwhile; this does not.
pub fn wait(futures: &[u32]) -> Result<Vec<u32>> {
    call(|area| unsafe { host::wait(futures.as_ptr(), futures.len(), area) })
}

/// Consumes a ready future that carries no value.
pub fn take(future: u32) -> Result {
    call(|area| unsafe { host::take(future, area) })
}

/// Consumes a ready future that carries text.
pub fn take_text(future: u32) -> Result<String> {
    call(|area| unsafe { host::take_text(future, area) })
}

/// Consumes a ready future that carries a list of texts.
pub fn take_texts(future: u32) -> Result<Vec<String>> {
    call(|area| unsafe { host::take_texts(future, area) })
}

/// Consumes a ready future that carries bytes.
pub fn take_blob(future: u32) -> Result<Vec<u8>> {
    call(|area| unsafe { host::take_blob(future, area) })
}

/// Gives a future up, ready or not.
pub fn cancel(future: u32) -> Result {
    call(|area| unsafe { host::cancel(future, area) })
}

/// Nanoseconds since the Unix epoch.
pub fn now() -> u64 {
    unsafe { host::now() }
}

/// Nanoseconds of a clock that never goes back, from an arbitrary start.
pub fn monotonic_now() -> u64 {
    unsafe { host::monotonic_now() }
}

/// Ready after a time.
pub fn sleep(time: Duration) -> HostFuture<()> {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    HostFuture::new(call(|area| unsafe { host::sleep(nanoseconds, area) }), take)
}

/// Random bytes fit for cryptography, at most 65536.
pub fn random_bytes(count: u32) -> Result<Vec<u8>> {
    call(|area| unsafe { host::random_bytes(count, area) })
}

/// How much a line of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// For whoever writes the inferlet.
    Debug,
    /// For whoever runs it.
    Info,
    /// Something is odd.
    Warning,
    /// Something failed.
    Error,
}

/// Writes a line to the instance's log; see also the macros `debug!`, `info!`, `warning!`, `error!`.
pub fn log(level: LogLevel, message: &str) {
    unsafe { host::log(level as u32, message.as_ptr(), message.len()) }
}

/// Starts a child instance of a program (its name or content hash). Gives its result, or the error
/// `failed-dependency` with the child's own error text, or `cancelled` if somebody else ended it.
/// Dropped, it kills the child, which ends with this instance at the latest.
///
/// A child has no client: to talk with it, hand it a topic of [`crate::messaging`] as an argument.
pub fn launch(program: &str, arguments: &[&str]) -> HostFuture<String> {
    let lowered: Vec<[usize; 2]> =
        arguments.iter().map(|text| [text.as_ptr() as usize, text.len()]).collect();
    let started = call(|area| unsafe {
        host::launch(program.as_ptr(), program.len(), lowered.as_ptr(), lowered.len(), area)
    });
    HostFuture::new(started, take_text)
}
