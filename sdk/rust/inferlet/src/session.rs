//! Messages between the instance and the client that launched it.
//!
//! One function for each of the contract's interface `session`, and [`stream`] for what is sent
//! piece by piece.

use crate::error::{ErrorCode, Result};
use crate::future::HostFuture;
use crate::host::session as host;
use crate::runtime;

pub use crate::host::session::*;

/// Ready when `send` has room again.
pub fn writable() -> HostFuture<()> {
    HostFuture::new(host::writable(), runtime::take)
}

/// The client's next text.
pub fn receive() -> HostFuture<String> {
    HostFuture::new(host::receive(), runtime::take_text)
}

/// The client's next bytes.
pub fn receive_blob() -> HostFuture<Vec<u8>> {
    HostFuture::new(host::receive_blob(), runtime::take_blob)
}

/// Sends text to the client, waiting while it has no room.
pub async fn stream(message: &str) -> Result {
    loop {
        match send(message) {
            Err(error) if error.code == ErrorCode::WouldBlock => writable().await?,
            sent => return sent,
        }
    }
}

/// Sends bytes to the client, waiting while it has no room.
pub async fn stream_blob(data: &[u8]) -> Result {
    loop {
        match send_blob(data) {
            Err(error) if error.code == ErrorCode::WouldBlock => writable().await?,
            sent => return sent,
        }
    }
}
