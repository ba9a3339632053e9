//! Tokens chosen where the model runs: the contract's interface `sample`.
//!
//! One function for each of the contract's; see `sdk/wit/inferlet.wit` for their meaning and errors.
//! `Generator::on_device` stands on them.

use crate::abi::call;
use crate::error::Result;
use crate::future::HostFuture;

mod host {
    #[link(wasm_import_module = "pie:inferlet/sample@0.1.0")]
    unsafe extern "C" {
        #[link_name = "create-sampler"]
        pub fn create_sampler(queue: u32, parameters: *const u8, length: usize, area: *mut usize);
        #[link_name = "destroy-sampler"]
        pub fn destroy_sampler(queue: u32, sampler: u32, area: *mut usize);
        #[link_name = "feed-sampler"]
        pub fn feed_sampler(
            queue: u32,
            sampler: u32,
            tokens: *const u32,
            count: usize,
            generated: u32,
            area: *mut usize,
        );
        pub fn sample(queue: u32, embed: u32, sampler: u32, area: *mut usize);
        #[link_name = "sample-masked"]
        pub fn sample_masked(
            queue: u32,
            embed: u32,
            sampler: u32,
            mask: *const u32,
            count: usize,
            area: *mut usize,
        );
        #[link_name = "take-sample"]
        pub fn take_sample(future: u32, area: *mut usize);
        #[link_name = "next-token"]
        pub fn next_token(future: u32, area: *mut usize);
        #[link_name = "embed-sampled"]
        pub fn embed_sampled(queue: u32, sampler: u32, position: u32, embed: u32, area: *mut usize);
        pub fn step(
            queue: u32,
            sampler: u32,
            position: u32,
            embed: u32,
            input_pages: *const u32,
            input_page_count: usize,
            output_page: u32,
            adapter: *const u8,
            adapter_length: usize,
            area: *mut usize,
        );
    }
}

/// A token that the server chose. Log-probabilities are those of the model's own distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Its log-probability.
    pub logprob: f32,
    /// The most likely tokens, as many as the sampler's `logprobs` asks for.
    pub top_tokens: Vec<u32>,
    /// Theirs.
    pub top_logprobs: Vec<f32>,
}

/// Makes a sampler; `parameters` is a JSON object. See `DeviceSampler::to_json`.
pub fn create_sampler(queue: u32, parameters: &str) -> Result<u32> {
    call(|area| unsafe { host::create_sampler(queue, parameters.as_ptr(), parameters.len(), area) })
}

/// Ends a sampler once the commands queued before have taken effect; its handle ends at once.
pub fn destroy_sampler(queue: u32, sampler: u32) -> Result {
    call(|area| unsafe { host::destroy_sampler(queue, sampler, area) })
}

/// Tells a sampler of tokens that it did not choose, for its penalties.
pub fn feed_sampler(queue: u32, sampler: u32, tokens: &[u32], generated: bool) -> Result {
    call(|area| unsafe {
        host::feed_sampler(queue, sampler, tokens.as_ptr(), tokens.len(), generated.into(), area)
    })
}

/// A token that follows an output embed.
pub fn sample(queue: u32, embed: u32, sampler: u32) -> HostFuture<Sampled> {
    HostFuture::new(call(|area| unsafe { host::sample(queue, embed, sampler, area) }), take_sample)
}

/// As [`sample`], among the tokens that a mask allows: bit `t % 32` of word `t / 32` is token `t`.
pub fn sample_masked(queue: u32, embed: u32, sampler: u32, mask: &[u32]) -> HostFuture<Sampled> {
    let started = call(|area| unsafe {
        host::sample_masked(queue, embed, sampler, mask.as_ptr(), mask.len(), area)
    });
    HostFuture::new(started, take_sample)
}

/// Consumes a ready future of a token.
pub fn take_sample(future: u32) -> Result<Sampled> {
    call(|area| unsafe { host::take_sample(future, area) })
}

/// Suspends the whole instance until a future of a token is ready, and consumes it: the token alone.
pub fn next_token(future: u32) -> Result<u32> {
    call(|area| unsafe { host::next_token(future, area) })
}

/// Embeds the token that a sampler chooses last among the calls so far, known already or not.
pub fn embed_sampled(queue: u32, sampler: u32, position: u32, embed: u32) -> Result {
    call(|area| unsafe { host::embed_sampled(queue, sampler, position, embed, area) })
}

/// A generation's next step: [`embed_sampled`], the forward of that embed, through an adapter unless its
/// name is empty, with the hidden state into the embed itself, and [`sample`] of it. An error leaves none of
/// them queued.
pub fn step(
    queue: u32,
    sampler: u32,
    position: u32,
    embed: u32,
    input_pages: &[u32],
    output_page: u32,
    adapter: &str,
) -> HostFuture<Sampled> {
    let started = call(|area| unsafe {
        host::step(
            queue,
            sampler,
            position,
            embed,
            input_pages.as_ptr(),
            input_pages.len(),
            output_page,
            adapter.as_ptr(),
            adapter.len(),
            area,
        )
    });
    HostFuture::new(started, take_sample)
}
