//! Messages between the instance and the client that launched it.
//!
//! One function for each of the contract's interface `session`, and [`stream`] for what is sent
//! piece by piece.

use crate::abi::call;
use crate::error::{ErrorCode, Result};
use crate::future::HostFuture;
use crate::runtime;

mod host {
    #[link(wasm_import_module = "pie:inferlet/session@0.1.0")]
    unsafe extern "C" {
        pub fn send(message: *const u8, length: usize, area: *mut usize);
        #[link_name = "send-blob"]
        pub fn send_blob(data: *const u8, length: usize, area: *mut usize);
        pub fn writable(area: *mut usize);
        pub fn receive(area: *mut usize);
        #[link_name = "receive-blob"]
        pub fn receive_blob(area: *mut usize);
    }
}

/// Sends text to the client at once, or fails with `would-block`.
pub fn send(message: &str) -> Result {
    call(|area| unsafe { host::send(message.as_ptr(), message.len(), area) })
}

/// Sends bytes to the client at once, or fails with `would-block`.
pub fn send_blob(data: &[u8]) -> Result {
    call(|area| unsafe { host::send_blob(data.as_ptr(), data.len(), area) })
}

/// Ready when `send` has room again.
pub fn writable() -> HostFuture<()> {
    HostFuture::new(call(|area| unsafe { host::writable(area) }), runtime::take)
}

/// The client's next text.
pub fn receive() -> HostFuture<String> {
    HostFuture::new(call(|area| unsafe { host::receive(area) }), runtime::take_text)
}

/// The client's next bytes.
pub fn receive_blob() -> HostFuture<Vec<u8>> {
    HostFuture::new(call(|area| unsafe { host::receive_blob(area) }), runtime::take_blob)
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
