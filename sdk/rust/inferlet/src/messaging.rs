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

use std::future::ready;
use std::mem::ManuallyDrop;

use crate::error::Result;
use crate::future::{when_room, HostFuture};
use crate::host::messaging as host;

pub use crate::host::messaging::*;
pub use crate::host::messaging::{broadcast as try_broadcast, push as try_push};

/// Appends to the work queue of a topic, waiting while it is full.
pub async fn push(topic: &str, message: &str) -> Result {
    when_room(|| ready(try_push(topic, message)), || push_room(topic)).await
}

/// Sends to every subscriber of a topic, waiting while one of them has too much unread. Returns how
/// many there are; may be none.
pub async fn broadcast(topic: &str, message: &str) -> Result<u32> {
    when_room(|| ready(try_broadcast(topic, message)), || broadcast_room(topic)).await
}

/// Subscribes to what is broadcast from now on.
pub fn subscribe(topic: &str) -> Result<Subscription> {
    Ok(Subscription { handle: host::subscribe(topic)? })
}

/// Messages broadcast to a topic. Dropped, it unsubscribes and drops what has not been read.
///
/// An unread one makes the broadcasters wait once its box is full (back-pressure).
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

impl Drop for Subscription {
    fn drop(&mut self) {
        // It can only fail for a handle that is gone, and gone is what it shall be.
        let _ = unsubscribe(self.handle);
    }
}
