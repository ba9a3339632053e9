//! A run of the server as a generation uses it: many tokens for one call.
//!
//! The server goes on by itself, token after token, up to a few more than were asked for. The
//! context shows the tokens that the program has been given, as it would without a run. Then the
//! program either goes on with those, or does something else: then the run is ended, and what came
//! after the tokens given is undone (`retract`).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::{held, spans, Context};
use crate::error::{Error, ErrorCode, Result};
use crate::future::{Idle, Lone};
use crate::{allocate, sample};

pub(crate) struct Run {
    queue: u32,
    handle: u32,
    /// Tokens that it may come to.
    most: usize,
    /// Tokens that the program has not been given.
    came: VecDeque<u32>,
    /// How many it has been given, and the last of these.
    given: usize,
    last: u32,
    /// Tokens that are waited for, and what the host has answered.
    wanted: usize,
    answer: Option<Result<Vec<u32>>>,
    /// Spans of the pages that it had taken, once it is ended.
    taken: Option<Vec<u32>>,
}

impl Run {
    fn end(&mut self) {
        if self.taken.is_none() {
            let taken = sample::end_run(self.queue, self.handle, self.given as u32);
            self.taken = Some(taken.unwrap_or_default()); // or gone with a lost worker
        }
    }
}

impl Lone for RefCell<Run> {
    fn wait(&self) {
        let mut run = self.borrow_mut();
        run.answer = Some(sample::next_tokens(run.queue, run.handle, run.wanted as u32));
    }
}

/// A generation's hold on its run, which ends with it.
pub(crate) struct RunHold(Rc<RefCell<Run>>);

impl RunHold {
    /// True if it was ended before it had all its tokens, once it is ended.
    pub(crate) fn undone(&self) -> bool {
        let run = self.0.borrow();
        run.given < run.most
    }
}

impl Drop for RunHold {
    fn drop(&mut self) {
        self.0.borrow_mut().end();
    }
}

impl Context {
    /// True if the next token is this run's. It is undone if other tokens are pending.
    pub(crate) fn goes_on(&mut self, hold: &RunHold) -> bool {
        let Some(run) = self.run.as_ref().filter(|run| Rc::ptr_eq(run, &hold.0)) else {
            return false;
        };
        let run = run.borrow();
        let as_given = match run.given {
            0 => self.pending.is_empty(),
            _ => self.pending == [run.last],
        };
        drop(run);
        if !as_given {
            self.retract();
        }
        as_given
    }

    /// Starts a run after the hidden state in `embed`, which guesses so many tokens at a time, unless
    /// there is no room for it. Nothing is pending.
    pub(crate) fn start_run(
        &mut self,
        sampler: u32,
        embed: u32,
        most: usize,
        stops: &[u32],
        guesses: u32,
    ) -> Result<Option<RunHold>> {
        let (queue, start) = (self.queue, self.tokens.len());
        let first = start / self.page_size();
        if first < self.read_only {
            return Ok(None); // the page has to be copied first
        }
        self.note_inputs(start.div_ceil(self.page_size()));
        let outputs = spans(&self.pages[first..]);
        let position = self.pending_position();
        let spare = match self.spare {
            Some([own, _]) => Ok(own),
            None => allocate::alloc_emb(queue, 1).inspect(|own| self.spare = Some([*own, 1])),
        };
        let started = spare.and_then(|own| {
            let (inputs, adapter) = (&self.input_spans.1, self.adapter().unwrap_or_default());
            sample::start_run(
                queue,
                sampler,
                embed,
                position,
                own,
                inputs,
                &outputs,
                adapter,
                most as u32,
                stops,
            )
        });
        let handle = match started {
            Ok(handle) => handle,
            // A program that goes step by step would not have asked for it.
            Err(Error { code: ErrorCode::OutOfResources | ErrorCode::LimitExceeded, .. }) => {
                return Ok(None)
            }
            Err(error) => return Err(error),
        };
        if guesses > 0 {
            sample::speculate(queue, handle, &self.known_tokens(), guesses)?;
        }
        let run = Rc::new(RefCell::new(Run {
            queue,
            handle,
            most,
            came: VecDeque::new(),
            given: 0,
            last: 0,
            wanted: 0,
            answer: None,
            taken: None,
        }));
        self.run = Some(run.clone());
        Ok(Some(RunHold(run)))
    }

