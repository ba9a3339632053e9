// Generated from sdk/wit/inferlet.wit by `python -m pie_py.build.generate`; do not edit.

//! The contract's functions by name, as the SDK has them: one line each.

use std::time::Duration;

use inferlet::json::Value;
use inferlet::{
    adapter, allocate, forward, grammar, http, images, introspect, mcp, messaging, offload,
    prefix_cache, runtime, sample, session, store, text,
};
use inferlet::{Error, Result};

use crate::arguments::{lent, Arguments};
use crate::results::Reply;

/// Calls a function; its result as JSON.
#[rustfmt::skip]
pub fn call(name: &str, values: &[Value]) -> Result<String> {
    let a = Arguments(values);
    match name {
        "get-arg" => runtime::get_arg().reply(),
        "instance-id" => runtime::instance_id().reply(),
        "user" => runtime::user().reply(),
        "version" => runtime::version().reply(),
        "available-models" => runtime::available_models().reply(),
        "available-traits" => runtime::available_traits(a.text(0)?).reply(),
        "model-info" => runtime::model_info(a.text(0)?).reply(),
        "create-queue" => runtime::create_queue(a.text(0)?).reply(),
        "destroy-queue" => runtime::destroy_queue(a.u32(0)?).reply(),
        "synchronize" => runtime::synchronize(a.u32(0)?).reply(),
        "set-queue-priority" => runtime::set_queue_priority(a.u32(0)?, a.number(1)? as i32).reply(),
        "wait" => runtime::wait(&a.u32s(0)?).reply(),
        "take" => runtime::take(a.u32(0)?).reply(),
        "take-text" => runtime::take_text(a.u32(0)?).reply(),
        "take-texts" => runtime::take_texts(a.u32(0)?).reply(),
        "take-blob" => runtime::take_blob(a.u32(0)?).reply(),
        "cancel" => runtime::cancel(a.u32(0)?).reply(),
        "now" => runtime::now().reply(),
        "monotonic-now" => runtime::monotonic_now().reply(),
        "sleep" => runtime::sleep(Duration::from_nanos(a.number(0)? as u64)).reply(),
        "random-bytes" => runtime::random_bytes(a.u32(0)?).reply(),
        "log" => runtime::log(log_level(a.text(0)?)?, a.text(1)?).reply(),
        "launch" => runtime::launch(a.text(0)?, &a.texts(1)?).reply(),
        "send" => session::send(a.text(0)?).reply(),
        "send-blob" => session::send_blob(&a.bytes(0)?).reply(),
        "writable" => session::writable().reply(),
        "receive" => session::receive().reply(),
        "receive-blob" => session::receive_blob().reply(),
        "http-get" => http::http_get(a.text(0)?, &a.headers(1)?).reply(),
        "http-post" => http::http_post(a.text(0)?, &a.headers(1)?, &a.bytes(2)?).reply(),
        "http-request" => http::http_request(a.text(0)?, a.text(1)?, &a.headers(2)?, &a.bytes(3)?, a.u32(4)?).reply(),
        "take-response" => http::take_response(a.u32(0)?).reply(),
        "read-body" => http::read_body(a.u32(0)?, a.u32(1)?).reply(),
        "response-url" => http::response_url(a.u32(0)?).reply(),
        "close-body" => http::close_body(a.u32(0)?).reply(),
        "mcp-servers" => mcp::mcp_servers().reply(),
        "mcp-list-tools" => mcp::mcp_list_tools(a.text(0)?).reply(),
        "mcp-call-tool" => mcp::mcp_call_tool(a.text(0)?, a.text(1)?, a.text(2)?).reply(),
        "broadcast" => messaging::try_broadcast(a.text(0)?, a.text(1)?).reply(),
        "broadcast-room" => messaging::broadcast_room(a.text(0)?).reply(),
        "subscribe" => messaging::subscribe(a.text(0)?).reply(),
        "unsubscribe" => messaging::unsubscribe(a.u32(0)?).reply(),
        "next-message" => messaging::next_message(a.u32(0)?).reply(),
        "push" => messaging::try_push(a.text(0)?, a.text(1)?).reply(),
        "push-room" => messaging::push_room(a.text(0)?).reply(),
        "pull" => messaging::pull(a.text(0)?).reply(),
        "store-get" => store::store_get(a.text(0)?).reply(),
        "store-set" => store::store_set(a.text(0)?, &a.bytes(1)?).reply(),
        "store-delete" => store::store_delete(a.text(0)?).reply(),
        "store-list" => store::store_list(a.text(0)?, a.text(1)?, a.u32(2)?).reply(),
        "store-room" => store::store_room().reply(),
        "store-commit" => store::store_commit(&lent(&a.entries(0)?), &a.texts(1)?, &lent(&a.entries(2)?), &a.texts(3)?).reply(),
        "alloc-kvpage" => allocate::alloc_kvpage(a.u32(0)?, a.u32(1)?).reply(),
        "dealloc-kvpage" => allocate::dealloc_kvpage(a.u32(0)?, &a.u32s(1)?).reply(),
        "export-kvpage" => allocate::export_kvpage(a.u32(0)?, &a.u32s(1)?, a.text(2)?, a.bool(3)?).reply(),
        "import-kvpage" => allocate::import_kvpage(a.u32(0)?, a.text(1)?).reply(),
        "list-exports" => allocate::list_exports(a.u32(0)?).reply(),
        "release-export" => allocate::release_export(a.u32(0)?, a.text(1)?).reply(),
        "expire-export" => allocate::expire_export(a.u32(0)?, a.text(1)?, Duration::from_nanos(a.number(2)? as u64)).reply(),
        "retain-kvpage" => allocate::retain_kvpage(a.u32(0)?, &a.u32s(1)?, a.number(2)? as i32, Duration::from_nanos(a.number(3)? as u64)).reply(),
        "copy-kvpage" => allocate::copy_kvpage(a.u32(0)?, a.u32(1)?, a.u32(2)?, a.u32(3)?, a.u32(4)?, a.u32(5)?).reply(),
        "kvpage-used" => allocate::kvpage_used(a.u32(0)?, &a.u32s(1)?).reply(),
        "truncate-kvpage" => allocate::truncate_kvpage(a.u32(0)?, &a.u32s(1)?, &a.u32s(2)?).reply(),
        "alloc-emb" => allocate::alloc_emb(a.u32(0)?, a.u32(1)?).reply(),
        "dealloc-emb" => allocate::dealloc_emb(a.u32(0)?, &a.u32s(1)?).reply(),
        "copy-emb" => allocate::copy_emb(a.u32(0)?, &a.u32s(1)?, &a.u32s(2)?, &a.u32s(3)?).reply(),
        "pool-stats" => allocate::pool_stats(a.u32(0)?).reply(),
        "forward" => forward::forward(a.u32(0)?, &a.u32s(1)?, &a.u32s(2)?, &a.u32s(3)?, &a.u32s(4)?, &a.u32s(5)?).reply(),
        "mask-kvpage" => forward::mask_kvpage(a.u32(0)?, &a.u32s(1)?, &a.u32s(2)?).reply(),
        "shift-kvpage" => forward::shift_kvpage(a.u32(0)?, &a.u32s(1)?, a.number(2)? as i32).reply(),
        "available-adapters" => adapter::available_adapters(a.text(0)?).reply(),
        "forward-with-adapter" => adapter::forward_with_adapter(a.u32(0)?, a.text(1)?, &a.u32s(2)?, &a.u32s(3)?, &a.u32s(4)?, &a.u32s(5)?, &a.u32s(6)?).reply(),
        "forward-with-attention" => introspect::forward_with_attention(a.u32(0)?, &a.u32s(1)?, &a.u32s(2)?, &a.u32s(3)?, &a.u32s(4)?, &a.u32s(5)?, a.u32(6)?, detail(a.text(7)?)?, a.text(8)?).reply(),
        "take-attention" => introspect::take_attention(a.u32(0)?).reply(),
        "swap-out" => offload::swap_out(a.u32(0)?, &a.u32s(1)?).reply(),
        "swap-in" => offload::swap_in(a.u32(0)?, &a.u32s(1)?).reply(),
        "discard" => offload::discard(a.u32(0)?, &a.u32s(1)?).reply(),
        "kv-costs" => offload::kv_costs(a.text(0)?).reply(),
        "advise" => offload::advise(a.u32(0)?, &a.u32s(1)?, a.text(2)?).reply(),
        "note-wait" => offload::note_wait(a.text(0)?, Duration::from_nanos(a.number(1)? as u64)).reply(),
        "match-prefix" => prefix_cache::match_prefix(a.u32(0)?, a.text(1)?, &a.u32s(2)?).reply(),
        "insert-prefix" => prefix_cache::insert_prefix(a.u32(0)?, &a.u32s(1)?).reply(),
        "embed-txt" => text::embed_txt(a.u32(0)?, &a.u32s(1)?, &a.u32s(2)?, &a.u32s(3)?).reply(),
        "num-embs-needed" => images::num_embs_needed(a.text(0)?, a.u32(1)?, a.u32(2)?).reply(),
        "num-positions-needed" => images::num_positions_needed(a.text(0)?, a.u32(1)?, a.u32(2)?).reply(),
        "image-size" => images::image_size(&a.bytes(0)?).reply(),
        "embed-img" => images::embed_img(a.u32(0)?, &a.bytes(1)?, &a.u32s(2)?, &a.u32s(3)?).reply(),
        "tokenize" => text::tokenize(a.text(0)?, a.text(1)?).reply(),
        "detokenize" => text::detokenize(a.text(0)?, &a.u32s(1)?).reply(),
        "get-vocabs" => text::get_vocabs(a.text(0)?).reply(),
        "special-tokens" => text::special_tokens(a.text(0)?).reply(),
        "apply-chat-template" => text::apply_chat_template(a.text(0)?, a.text(1)?, a.bool(2)?).reply(),
        "get-next-dist" => text::get_next_dist(a.u32(0)?, a.u32(1)?, a.u32(2)?).reply(),
        "take-dist" => text::take_dist(a.u32(0)?).reply(),
        "create-sampler" => sample::create_sampler(a.u32(0)?, a.text(1)?).reply(),
        "destroy-sampler" => sample::destroy_sampler(a.u32(0)?, a.u32(1)?).reply(),
        "feed-sampler" => sample::feed_sampler(a.u32(0)?, a.u32(1)?, &a.u32s(2)?, a.bool(3)?).reply(),
        "mix-logits" => sample::mix_logits(a.u32(0)?, a.u32(1)?, a.u32(2)?, a.u32(3)?).reply(),
        "sample" => sample::sample(a.u32(0)?, a.u32(1)?, a.u32(2)?).reply(),
        "sample-masked" => sample::sample_masked(a.u32(0)?, a.u32(1)?, a.u32(2)?, &a.u32s(3)?).reply(),
        "take-sample" => sample::take_sample(a.u32(0)?).reply(),
        "embed-sampled" => sample::embed_sampled(a.u32(0)?, a.u32(1)?, a.u32(2)?, a.u32(3)?).reply(),
        "step" => sample::step(a.u32(0)?, a.u32(1)?, a.u32(2)?, a.u32(3)?, &a.u32s(4)?, a.u32(5)?, a.text(6)?).reply(),
        "start-run" => sample::start_run(a.u32(0)?, a.u32(1)?, a.u32(2)?, a.u32(3)?, a.u32(4)?, &a.u32s(5)?, &a.u32s(6)?, a.text(7)?, a.u32(8)?, &a.u32s(9)?).reply(),
        "run-progress" => sample::run_progress(a.u32(0)?, a.u32(1)?, a.u32(2)?).reply(),
        "take-tokens" => sample::take_tokens(a.u32(0)?, a.u32(1)?).reply(),
        "next-tokens" => sample::next_tokens(a.u32(0)?, a.u32(1)?, a.u32(2)?).reply(),
        "run-text" => sample::run_text(a.u32(0)?, a.u32(1)?, &a.u32s(2)?, &a.texts(3)?, &a.u32s(4)?, a.bool(5)?).reply(),
        "take-run-text" => sample::take_run_text(a.u32(0)?).reply(),
        "end-run" => sample::end_run(a.u32(0)?, a.u32(1)?, a.u32(2)?).reply(),
        "compile-grammar" => grammar::compile_grammar(a.text(0)?, a.text(1)?, a.text(2)?).reply(),
        "take-grammar" => grammar::take_grammar(a.u32(0)?).reply(),
        "release-grammar" => grammar::release_grammar(a.u32(0)?).reply(),
        "create-matcher" => grammar::create_matcher(a.u32(0)?).reply(),
        "destroy-matcher" => grammar::destroy_matcher(a.u32(0)?).reply(),
        "advance" => grammar::advance(a.u32(0)?, &a.u32s(1)?).reply(),
        "rollback" => grammar::rollback(a.u32(0)?, a.u32(1)?).reply(),
        "count-allowed" => grammar::count_allowed(a.u32(0)?, &a.u32s(1)?).reply(),
        "is-accepting" => grammar::is_accepting(a.u32(0)?).reply(),
        "is-finished" => grammar::is_finished(a.u32(0)?).reply(),
        "grammar-mask" => grammar::grammar_mask(a.u32(0)?).reply(),
        "grammar-forced" => grammar::grammar_forced(a.u32(0)?).reply(),
        "sample-constrained" => grammar::sample_constrained(a.u32(0)?, a.u32(1)?, a.u32(2)?, a.u32(3)?).reply(),
        other => Err(Error::other(format!("the SDK has no function {other}"))),
    }
}

#[rustfmt::skip]
fn log_level(name: &str) -> Result<runtime::LogLevel> {
    match name {
        "debug" => Ok(runtime::LogLevel::Debug),
        "info" => Ok(runtime::LogLevel::Info),
        "warning" => Ok(runtime::LogLevel::Warning),
        "error" => Ok(runtime::LogLevel::Error),
        other => Err(Error::other(format!("{other} is no log-level"))),
    }
}

#[rustfmt::skip]
fn detail(name: &str) -> Result<introspect::Detail> {
    match name {
        "total" => Ok(introspect::Detail::Total),
        "layers" => Ok(introspect::Detail::Layers),
        "heads" => Ok(introspect::Detail::Heads),
        other => Err(Error::other(format!("{other} is no detail"))),
    }
}
