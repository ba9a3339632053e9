//! Text into tokens and embeds, output embeds into distributions: the contract's interfaces
//! `input-text`, `tokenize` and `output-text`.

use crate::abi::call;
use crate::error::Result;
use crate::future::HostFuture;

mod host {
    #[link(wasm_import_module = "pie:inferlet/input-text@0.1.0")]
    unsafe extern "C" {
        #[link_name = "embed-txt"]
        pub fn embed_txt(
            queue: u32,
            tokens: *const u32,
            token_count: usize,
            positions: *const u32,
            position_count: usize,
            embeds: *const u32,
            embed_count: usize,
            area: *mut usize,
        );
    }

    #[link(wasm_import_module = "pie:inferlet/tokenize@0.1.0")]
    unsafe extern "C" {
        pub fn tokenize(
            model: *const u8,
            model_length: usize,
            text: *const u8,
            length: usize,
            area: *mut usize,
        );
        pub fn detokenize(
            model: *const u8,
            model_length: usize,
            tokens: *const u32,
            count: usize,
            area: *mut usize,
        );
        #[link_name = "get-vocabs"]
        pub fn get_vocabs(model: *const u8, model_length: usize, area: *mut usize);
        #[link_name = "special-tokens"]
        pub fn special_tokens(model: *const u8, model_length: usize, area: *mut usize);
        #[link_name = "apply-chat-template"]
        pub fn apply_chat_template(
            model: *const u8,
            model_length: usize,
            messages: *const u8,
            length: usize,
            add_generation_prompt: u32,
            area: *mut usize,
        );
    }

    #[link(wasm_import_module = "pie:inferlet/output-text@0.1.0")]
    unsafe extern "C" {
        #[link_name = "get-next-dist"]
        pub fn get_next_dist(queue: u32, embed: u32, k: u32, area: *mut usize);
        #[link_name = "take-dist"]
        pub fn take_dist(future: u32, area: *mut usize);
    }
}

/// The most likely next tokens, the likeliest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Their probabilities, of the softmax over the whole vocabulary at temperature 1.
    pub probabilities: Vec<f32>,
}

impl Distribution {
    /// The likeliest token.
    pub fn max_index(&self) -> u32 {
        self.tokens[0]
    }
}

/// Embeds tokens at positions into embeds; positions and embeds are spans.
pub fn embed_txt(queue: u32, tokens: &[u32], positions: &[u32], embeds: &[u32]) -> Result {
    call(|area| unsafe {
        host::embed_txt(
            queue,
            tokens.as_ptr(),
            tokens.len(),
            positions.as_ptr(),
            positions.len(),
            embeds.as_ptr(),
            embeds.len(),
            area,
        )
    })
}

/// Token ids of a text; special tokens in the text are recognised, none is added.
pub fn tokenize(model: &str, text: &str) -> Result<Vec<u32>> {
    call(|area| unsafe {
        host::tokenize(model.as_ptr(), model.len(), text.as_ptr(), text.len(), area)
    })
}

/// Text of token ids, special tokens included. Incomplete UTF-8 becomes U+FFFD.
pub fn detokenize(model: &str, tokens: &[u32]) -> Result<String> {
    call(|area| unsafe {
        host::detokenize(model.as_ptr(), model.len(), tokens.as_ptr(), tokens.len(), area)
    })
}

/// The bytes of every token, by id. Large: ask once.
pub fn get_vocabs(model: &str) -> Result<Vec<Vec<u8>>> {
    call(|area| unsafe { host::get_vocabs(model.as_ptr(), model.len(), area) })
}

/// Special tokens, as their texts and ids.
pub fn special_tokens(model: &str) -> Result<Vec<(String, u32)>> {
    call(|area| unsafe { host::special_tokens(model.as_ptr(), model.len(), area) })
}

/// Renders messages, a JSON list of `{"role": ..., "content": ...}`, with the model's chat template.
pub fn apply_chat_template(
    model: &str,
    messages: &str,
    add_generation_prompt: bool,
) -> Result<String> {
    call(|area| unsafe {
        host::apply_chat_template(
            model.as_ptr(),
            model.len(),
            messages.as_ptr(),
            messages.len(),
            add_generation_prompt.into(),
            area,
        )
    })
}

/// The distribution of the `k` most likely next tokens after an output embed.
pub fn get_next_dist(queue: u32, embed: u32, k: u32) -> HostFuture<Distribution> {
    HostFuture::new(call(|area| unsafe { host::get_next_dist(queue, embed, k, area) }), take_dist)
}

/// Consumes a ready future of a distribution.
pub fn take_dist(future: u32) -> Result<Distribution> {
    call(|area| unsafe { host::take_dist(future, area) })
}
