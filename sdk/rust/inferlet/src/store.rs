//! Keys and values of this user that survive the instance and the server.
//!
//! ```ignore
//! store::set("greeting", "hello").await?;
//! let value: Option<Vec<u8>> = store::get("greeting").await?;
//! let text: Option<String> = store::get_text("greeting").await?;
//! let keys: Vec<String> = store::keys("chat/").await?;
//! store::update("count", |old| Some(next(old))).await?;
//! ```
//!
//! A value is bytes; a text is kept as its bytes in UTF-8. What has been awaited is on disk. Operations take effect in the order in which they are first
//! polled. [`store_get`] and the others of that form are the contract's own functions: they begin
//! when called.

use crate::error::{Error, ErrorCode, Result};
use crate::future::when_room;

pub use crate::host::store::*;

/// Most keys of one [`list`].
const PAGE: u32 = 1000;

/// A key's value; `None` if there is no such key.
pub async fn get(key: &str) -> Result<Option<Vec<u8>>> {
    match when_room(|| store_get(key), store_room).await {
        Err(error) if error.code == ErrorCode::NotFound => Ok(None),
        taken => taken.map(Some),
    }
}

/// As [`get`], the value as text. The error is `invalid-argument` if it is none in UTF-8.
pub async fn get_text(key: &str) -> Result<Option<String>> {
    let text = get(key).await?.map(String::from_utf8).transpose();
    text.map_err(|error| Error::new(ErrorCode::InvalidArgument, format!("{key}: {error}")))
}

/// Gives a key a value, new or instead of its old one.
pub async fn set(key: &str, value: impl AsRef<[u8]>) -> Result {
    when_room(|| store_set(key, value.as_ref()), store_room).await
}

/// Removes a key; one that is not there is no error.
pub async fn delete(key: &str) -> Result {
    when_room(|| store_delete(key), store_room).await
}

/// Keys that begin with `prefix` and come after `after`, in the order of their bytes, `limit` (1 to
/// 1000) at most.
pub async fn list(prefix: &str, after: &str, limit: u32) -> Result<Vec<String>> {
    when_room(|| store_list(prefix, after, limit), store_room).await
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
    pub fn set(mut self, key: &'a str, value: &'a (impl AsRef<[u8]> + ?Sized)) -> Commit<'a> {
        self.writes.push((key, value.as_ref()));
        self
    }

    /// Removes a key.
    pub fn delete(mut self, key: &'a str) -> Commit<'a> {
        self.deletes.push(key);
        self
    }

    /// Does it all. The error is `conflict` if a condition does not hold; nothing has changed then.
    pub async fn run(&self) -> Result {
        when_room(
            || store_commit(&self.expected, &self.absent, &self.writes, &self.deletes),
            store_room,
        )
        .await
    }
}

/// Derives a key's value from its old one, atomically. `change` gets `None` if there is no value
/// and returns `None` to remove it; it is called again after a concurrent change. Returns the new
/// value.
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
