//! Keys and values of this user that survive the instance and the server.
//!
//! ```ignore
//! store::set("greeting", b"hello").await?;
//! let value: Option<Vec<u8>> = store::get("greeting").await?;
//! let keys: Vec<String> = store::keys("chat/").await?;
//! store::update("count", |old| Some(next(old))).await?;
//! ```
//!
//! What has been awaited is on disk. Operations take effect in the order in which they are first polled.
//! [`store_get`] and the others of that form are the contract's own functions: they begin when called.

use crate::abi::call;
use crate::error::{ErrorCode, Result};
use crate::future::HostFuture;
use crate::runtime;

mod host {
    use super::Pair;

    #[link(wasm_import_module = "pie:inferlet/store@0.1.0")]
    unsafe extern "C" {
        #[link_name = "store-get"]
        pub fn store_get(key: *const u8, length: usize, area: *mut usize);
        #[link_name = "store-set"]
        pub fn store_set(
            key: *const u8,
            length: usize,
            value: *const u8,
            value_length: usize,
            area: *mut usize,
        );
        #[link_name = "store-delete"]
        pub fn store_delete(key: *const u8, length: usize, area: *mut usize);
        #[link_name = "store-list"]
        pub fn store_list(
            prefix: *const u8,
            prefix_length: usize,
            after: *const u8,
            after_length: usize,
            limit: u32,
            area: *mut usize,
        );
        #[link_name = "store-room"]
        pub fn store_room(area: *mut usize);
        #[link_name = "store-commit"]
        pub fn store_commit(
            expected: *const Pair,
            expected_count: usize,
            absent: *const [usize; 2],
            absent_count: usize,
            writes: *const Pair,
            write_count: usize,
            deletes: *const [usize; 2],
            delete_count: usize,
            area: *mut usize,
        );
    }
}

/// A key and a value as the canonical ABI has them: addresses and lengths.
type Pair = [usize; 4];

/// Most keys of one [`list`].
const PAGE: u32 = 1000;

/// As the contract's `store-get`: the error is `not-found` if there is no such key.
pub fn store_get(key: &str) -> HostFuture<Vec<u8>> {
    let started = call(|area| unsafe { host::store_get(key.as_ptr(), key.len(), area) });
    HostFuture::new(started, runtime::take_blob)
}

/// As the contract's `store-set`.
pub fn store_set(key: &str, value: &[u8]) -> HostFuture<()> {
    let started = call(|area| unsafe {
        host::store_set(key.as_ptr(), key.len(), value.as_ptr(), value.len(), area)
    });
    HostFuture::new(started, runtime::take)
}

/// As the contract's `store-delete`.
pub fn store_delete(key: &str) -> HostFuture<()> {
    let started = call(|area| unsafe { host::store_delete(key.as_ptr(), key.len(), area) });
    HostFuture::new(started, runtime::take)
}

/// As the contract's `store-list`.
pub fn store_list(prefix: &str, after: &str, limit: u32) -> HostFuture<Vec<String>> {
    let started = call(|area| unsafe {
        host::store_list(prefix.as_ptr(), prefix.len(), after.as_ptr(), after.len(), limit, area)
    });
    HostFuture::new(started, runtime::take_texts)
}

/// As the contract's `store-commit`; [`Commit`] is more convenient.
pub fn store_commit(
    expected: &[(&str, &[u8])],
    absent: &[&str],
    writes: &[(&str, &[u8])],
    deletes: &[&str],
) -> HostFuture<()> {
    let (expected, writes) = (pairs(expected), pairs(writes));
    let (absent, deletes) = (texts(absent), texts(deletes));
    let started = call(|area| unsafe {
        host::store_commit(
            expected.as_ptr(),
            expected.len(),
            absent.as_ptr(),
            absent.len(),
            writes.as_ptr(),
            writes.len(),
            deletes.as_ptr(),
            deletes.len(),
            area,
        )
    });
    HostFuture::new(started, runtime::take)
}

/// Ready when the store accepts operations again.
pub fn store_room() -> HostFuture<()> {
    HostFuture::new(call(|area| unsafe { host::store_room(area) }), runtime::take)
}

