//! The canonical ABI, as far as the contract uses it: how values go to the host and come back.
//!
//! A function whose result does not fit a core value gets a pointer to an area that the host fills.
//! Every field of such a result is aligned to a word, so the area is read as words. Texts and lists
//! lie in memory that the host asked `cabi_realloc` for; they become owned values without a copy.

use std::alloc::{alloc, handle_alloc_error, realloc, Layout};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::host::AREA_WORDS;

/// Declares the functions that an interface imports. Natively, where an author's `cargo test` runs
/// what of a crate needs no server, each panics.
macro_rules! imports {
    ($link:literal $(
        $(#[$name_there:meta])*
        pub fn $name:ident($($argument:ident: $of:ty),*) $(-> $result:ty)?;
    )*) => {
        #[cfg(target_arch = "wasm32")]
        #[link(wasm_import_module = $link)]
        unsafe extern "C" {
            $($(#[$name_there])* pub fn $name($($argument: $of),*) $(-> $result)?;)*
        }
        $(
            #[cfg(not(target_arch = "wasm32"))]
            pub unsafe fn $name($(_: $of),*) $(-> $result)? {
                panic!(concat!(stringify!($name), " is a server's: `pie-py run --says TEXT` has one"))
            }
        )*
    };
}
pub(crate) use imports;

/// Calls a host function that fills an area, and reads the area.
#[inline]
pub(crate) fn call<T: Lift>(host: impl FnOnce(*mut usize)) -> T {
    let mut area = [0; AREA_WORDS];
    host(area.as_mut_ptr());
    // SAFETY: the host filled the area as the contract says, and the types in `host.rs` are its.
    unsafe { T::lift(&area) }
}

/// Texts as the host reads a list of them: addresses and lengths. They must outlive the call.
pub(crate) fn texts(texts: &[&str]) -> Vec<[usize; 2]> {
    texts.iter().map(|text| [text.as_ptr() as usize, text.len()]).collect()
}

/// Pairs as the host reads a list of them: addresses and lengths. They must outlive the call.
pub(crate) fn pairs<T: AsRef<[u8]> + ?Sized>(pairs: &[(&str, &T)]) -> Vec<[usize; 4]> {
    let laid_out = |(first, second): &(&str, &T)| {
        let second = second.as_ref();
        [first.as_ptr() as usize, first.len(), second.as_ptr() as usize, second.len()]
    };
    pairs.iter().map(laid_out).collect()
}

/// A time as the contract has it; more than 584 years are as good as that.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A value that can be read from an area.
pub(crate) trait Lift: Sized {
    /// How many words it takes there, and as an element of a list.
    const WORDS: usize;

    /// # Safety
    /// `words` hold a value of this type, which is not read a second time.
    unsafe fn lift(words: &[usize]) -> Self;

    /// A list of such values.
    ///
    /// # Safety
    /// `words` are the address and the length of a list, which is not read a second time.
    unsafe fn lift_list(words: &[usize]) -> Vec<Self> {
        let flat: Vec<usize> = unsafe { adopt(words[0], words[1] * Self::WORDS) };
        flat.chunks_exact(Self::WORDS).map(|element| unsafe { Self::lift(element) }).collect()
    }
}

/// A list whose elements need no reading: the host's memory becomes the vector's.
unsafe fn adopt<T>(address: usize, count: usize) -> Vec<T> {
    match count {
        0 => Vec::new(),
        count => unsafe { Vec::from_raw_parts(address as *mut T, count, count) },
    }
}

impl Lift for () {
    const WORDS: usize = 0;

    unsafe fn lift(_: &[usize]) {}
}

impl Lift for bool {
    const WORDS: usize = 1;

    unsafe fn lift(words: &[usize]) -> bool {
        words[0] != 0 // one byte; the area was zero before
    }
}

macro_rules! number {
    ($($kind:ty: $of_word:expr;)*) => {
        $(impl Lift for $kind {
            const WORDS: usize = 1;

            unsafe fn lift(words: &[usize]) -> $kind {
                $of_word(words[0])
            }

            unsafe fn lift_list(words: &[usize]) -> Vec<$kind> {
                unsafe { adopt(words[0], words[1]) }
            }
        })*
    };
}

number! {
    u8: |word| word as u8;
    u32: |word| word as u32;
    f32: |word| f32::from_bits(word as u32);
}

impl Lift for String {
    const WORDS: usize = 2;

    unsafe fn lift(words: &[usize]) -> String {
        // The canonical ABI guarantees UTF-8.
        unsafe { String::from_utf8_unchecked(adopt(words[0], words[1])) }
    }
}

impl<T: Lift> Lift for Vec<T> {
    const WORDS: usize = 2;

    unsafe fn lift(words: &[usize]) -> Vec<T> {
        unsafe { T::lift_list(words) }
    }
}

macro_rules! tuple {
    ($($part:ident)*) => {
        impl<$($part: Lift),*> Lift for ($($part,)*) {
            const WORDS: usize = 0 $(+ $part::WORDS)*;

            #[allow(unused_assignments)] // after the last part
            unsafe fn lift(mut words: &[usize]) -> Self {
                ($({
                    let own;
                    (own, words) = words.split_at($part::WORDS);
                    unsafe { $part::lift(own) }
                },)*)
            }
        }
    };
}

tuple! { A B }
tuple! { A B C }
tuple! { A B C D }

impl<T: Lift> Lift for Result<T> {
    const WORDS: usize = 1 + if T::WORDS > String::WORDS { T::WORDS } else { String::WORDS };

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
