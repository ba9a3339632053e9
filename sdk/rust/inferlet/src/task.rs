//! Many things at once in one inferlet.
//!
//! There is one thread. A branch runs until it awaits something; when all of them wait, the instance is
//! suspended in `runtime::wait` until the host has something ready.

use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::error::Result;
use crate::future;
use crate::runtime::sleep;

/// True if the main function can go on.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Woken>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the main function to its end.
pub(crate) fn run<T>(main: impl Future<Output = T>) -> Result<T> {
    let mut main = pin!(main);
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    loop {
        while woken.0.swap(false, Ordering::Relaxed) {
            if let Poll::Ready(output) = main.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Ok(output);
            }
        }
        future::park()?;
    }
}

/// Runs branches at once, to the first value that ends it, or to the end of all: the values there
/// are, in the order of the futures.
async fn branches<F: Future>(
    futures: impl IntoIterator<Item = F>,
    ends: impl Fn(&F::Output) -> bool,
) -> Vec<F::Output> {
    let mut all: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        let mut state = Poll::Ready(());
        for (future, value) in all.iter_mut().filter(|(_, value)| value.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Pending => state = Poll::Pending,
                Poll::Ready(found) => {
                    let end = ends(&found);
                    *value = Some(found);
                    if end {
                        return Poll::Ready(());
                    }
                }
            }
        }
        state
    })
    .await;
    all.into_iter().filter_map(|(_, value)| value).collect()
}

/// Awaits all futures at once, and gives their values in the order of the futures.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    branches(futures, |_| false).await
}

/// The values of branches that run at once, in their order. With the first error the others stop.
pub async fn gather<T, E, F: Future<Output = std::result::Result<T, E>>>(
    futures: impl IntoIterator<Item = F>,
) -> std::result::Result<Vec<T>, E> {
    let found = branches(futures, std::result::Result::is_err).await;
    found.into_iter().collect()
}

/// The first good value of branches that run at once, at which the others stop; `None` if none was
/// good. An error ends it, too.
pub async fn race<T, E, F: Future<Output = std::result::Result<T, E>>>(
    futures: impl IntoIterator<Item = F>,
    good: impl Fn(&T) -> bool,
) -> std::result::Result<Option<T>, E> {
    let ends = |value: &F::Output| value.as_ref().map_or(true, &good);
    let found = branches(futures, ends).await;
    found.into_iter().find(ends).transpose()
}

/// Awaits two futures at once.
pub async fn join<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (None, None);
    let one: Pin<Box<dyn Future<Output = ()> + '_>> = Box::pin(async { a = Some(first.await) });
    join_all([one, Box::pin(async { b = Some(second.await) })]).await;
    match (a, b) {
        (Some(a), Some(b)) => (a, b),
        _ => unreachable!("both have ended"),
    }
}

/// Awaits a future for a time at most; `None` if it was not ready, and it is dropped.
pub async fn timeout<F: Future>(time: Duration, future: F) -> Result<Option<F::Output>> {
    let (mut future, mut sleep) = (pin!(future), pin!(sleep(time)));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Ok(Some(value))),
        Poll::Pending => sleep.as_mut().poll(context).map(|slept| slept.map(|()| None)),
    })
    .await
}

/// Lets every other branch, and every other instance, have a turn.
pub async fn yield_now() -> Result {
    sleep(Duration::ZERO).await
}
