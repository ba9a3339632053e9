//! Tasks: many things at once in one inferlet.
//!
//! There is one thread. Tasks run until they await something; when all of them wait, the instance
//! is suspended in `runtime::wait` until the host has something ready.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::{pin, Pin};
use std::rc::Rc;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::time::Duration;

use crate::error::Result;
use crate::future;
use crate::runtime::sleep;

/// The main function's place among the tasks.
const MAIN: usize = 0;

struct Tasks {
    /// Futures of the spawned tasks; task `i` is at `i - 1`. Empty while it runs and once it ended.
    futures: Vec<Option<Pin<Box<dyn Future<Output = ()>>>>>,
    /// Places of tasks that have ended.
    free: Vec<usize>,
    runnable: VecDeque<usize>,
    /// Whether a task is among the runnable ones, by number.
    is_runnable: Vec<bool>,
}

thread_local! {
    static TASKS: RefCell<Tasks> = const {
        RefCell::new(Tasks {
            futures: Vec::new(),
            free: Vec::new(),
            runnable: VecDeque::new(),
            is_runnable: Vec::new(),
        })
    };
}

impl Tasks {
    fn wake(&mut self, task: usize) {
        if self.is_runnable.len() <= task {
            self.is_runnable.resize(task + 1, false);
        }
        if !self.is_runnable[task] {
            self.is_runnable[task] = true;
            self.runnable.push_back(task);
        }
    }

    fn next(&mut self) -> Option<usize> {
        let task = self.runnable.pop_front()?;
        self.is_runnable[task] = false;
        Some(task)
    }
}

/// Runs the main function, and the tasks it spawns until it ends.
pub(crate) fn run<T>(main: impl Future<Output = T>) -> Result<T> {
    let mut main = pin!(main);
    wake(MAIN);
    loop {
        while let Some(task) = TASKS.with_borrow_mut(Tasks::next) {
            let waker = waker(task);
            let mut context = Context::from_waker(&waker);
            if task != MAIN {
                step(task, &mut context);
            } else if let Poll::Ready(output) = main.as_mut().poll(&mut context) {
                return Ok(output);
            }
        }
        future::park()?;
    }
}

/// Lets a spawned task go on. Its future is out of the table meanwhile: it may spawn others.
fn step(task: usize, context: &mut Context<'_>) {
    // A task that ended may still be woken by what it no longer waits for.
    let Some(mut future) = TASKS.with_borrow_mut(|tasks| tasks.futures[task - 1].take()) else {
        return;
    };
    let ended = future.as_mut().poll(context).is_ready();
    if ended {
        drop(future);
        TASKS.with_borrow_mut(|tasks| tasks.free.push(task));
    } else {
        TASKS.with_borrow_mut(|tasks| tasks.futures[task - 1] = Some(future));
    }
}

fn wake(task: usize) {
    TASKS.with_borrow_mut(|tasks| tasks.wake(task));
}

/// A waker is the task's number: no memory, nothing to count.
fn waker(task: usize) -> Waker {
    const TABLE: RawWakerVTable = RawWakerVTable::new(
        |data| RawWaker::new(data, &TABLE),
        |data| wake(data as usize),
        |data| wake(data as usize),
        |_| {},
    );
    // SAFETY: the data is a number and the functions keep the contract. An inferlet has one thread.
    unsafe { Waker::from_raw(RawWaker::new(task as *const (), &TABLE)) }
}

/// A spawned task. Await it for its value. If this is dropped, the task goes on by itself.
pub struct Task<T> {
    shared: Rc<RefCell<Shared<T>>>,
}

struct Shared<T> {
    value: Option<T>,
    waiting: Option<Waker>,
    /// Wakes the task itself.
    task: Option<Waker>,
    aborted: bool,
}

/// Starts a task beside the current one. It ends with the main function at the latest.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> Task<T> {
    let shared = Shared { value: None, waiting: None, task: None, aborted: false };
    let shared = Rc::new(RefCell::new(shared));
    let result = shared.clone();
    let mut future = Box::pin(future);
    let future = Box::pin(std::future::poll_fn(move |context| {
        if result.borrow().aborted {
            return Poll::Ready(());
        }
        let Poll::Ready(value) = future.as_mut().poll(context) else {
            result.borrow_mut().task = Some(context.waker().clone());
            return Poll::Pending;
        };
        let mut shared = result.borrow_mut();
        shared.value = Some(value);
        if let Some(waiting) = shared.waiting.take() {
            waiting.wake();
        }
        Poll::Ready(())
    }));
    TASKS.with_borrow_mut(|tasks| {
        let task = tasks.free.pop().unwrap_or_else(|| {
            tasks.futures.push(None);
            tasks.futures.len()
        });
        tasks.futures[task - 1] = Some(future);
        tasks.wake(task);
    });
    Task { shared }
}

