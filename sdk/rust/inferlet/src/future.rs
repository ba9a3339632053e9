//! Futures of the host as Rust futures.

use std::cell::RefCell;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::error::{Error, ErrorCode, Result};
use crate::runtime;

/// Something that the host is doing. Await it for its value; drop it to give it up.
///
/// An error at the start (say, too many open futures) is returned when it is awaited, so that one
/// `?` is enough.
#[must_use = "a future that is dropped is given up"]
pub struct HostFuture<T> {
    state: State,
    take: fn(u32) -> Result<T>,
}

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
    /// `started` is what the host has returned; `take` consumes the future once it is ready.
    pub(crate) fn new(started: Result<u32>, take: fn(u32) -> Result<T>) -> HostFuture<T> {
        let state = match started {
            Ok(handle) => State::Started(handle),
            Err(error) => State::Failed(error),
        };
        HostFuture { state, take }
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

impl<T> Future for HostFuture<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        match mem::replace(&mut self.state, State::Finished) {
            State::Failed(error) => Poll::Ready(Err(error)),
            State::Started(handle) => {
                self.state = State::Watched(handle);
                watch(handle, context.waker());
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

/// Does something, and again once there is room where the host has none.
pub(crate) async fn when_room<T, F: Future<Output = Result<T>>>(
    attempt: impl Fn() -> F,
    room: impl Fn() -> HostFuture<()>,
) -> Result<T> {
    loop {
        match attempt().await {
            Err(error) if error.code == ErrorCode::WouldBlock => room().await?,
            done => return done,
        }
    }
}

/// The awaited futures and their wakers: two lists in the order of the handles, so that the first
/// is `wait`'s argument as it is.
struct Reactor {
    handles: Vec<u32>,
    wakers: Vec<Waker>,
    /// Those that wait until nothing else of the instance can go on.
    idle: Vec<(Rc<dyn Lone>, Waker)>,
}

thread_local! {
    static REACTOR: RefCell<Reactor> = const {
        RefCell::new(Reactor { handles: Vec::new(), wakers: Vec::new(), idle: Vec::new() })
    };
}

fn watch(handle: u32, waker: &Waker) {
    REACTOR.with_borrow_mut(|reactor| {
        let at = reactor.handles.binary_search(&handle).unwrap_or_else(|place| place);
        reactor.handles.insert(at, handle);
        reactor.wakers.insert(at, waker.clone());
    });
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
    });
}

/// Suspends the instance until one of the watched futures is ready, and wakes their tasks.
pub(crate) fn park() -> Result {
    let (idle, alone) = REACTOR
        .with_borrow_mut(|reactor| (mem::take(&mut reactor.idle), reactor.handles.is_empty()));
    if let ([(only, _)], true) = (&idle[..], alone) {
        only.wait();
    }
    if !idle.is_empty() {
        idle.into_iter().for_each(|(_, waker)| waker.wake());
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

/// A run, whose tokens are waited for in one call. By a trait, so that programs without runs import
/// nothing of them.
pub(crate) trait Lone {
    /// Suspends the instance until they come.
    fn wait(&self);
}

/// Waits until nothing else of the instance can go on. If nothing else waits either, the run has
/// waited for its tokens meanwhile.
pub(crate) struct Idle {
    pub(crate) run: Rc<dyn Lone>,
    pub(crate) begun: bool,
}

impl Idle {
    /// Its place among those that wait, until their wait has ended.
    fn find(&self, idle: &[(Rc<dyn Lone>, Waker)]) -> Option<usize> {
        idle.iter().position(|(run, _)| Rc::ptr_eq(run, &self.run))
    }
}

impl Future for Idle {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let begun = mem::replace(&mut self.begun, true);
        REACTOR.with_borrow_mut(|reactor| {
            match self.find(&reactor.idle) {
                Some(at) => reactor.idle[at].1.clone_from(context.waker()),
                None if begun => return Poll::Ready(()),
                None => reactor.idle.push((self.run.clone(), context.waker().clone())),
            }
            Poll::Pending
        })
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let found = REACTOR.with_borrow_mut(|reactor| {
            self.find(&reactor.idle).map(|at| reactor.idle.swap_remove(at))
        });
        drop(found); // only now: a run that ends may use the reactor
    }
}
