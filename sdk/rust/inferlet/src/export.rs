//! The exported function `run`: what `#[inferlet::main]` expands to. Not for direct use.

use std::fmt::Display;
use std::future::Future;
use std::panic;
use std::ptr;

use crate::runtime::{log, LogLevel};
use crate::task;

/// A text that the host wrote into this memory.
#[repr(C)]
pub struct Text {
    start: *mut u8,
    length: usize,
}

/// `result<string, string>` as the canonical ABI lays it out.
#[repr(C)]
pub struct Outcome {
    failed: u8,
    text: Text,
}

// The one outcome of an instance. It lives as long as the instance's memory.
static mut OUTCOME: Outcome =
    Outcome { failed: 0, text: Text { start: ptr::null_mut(), length: 0 } };

/// Runs an inferlet's main function to its end.
///
/// # Safety
/// `arguments` and `count` are the host's, and nothing else reads them.
pub unsafe fn run<A: From<Vec<String>>, F: Future<Output: IntoOutcome>>(
    arguments: *mut Text,
    count: usize,
    main: impl FnOnce(A) -> F,
) -> *const Outcome {
    panic::set_hook(Box::new(|information| log(LogLevel::Error, &information.to_string())));
    let arguments = (0..count).map(|index| unsafe {
        let text = &*arguments.add(index);
        if text.length == 0 {
            return String::new();
        }
        String::from_raw_parts(text.start, text.length, text.length)
    });
    let main = main(A::from(arguments.collect()));
    let output = task::run(main).map_err(|error| error.to_string());
    let (failed, text) = match output.and_then(IntoOutcome::into_outcome) {
        Ok(text) => (0, text),
        Err(text) => (1, text),
    };
    let text: &'static mut str = text.leak();
    let outcome = &raw mut OUTCOME;
    // SAFETY: nothing else touches it; there is one thread, and `run` is called once.
    unsafe {
        *outcome = Outcome { failed, text: Text { start: text.as_mut_ptr(), length: text.len() } };
    }
    outcome
}

/// The host has read the outcome. The instance ends here, and its memory with it.
#[unsafe(no_mangle)]
extern "C" fn cabi_post_run(_outcome: *const Outcome) {}

/// A result's text.
pub trait IntoText {
    /// The text that the client gets.
    fn into_text(self) -> String;
}

impl IntoText for () {
    fn into_text(self) -> String {
        String::new()
    }
}

impl IntoText for String {
    fn into_text(self) -> String {
        self
    }
}

impl IntoText for &str {
    fn into_text(self) -> String {
        self.to_owned()
    }
}

/// The result of a main function.
pub trait IntoOutcome {
    /// The result's text, or the error's.
    fn into_outcome(self) -> Result<String, String>;
}

impl<T: IntoText> IntoOutcome for T {
    fn into_outcome(self) -> Result<String, String> {
        Ok(self.into_text())
    }
}

impl<T: IntoText, E: Display> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Result<String, String> {
        self.map(IntoText::into_text).map_err(|error| error.to_string())
    }
}
