//! Messages between the instances of one user: topics that are broadcast to, and work queues.
//!
//! ```ignore
//! messaging::push("work", "a task").await?;          // exactly one instance gets it
//! let task = messaging::pull("work").await?;
//!
//! let news = messaging::subscribe("news")?;           // every subscriber gets everything
//! messaging::broadcast("news", "hello").await?;
//! let text = news.receive().await?;
//! ```
//!
//! Messages live in the server's memory. What must survive it belongs in [`crate::store`].

use std::mem::ManuallyDrop;

use crate::abi::call;
use crate::error::{ErrorCode, Result};
use crate::future::HostFuture;
use crate::runtime;

mod host {
    #[link(wasm_import_module = "pie:inferlet/messaging@0.1.0")]
    unsafe extern "C" {
        pub fn broadcast(
            topic: *const u8,
            topic_length: usize,
            message: *const u8,
            message_length: usize,
            area: *mut usize,
        );
        #[link_name = "broadcast-room"]
        pub fn broadcast_room(topic: *const u8, length: usize, area: *mut usize);
        pub fn subscribe(topic: *const u8, length: usize, area: *mut usize);
        pub fn unsubscribe(subscription: u32, area: *mut usize);
        #[link_name = "next-message"]
        pub fn next_message(subscription: u32, area: *mut usize);
        pub fn push(
            topic: *const u8,
            topic_length: usize,
            message: *const u8,
            message_length: usize,
            area: *mut usize,
        );
        #[link_name = "push-room"]
        pub fn push_room(topic: *const u8, length: usize, area: *mut usize);
        pub fn pull(topic: *const u8, length: usize, area: *mut usize);
    }
}

/// Appends to the work queue of a topic at once, or fails with `would-block` if it is full.
pub fn try_push(topic: &str, message: &str) -> Result {
    call(|area| unsafe {
        host::push(topic.as_ptr(), topic.len(), message.as_ptr(), message.len(), area)
    })
}

/// Ready when the work queue has room.
pub fn push_room(topic: &str) -> HostFuture<()> {
    let started = call(|area| unsafe { host::push_room(topic.as_ptr(), topic.len(), area) });
    HostFuture::new(started, runtime::take)
}

/// Appends to the work queue of a topic, waiting while it is full.
pub async fn push(topic: &str, message: &str) -> Result {
    loop {
        match try_push(topic, message) {
            Err(error) if error.code == ErrorCode::WouldBlock => push_room(topic).await?,
            pushed => return pushed,
        }
    }
}

/// The oldest message of a work queue that nobody else has. Dropped, it leaves it for the next.
pub fn pull(topic: &str) -> HostFuture<String> {
    let started = call(|area| unsafe { host::pull(topic.as_ptr(), topic.len(), area) });
    HostFuture::new(started, runtime::take_text)
}

/// Sends to every subscriber of a topic at once and returns how many there are, or fails with
/// `would-block` and sends to nobody if one of them has too much unread.
pub fn try_broadcast(topic: &str, message: &str) -> Result<u32> {
    call(|area| unsafe {
        host::broadcast(topic.as_ptr(), topic.len(), message.as_ptr(), message.len(), area)
    })
}

/// Ready when every subscriber of a topic has room.
pub fn broadcast_room(topic: &str) -> HostFuture<()> {
    let started = call(|area| unsafe { host::broadcast_room(topic.as_ptr(), topic.len(), area) });
    HostFuture::new(started, runtime::take)
}

/// Sends to every subscriber of a topic, waiting while one of them has too much unread. Returns how
/// many there are; may be none.
pub async fn broadcast(topic: &str, message: &str) -> Result<u32> {
    loop {
        match try_broadcast(topic, message) {
            Err(error) if error.code == ErrorCode::WouldBlock => broadcast_room(topic).await?,
            sent => return sent,
        }
    }
}

/// Subscribes to what is broadcast from now on.
pub fn subscribe(topic: &str) -> Result<Subscription> {
    let handle =
        call::<Result<u32>>(|area| unsafe { host::subscribe(topic.as_ptr(), topic.len(), area) })?;
    Ok(Subscription { handle })
}

/// What is broadcast to a topic. Dropped, it unsubscribes and drops what has not been read.
///
/// One that nobody reads makes the broadcasters wait once its box is full.
#[derive(Debug)]
pub struct Subscription {
    handle: u32,
}

impl Subscription {
    /// The next message, in the order of the broadcasts.
    pub fn receive(&self) -> HostFuture<String> {
        next_message(self.handle)
    }

    /// The handle, for [`next_message`] and [`unsubscribe`]. It no longer ends with this value.
    pub fn into_handle(self) -> u32 {
        ManuallyDrop::new(self).handle
    }
}

/// As the contract's `next-message`.
pub fn next_message(subscription: u32) -> HostFuture<String> {
    let started = call(|area| unsafe { host::next_message(subscription, area) });
    HostFuture::new(started, runtime::take_text)
}

/// As the contract's `unsubscribe`.
pub fn unsubscribe(subscription: u32) -> Result {
    call(|area| unsafe { host::unsubscribe(subscription, area) })
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // It can only fail for a handle that is gone, and gone is what it shall be.
        let _ = unsubscribe(self.handle);
    }
}
