//! The canonical ABI, as far as the contract uses it: how values come back from the host.
//!
//! A function whose result does not fit a core value gets a pointer to an area that the host fills.
//! Every field of such a result is aligned to a word, so the area is read as words. Texts and lists
//! lie in memory that the host asked `cabi_realloc` for; they become owned values without a copy.

use std::alloc::{alloc, handle_alloc_error, realloc, Layout};

use crate::error::{Error, Result};
use crate::http::Response;
use crate::introspect::Attention;
use crate::sample::Sampled;
use crate::text::Distribution;

/// The largest result is `result<tuple<u32, f32, list<u32>, list<f32>>, string>`.
const AREA_WORDS: usize = 7;

/// Calls a host function that fills an area, and reads the area.
#[inline]
pub(crate) fn call<T: Lift>(host: impl FnOnce(*mut usize)) -> T {
    let mut area = [0; AREA_WORDS];
    host(area.as_mut_ptr());
    // SAFETY: the host filled the area as the contract says, and each wrapper's type agrees with it.
    unsafe { T::lift(&area) }
}

/// A value that can be read from an area.
pub(crate) trait Lift {
    /// # Safety
    /// `words` hold a value of this type, which is not read a second time.
    unsafe fn lift(words: &[usize]) -> Self;
}

impl Lift for () {
    unsafe fn lift(_: &[usize]) {}
}

impl Lift for u32 {
    unsafe fn lift(words: &[usize]) -> u32 {
        words[0] as u32
    }
}

impl Lift for bool {
    unsafe fn lift(words: &[usize]) -> bool {
        words[0] != 0 // one byte; the area was zero before
    }
}

impl Lift for (u32, u32) {
    unsafe fn lift(words: &[usize]) -> (u32, u32) {
        (words[0] as u32, words[1] as u32)
    }
}

impl Lift for (Vec<u32>, u32) {
    unsafe fn lift(words: &[usize]) -> (Vec<u32>, u32) {
        (unsafe { lift_list(words) }, words[2] as u32)
    }
}

/// A list whose elements need no reading: the host's memory becomes the vector's.
unsafe fn lift_list<T>(words: &[usize]) -> Vec<T> {
    match words[1] {
        0 => Vec::new(),
        count => unsafe { Vec::from_raw_parts(words[0] as *mut T, count, count) },
    }
}

impl Lift for Vec<u8> {
    unsafe fn lift(words: &[usize]) -> Vec<u8> {
        unsafe { lift_list(words) }
    }
}

impl Lift for Vec<u32> {
    unsafe fn lift(words: &[usize]) -> Vec<u32> {
        unsafe { lift_list(words) }
    }
}

impl Lift for String {
    unsafe fn lift(words: &[usize]) -> String {
        // The canonical ABI guarantees UTF-8.
        unsafe { String::from_utf8_unchecked(lift_list(words)) }
    }
}

impl Lift for Vec<String> {
    unsafe fn lift(words: &[usize]) -> Vec<String> {
        let texts: Vec<[usize; 2]> = unsafe { lift_list(words) };
        texts.iter().map(|text| unsafe { String::lift(text) }).collect()
    }
}

impl Lift for Vec<Vec<u8>> {
    unsafe fn lift(words: &[usize]) -> Vec<Vec<u8>> {
        let blobs: Vec<[usize; 2]> = unsafe { lift_list(words) };
        blobs.iter().map(|blob| unsafe { Vec::lift(blob) }).collect()
    }
}

impl Lift for Vec<(String, u32)> {
    unsafe fn lift(words: &[usize]) -> Vec<(String, u32)> {
        let pairs: Vec<[usize; 3]> = unsafe { lift_list(words) };
        pairs.iter().map(|pair| (unsafe { String::lift(pair) }, pair[2] as u32)).collect()
    }
}

impl Lift for Distribution {
    unsafe fn lift(words: &[usize]) -> Distribution {
        Distribution {
            tokens: unsafe { lift_list(words) },
            probabilities: unsafe { lift_list(&words[2..]) },
        }
    }
}

impl Lift for Attention {
    unsafe fn lift(words: &[usize]) -> Attention {
        Attention { rows: words[0] as u32, numbers: unsafe { lift_list(&words[1..]) } }
    }
}

impl Lift for Vec<(String, String)> {
    unsafe fn lift(words: &[usize]) -> Vec<(String, String)> {
        let pairs: Vec<[usize; 4]> = unsafe { lift_list(words) };
        pairs.iter().map(|pair| unsafe { (String::lift(pair), String::lift(&pair[2..])) }).collect()
    }
}

impl Lift for Response {
    unsafe fn lift(words: &[usize]) -> Response {
        let headers = unsafe { Vec::lift(&words[1..]) };
        Response::from_parts(words[0] as u32, headers, words[3] as u32)
    }
}

impl Lift for Sampled {
    unsafe fn lift(words: &[usize]) -> Sampled {
        Sampled {
            token: words[0] as u32,
            logprob: f32::from_bits(words[1] as u32),
            top_tokens: unsafe { lift_list(&words[2..]) },
            top_logprobs: unsafe { lift_list(&words[4..]) },
        }
    }
}

impl<T: Lift> Lift for Result<T> {
    unsafe fn lift(words: &[usize]) -> Result<T> {
        // The tag is one byte; the area was zero before.
        match words[0] {
            0 => Ok(unsafe { T::lift(&words[1..]) }),
            _ => Err(Error::from_host(unsafe { String::lift(&words[1..]) })),
        }
    }
}

/// Memory for what the host passes in: results of its functions and the arguments of `run`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cabi_realloc(
    old: *mut u8,
    old_size: usize,
    alignment: usize,
    size: usize,
) -> *mut u8 {
    if size == 0 {
        return alignment as *mut u8;
    }
    // SAFETY: the host passes powers of two, and sizes that it passed before.
    let (layout, memory) = unsafe {
        let layout = Layout::from_size_align_unchecked(size, alignment);
        let memory = match old_size {
            0 => alloc(layout),
            _ => realloc(old, Layout::from_size_align_unchecked(old_size, alignment), size),
        };
        (layout, memory)
    };
    if memory.is_null() {
        handle_alloc_error(layout)
    }
    memory
}