impl<T> Task<T> {
    /// Ends the task where it waits: what it holds is dropped.
    pub fn abort(self) {
        let mut shared = self.shared.borrow_mut();
        shared.aborted = true;
        if let Some(task) = shared.task.take() {
            task.wake();
        }
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut shared = self.shared.borrow_mut();
        match shared.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                shared.waiting = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

enum Part<F: Future> {
    Running(Pin<Box<F>>),
    Done(Option<F::Output>),
}

/// Awaits all futures at once, and gives their values in the order of the futures.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut parts: Vec<Part<F>> =
        futures.into_iter().map(|future| Part::Running(Box::pin(future))).collect();
    let mut running = parts.len();
    std::future::poll_fn(|context| {
        for part in &mut parts {
            if let Part::Running(future) = part {
                if let Poll::Ready(value) = future.as_mut().poll(context) {
                    *part = Part::Done(Some(value));
                    running -= 1;
                }
            }
        }
        if running > 0 {
            return Poll::Pending;
        }
        let values = parts.iter_mut().filter_map(|part| match part {
            Part::Done(value) => value.take(),
            Part::Running(_) => None,
        });
        Poll::Ready(values.collect())
    })
    .await
}

/// The values of branches that run at once, in their order. With the first error the others stop.
pub async fn gather<T, E, F: Future<Output = std::result::Result<T, E>>>(
    branches: impl IntoIterator<Item = F>,
) -> std::result::Result<Vec<T>, E> {
    let mut branches: Vec<Pin<Box<F>>> = branches.into_iter().map(Box::pin).collect();
    let mut values: Vec<Option<T>> = branches.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut running = false;
        for (branch, value) in branches.iter_mut().zip(&mut values) {
            if value.is_none() {
                match branch.as_mut().poll(context) {
                    Poll::Ready(Ok(found)) => *value = Some(found),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => running = true,
                }
            }
        }
        match running {
            true => Poll::Pending,
            false => Poll::Ready(Ok(values.iter_mut().filter_map(Option::take).collect())),
        }
    })
    .await
}

/// The first good value of branches that run at once, at which the others stop; `None` if none was
/// good. An error ends it, too.
pub async fn race<T, E, F: Future<Output = std::result::Result<T, E>>>(
    branches: impl IntoIterator<Item = F>,
    good: impl Fn(&T) -> bool,
) -> std::result::Result<Option<T>, E> {
    let mut branches: Vec<Pin<Box<F>>> = branches.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        let mut found = None;
        branches.retain_mut(|branch| match branch.as_mut().poll(context) {
            Poll::Ready(value) => {
                if found.is_none() && value.as_ref().map_or(true, &good) {
                    found = Some(value);
                }
                false
            }
            Poll::Pending => true,
        });
        match found {
            Some(value) => Poll::Ready(value.map(Some)),
            None if branches.is_empty() => Poll::Ready(Ok(None)),
            None => Poll::Pending,
        }
    })
    .await
}

/// Awaits two futures at once.
pub async fn join<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut a, mut b) = (None, None);
    std::future::poll_fn(|context| {
        if a.is_none() {
            if let Poll::Ready(value) = first.as_mut().poll(context) {
                a = Some(value);
            }
        }
        if b.is_none() {
            if let Poll::Ready(value) = second.as_mut().poll(context) {
                b = Some(value);
            }
        }
        match (a.take(), b.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            pending => {
                (a, b) = pending;
                Poll::Pending
            }
        }
    })
    .await
}

/// Which of two futures was ready first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// The first one, with its value.
    First(A),
    /// The second one, with its value.
    Second(B),
}

/// Awaits the first of two futures that is ready, and drops the other.
pub async fn select<A: Future, B: Future>(first: A, second: B) -> Either<A::Output, B::Output> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    std::future::poll_fn(|context| {
        if let Poll::Ready(value) = first.as_mut().poll(context) {
            return Poll::Ready(Either::First(value));
        }
        second.as_mut().poll(context).map(Either::Second)
    })
    .await
}

/// Awaits the first future that is ready: its value, its index, and the others, still going.
///
/// # Panics
/// If there are no futures.
pub async fn select_all<F: Future + Unpin>(
    futures: impl IntoIterator<Item = F>,
) -> (F::Output, usize, Vec<F>) {
    let mut futures: Vec<F> = futures.into_iter().collect();
    assert!(!futures.is_empty(), "select_all needs at least one future");
    let (value, index) = std::future::poll_fn(|context| {
        for (index, future) in futures.iter_mut().enumerate() {
            if let Poll::Ready(value) = Pin::new(future).poll(context) {
                return Poll::Ready((value, index));
            }
        }
        Poll::Pending
    })
    .await;
    futures.remove(index);
    (value, index, futures)
}

/// Awaits a future for a time at most; `None` if it was not ready, and it is dropped.
pub async fn timeout<F: Future>(time: Duration, future: F) -> Result<Option<F::Output>> {
    match select(future, sleep(time)).await {
        Either::First(value) => Ok(Some(value)),
        Either::Second(slept) => slept.map(|()| None),
    }
}

/// Lets every other task, and every other instance, have a turn.
pub async fn yield_now() -> Result {
    sleep(Duration::ZERO).await
}
