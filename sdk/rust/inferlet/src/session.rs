//! Messages between the instance and the client that launched it.
//!
//! One function for each of the contract's interface `session`, and [`stream`] for what is sent
//! piece by piece.

use std::future::ready;

use crate::error::Result;
use crate::future::when_room;

pub use crate::host::session::*;

/// Sends text to the client, waiting while it has no room.
pub async fn stream(message: &str) -> Result {
    when_room(|| ready(send(message)), writable).await
}

/// Sends bytes to the client, waiting while it has no room.
pub async fn stream_blob(data: &[u8]) -> Result {
    when_room(|| ready(send_blob(data)), writable).await
}