/// A key's value; `None` if there is no such key.
pub async fn get(key: &str) -> Result<Option<Vec<u8>>> {
    match when_room(|| store_get(key)).await {
        Err(error) if error.code == ErrorCode::NotFound => Ok(None),
        taken => taken.map(Some),
    }
}

/// Gives a key a value, new or instead of its old one.
pub async fn set(key: &str, value: &[u8]) -> Result {
    when_room(|| store_set(key, value)).await
}

/// Removes a key; one that is not there is no error.
pub async fn delete(key: &str) -> Result {
    when_room(|| store_delete(key)).await
}

/// Keys that begin with `prefix` and come after `after`, in the order of their bytes, `limit` (1 to
/// 1000) at most.
pub async fn list(prefix: &str, after: &str, limit: u32) -> Result<Vec<String>> {
    when_room(|| store_list(prefix, after, limit)).await
}

/// All keys that begin with `prefix`, in the order of their bytes.
pub async fn keys(prefix: &str) -> Result<Vec<String>> {
    let mut keys: Vec<String> = Vec::new();
    loop {
        let page = list(prefix, keys.last().map_or("", String::as_str), PAGE).await?;
        let last = page.len() < PAGE as usize;
        keys.extend(page);
        if last {
            return Ok(keys);
        }
    }
}

/// Changes that happen together, if what they were derived from is still so.
#[derive(Clone, Debug, Default)]
#[must_use = "nothing happens before `run`"]
pub struct Commit<'a> {
    expected: Vec<(&'a str, &'a [u8])>,
    absent: Vec<&'a str>,
    writes: Vec<(&'a str, &'a [u8])>,
    deletes: Vec<&'a str>,
}

impl<'a> Commit<'a> {
    /// No condition and no change yet.
    pub fn new() -> Commit<'a> {
        Commit::default()
    }

    /// On condition that a key has this value still, or that there is none.
    pub fn expect(mut self, key: &'a str, value: Option<&'a [u8]>) -> Commit<'a> {
        match value {
            Some(value) => self.expected.push((key, value)),
            None => self.absent.push(key),
        }
        self
    }

    /// Gives a key a value.
    pub fn set(mut self, key: &'a str, value: &'a [u8]) -> Commit<'a> {
        self.writes.push((key, value));
        self
    }

    /// Removes a key.
    pub fn delete(mut self, key: &'a str) -> Commit<'a> {
        self.deletes.push(key);
        self
    }

    /// Does it all. The error is `conflict` if a condition does not hold; nothing has changed then.
    pub async fn run(&self) -> Result {
        when_room(|| store_commit(&self.expected, &self.absent, &self.writes, &self.deletes)).await
    }
}

/// Derives a key's value from its old one, whoever else does so at the same time. `change` gets `None`
/// if there is none, and returns `None` to remove it; it is called again if somebody else was faster.
/// Gives the new value.
pub async fn update(
    key: &str,
    mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
) -> Result<Option<Vec<u8>>> {
    loop {
        let old = get(key).await?;
        let new = change(old.as_deref());
        let commit = Commit::new().expect(key, old.as_deref());
        let commit = match &new {
            Some(value) => commit.set(key, value),
            None => commit.delete(key),
        };
        match commit.run().await {
            Err(error) if error.code == ErrorCode::Conflict => {}
            done => return done.map(|()| new),
        }
    }
}

/// Runs an operation, after others of this instance if they have too many bytes under way.
async fn when_room<T>(start: impl Fn() -> HostFuture<T>) -> Result<T> {
    loop {
        match start().await {
            Err(error) if error.code == ErrorCode::WouldBlock => store_room().await?,
            done => return done,
        }
    }
}

fn texts(texts: &[&str]) -> Vec<[usize; 2]> {
    texts.iter().map(|text| [text.as_ptr() as usize, text.len()]).collect()
}

fn pairs(pairs: &[(&str, &[u8])]) -> Vec<Pair> {
    let lowered = |(key, value): &(&str, &[u8])| {
        [key.as_ptr() as usize, key.len(), value.as_ptr() as usize, value.len()]
    };
    pairs.iter().map(lowered).collect()
}
