//! Futures of the host as Rust futures.

use std::cell::RefCell;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::error::{Error, ErrorCode, Result};
use crate::runtime;
use crate::sample::{self, Sampled};

/// Something that the host is doing. Await it for its value; drop it to give it up.
///
/// An error at the start (say, too many open futures) is returned when it is awaited, so that one
/// `?` is enough.
#[must_use = "a future that is dropped is given up"]
pub struct HostFuture<T> {
    state: State,
    take: fn(u32) -> Result<T>,
    /// What waits for it and consumes it in one call, if it is of a token.
    next_token: Option<NextToken>,
}

type NextToken = fn(u32) -> Result<u32>;

enum State {
    /// It could not be started.
    Failed(Error),
    /// Not polled yet.
    Started(u32),
    /// The reactor waits for it, or has seen it ready.
    Watched(u32),
    Finished,
}

impl<T> HostFuture<T> {
    pub(crate) fn new(started: Result<u32>, take: fn(u32) -> Result<T>) -> HostFuture<T> {
        let state = match started {
            Ok(handle) => State::Started(handle),
            Err(error) => State::Failed(error),
        };
        HostFuture { state, take, next_token: None }
    }

    /// The future, or the error with which it could not be started.
    pub(crate) fn started(self) -> Result<HostFuture<T>> {
        match self.state {
            State::Failed(_) => Err(self.into_handle().expect_err("it has failed")),
            _ => Ok(self),
        }
    }

    /// The handle, for `runtime::wait`, `take` and `cancel`. The future is no longer given up when
    /// it is dropped.
    pub fn into_handle(mut self) -> Result<u32> {
        match mem::replace(&mut self.state, State::Finished) {
            State::Failed(error) => Err(error),
            State::Started(handle) => Ok(handle),
            State::Watched(handle) => {
                forget(handle);
                Ok(handle)
            }
            State::Finished => {
                Err(Error::new(ErrorCode::InvalidHandle, "the future has given its value already"))
            }
        }
    }
}

impl HostFuture<Sampled> {
    /// The token alone, which costs one call of the host in the place of two if nothing else is
    /// waited for.
    pub(crate) fn token(mut self) -> HostFuture<u32> {
        let state = mem::replace(&mut self.state, State::Finished);
        HostFuture { state, take: take_token, next_token: Some(sample::next_token) }
    }
}

impl<T> Future for HostFuture<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        match mem::replace(&mut self.state, State::Finished) {
            State::Failed(error) => Poll::Ready(Err(error)),
            State::Started(handle) => {
                self.state = State::Watched(handle);
                watch(handle, context.waker(), self.next_token);
                Poll::Pending
            }
            State::Watched(handle) if still_watched(handle, context.waker()) => {
                self.state = State::Watched(handle);
                Poll::Pending
            }
            State::Watched(handle) => Poll::Ready((self.take)(handle)),
            State::Finished => panic!("a host future was polled after it had given its value"),
        }
    }
}

impl<T> Drop for HostFuture<T> {
    fn drop(&mut self) {
        let handle = match self.state {
            State::Started(handle) => handle,
            State::Watched(handle) => {
                forget(handle);
                handle
            }
            State::Failed(_) | State::Finished => return,
        };
        // It can only fail for a handle that is gone, and gone is what it shall be.
        let _ = runtime::cancel(handle);
    }
}

/// The awaited futures and their wakers: two lists in the order of the handles, so that the first
/// is `wait`'s argument as it is.
struct Reactor {
    handles: Vec<u32>,
    wakers: Vec<Waker>,
    /// The newest future that was watched for a token, and what waits for it and consumes it: a
    /// function of the contract that programs without generations need not import.
    token: Option<(u32, NextToken)>,
    /// A future that was consumed while it was waited for, and its token.
    arrived: Option<(u32, Result<u32>)>,
}

thread_local! {
    static REACTOR: RefCell<Reactor> = const {
        RefCell::new(Reactor {
            handles: Vec::new(),
            wakers: Vec::new(),
            token: None,
            arrived: None,
        })
    };
}

fn watch(handle: u32, waker: &Waker, next_token: Option<NextToken>) {
    REACTOR.with_borrow_mut(|reactor| {
        let at = reactor.handles.binary_search(&handle).unwrap_or_else(|place| place);
        reactor.handles.insert(at, handle);
        reactor.wakers.insert(at, waker.clone());
        if let Some(next_token) = next_token {
            reactor.token = Some((handle, next_token));
        }
    });
}

/// Consumes a ready future of a token, unless `park` has.
fn take_token(handle: u32) -> Result<u32> {
    let arrived = REACTOR
        .with_borrow_mut(|reactor| reactor.arrived.take_if(|(consumed, _)| *consumed == handle));
    match arrived {
        Some((_, token)) => token,
        None => sample::next_token(handle),
    }
}

fn still_watched(handle: u32, waker: &Waker) -> bool {
    REACTOR.with_borrow_mut(|reactor| match reactor.handles.binary_search(&handle) {
        Ok(at) => {
            reactor.wakers[at].clone_from(waker);
            true
        }
        Err(_) => false,
    })
}

fn forget(handle: u32) {
    REACTOR.with_borrow_mut(|reactor| {
        if let Ok(at) = reactor.handles.binary_search(&handle) {
            reactor.handles.remove(at);
            reactor.wakers.remove(at);
        }
        reactor.arrived.take_if(|(consumed, _)| *consumed == handle);
    });
}

/// Suspends the instance until one of the watched futures is ready, and wakes their tasks.
pub(crate) fn park() -> Result {
    if park_for_token() {
        return Ok(());
    }
    let ready = REACTOR.with_borrow(|reactor| {
        if reactor.handles.is_empty() {
            return Err(Error::other(
                "every task waits, and none of them for the host: a deadlock",
            ));
        }
        runtime::wait(&reactor.handles)
    })?;
    REACTOR.with_borrow_mut(|reactor| {
        for handle in &ready {
            if let Ok(at) = reactor.handles.binary_search(handle) {
                reactor.handles.remove(at);
                reactor.wakers.remove(at).wake();
            }
        }
    });
    Ok(())
}

/// As `park`, if all there is to wait for is one token; else false.
fn park_for_token() -> bool {
    let lone = REACTOR.with_borrow(|reactor| match &reactor.handles[..] {
        [only] => reactor.token.filter(|(handle, _)| handle == only),
        _ => None,
    });
    let Some((handle, next_token)) = lone else { return false };
    let token = next_token(handle);
    REACTOR.with_borrow_mut(|reactor| {
        reactor.arrived = Some((handle, token));
        reactor.handles.clear();
        for waker in reactor.wakers.drain(..) {
            waker.wake();
        }
    });
    true
}
