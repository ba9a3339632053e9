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
//! A value is bytes; a text is kept as its bytes in UTF-8. What has been awaited is on disk. Operations
//! take effect in the order in which they are first polled. [`store_get`] and the others of that form are the contract's own functions: they begin
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

/// Keys, and their values; `None` for a key that is, or must be, absent.
pub type Values<'a> = [(&'a str, Option<&'a [u8]>)];

/// Changes several keys at once, if others have the values they are expected to have. False if one has
/// not; nothing has changed then.
pub async fn commit(changes: &Values<'_>, expected: &Values<'_>) -> Result<bool> {
    let ((expected, none), (writes, deletes)) = (parted(expected), parted(changes));
    match when_room(|| store_commit(&expected, &none, &writes, &deletes), store_room).await {
        Err(error) if error.code == ErrorCode::Conflict => Ok(false),
        done => done.map(|()| true),
    }
}

/// Those that have a value, and the keys of the others.
fn parted<'a>(values: &Values<'a>) -> (Vec<(&'a str, &'a [u8])>, Vec<&'a str>) {
    let (mut present, mut absent) = (Vec::new(), Vec::new());
    for &(key, value) in values {
        match value {
            Some(value) => present.push((key, value)),
            None => absent.push(key),
        }
    }
    (present, absent)
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
        if commit(&[(key, new.as_deref())], &[(key, old.as_deref())]).await? {
            return Ok(new);
        }
    }
}