    /// The run's next token; `None` if it has come to its end.
    pub(crate) async fn run_token(&mut self) -> Result<Option<u32>> {
        let tokens = self.run_tokens(1, 1).await?;
        Ok(tokens.first().copied())
    }

    /// All tokens up to the run's end; none if it has come to it. All but the last are in the
    /// context then.
    pub(crate) async fn run_rest(&mut self) -> Result<Vec<u32>> {
        let left = self.run.as_ref().map_or(0, |run| {
            let run = run.borrow();
            run.most - run.given
        });
        self.run_tokens(left.max(1), usize::MAX).await
    }

    /// Waits for so many tokens, or the run's end, and gives the first `most` of those that came.
    async fn run_tokens(&mut self, count: usize, most: usize) -> Result<Vec<u32>> {
        let Some(run) = self.run.clone() else { return Ok(Vec::new()) };
        let missing = count.saturating_sub(run.borrow().came.len());
        if missing > 0 && !self.wait_for_run(&run, missing).await? {
            return Ok(Vec::new());
        }
        let most = most.min(run.borrow().came.len());
        let tokens: Vec<u32> = run.borrow_mut().came.drain(..most).collect();
        Ok(self.give(&run, tokens))
    }

    /// Log-probabilities of the run's last tokens.
    pub(crate) fn run_logprobs(&self, count: usize) -> Result<Vec<f32>> {
        let Some(run) = &self.run else { return Ok(Vec::new()) };
        let run = run.borrow();
        sample::run_logprobs(run.queue, run.handle, (run.given - count) as u32, count as u32)
    }

    /// All tokens with their text, which the server reads, up to one of the strings. The server may
    /// send the text to the client. All tokens but the last are in the context then.
    pub(crate) async fn run_text(
        &mut self,
        before: &[u32],
        ends: &[String],
        to_client: bool,
    ) -> Result<(Vec<u32>, String)> {
        let Some(run) = self.run.clone() else { return Err(Error::other("there is no run")) };
        let (queue, handle) = (self.queue, run.borrow().handle);
        let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
        let text = sample::run_text(queue, handle, before, &ends, &[], to_client).await;
        let (text, tokens) = match text.and_then(|t| Ok((t, sample::take_tokens(queue, handle)?))) {
            Ok(read) => read,
            Err(error) => {
                self.retract();
                self.recover(&error);
                return Err(error);
            }
        };
        let (text, count, _) = text;
        Ok((self.give(&run, tokens[..count as usize].to_vec()), text))
    }

    /// The program is given tokens: all but the last are in the context then.
    fn give(&mut self, run: &Rc<RefCell<Run>>, tokens: Vec<u32>) -> Vec<u32> {
        let mut run = run.borrow_mut();
        let [before @ .., last] = &tokens[..] else { return tokens };
        if run.given > 0 {
            self.tokens.push(run.last);
            self.pending.remove(0);
        }
        self.tokens.extend(before);
        if run.given > 0 || !before.is_empty() {
            self.has_hidden = false;
        }
        run.given += tokens.len();
        run.last = *last;
        self.confirmed = self.tokens.len();
        tokens
    }

    /// Takes tokens, at least so many or all that come. False if none are left: then it is ended.
    async fn wait_for_run(&mut self, run: &Rc<RefCell<Run>>, count: usize) -> Result<bool> {
        let (queue, handle) = (self.queue, run.borrow().handle);
        run.borrow_mut().wanted = count;
        if run.borrow().answer.is_none() {
            Idle { run: run.clone(), begun: false }.await;
        }
        let answer = run.borrow_mut().answer.take();
        let answer = match answer {
            Some(answer) => answer,
            None => match sample::run_progress(queue, handle, count as u32).await {
                Ok(()) => sample::take_tokens(queue, handle),
                Err(error) => Err(error),
            },
        };
        match answer {
            Ok(tokens) if !tokens.is_empty() => {
                run.borrow_mut().came.extend(tokens);
                Ok(true)
            }
            _ if !run.borrow().came.is_empty() => Ok(true), // an error comes after these
            answer => {
                self.retract();
                answer.inspect_err(|error| self.recover(error)).map(|_| false)
            }
        }
    }

    /// Ends the run, if there is one: what came after the tokens given is undone.
    pub(crate) fn retract(&mut self) {
        let Some(run) = self.run.take() else { return };
        let mut run = run.borrow_mut();
        run.end();
        self.pages.extend(held(run.taken.as_deref().unwrap_or_default()));
    }
}
