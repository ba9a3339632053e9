//! A context of a smaller model, whose run drafts what the run of another context guesses.

use super::{Context, Guessing, RunHold};
use crate::error::Result;
use crate::sample;

/// Drafts for the runs of a generation, one after the other.
pub(crate) struct Drafts<'a> {
    /// Of the smaller model; its text becomes that of the generation.
    context: &'a mut Context,
    run: Option<Drafting>,
}

/// A run that drafts. It ends its sampler: if the drafts did, a generation would borrow its context
/// up to the end of its scope.
struct Drafting {
    hold: RunHold,
    queue: u32,
    sampler: u32,
}

impl Drop for Drafting {
    fn drop(&mut self) {
        let _ = sample::destroy_sampler(self.queue, self.sampler);
    }
}

impl<'a> Drafts<'a> {
    pub(crate) fn new(context: &'a mut Context) -> Drafts<'a> {
        Drafts { context, run: None }
    }

    /// Gives the context a text, of which it keeps what it has.
    pub(crate) async fn follow(&mut self, text: &[u32]) -> Result {
        self.end(text)?;
        let context = &mut *self.context;
        context.retract()?;
        context.truncate(alike(&context.known_tokens(), text))?;
        context.pending.extend(&text[context.len()..]);
        context.output_embed(0).await.map(|_| ())
    }

    /// Has a run, which has just been started behind the same text, guess what one of this context
    /// chooses, so many tokens at a time; or nothing without room for that.
    pub(crate) fn start(&mut self, run: &RunHold, parameters: &str, guesses: u32) -> Result {
        let context = &mut *self.context;
        let room = (context.model().max_position() as usize)
            .saturating_sub(context.next_position() as usize);
        let Some([embed, _]) = context.embed else { return Ok(()) };
        if room < 2 {
            return Ok(());
        }
        let sampler = sample::create_sampler(context.queue, parameters)?;
        let most = run.0.borrow().most.min(room);
        let started = context.start_run(sampler, embed, most, &[], &Guessing::default(), false);
        let Ok(Some(drafting)) = started else {
            sample::destroy_sampler(context.queue, sampler)?;
            return started.map(|_| ());
        };
        let (run, other) = (run.0.borrow(), drafting.0.borrow());
        sample::speculate_with(run.queue, run.handle, other.queue, other.handle, guesses)?;
        drop(other);
        let queue = context.queue;
        self.run = Some(Drafting { hold: drafting, queue, sampler });
        Ok(())
    }

    /// The other run is over, behind some text: what has been drafted of it stays.
    pub(crate) fn end(&mut self, text: &[u32]) -> Result {
        let Some(drafting) = self.run.take() else { return Ok(()) };
        let context = &mut *self.context;
        if context.goes_on(&drafting.hold)? {
            let run = drafting.hold.0.clone();
            let handle = run.borrow().handle;
            if let Ok(drafted) = sample::take_tokens(context.queue, handle) {
                let same = alike(&drafted, text.get(context.len()..).unwrap_or_default());
                context.give(&run, drafted[..same].to_vec());
            }
            context.retract()?;
        }
        Ok(())
    }
}

/// How many of the first tokens are the same.
fn alike(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}
