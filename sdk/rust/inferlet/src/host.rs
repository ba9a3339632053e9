// Generated from sdk/wit/inferlet.wit by `python -m codegen`; do not edit.

//! The contract as it is: a module for each interface, a function for each function.
//!
//! A function that takes time returns a future, to be awaited. The crate's modules re-export this,
//! and add what is more convenient.

#![allow(clippy::too_many_arguments)]

/// Words of the largest result, `result<tuple<u32, f32, list<u32>, list<f32>>, string>`.
pub(crate) const AREA_WORDS: usize = 7;

/// Life of the instance, command queues, futures, time, randomness, logging, child instances.
pub mod runtime {
    use crate::abi::{call, nanoseconds, texts};
    use crate::error::Result;
    use crate::future::HostFuture;
    use std::time::Duration;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/runtime@0.1.0")]
        unsafe extern "C" {
            #[link_name = "get-arg"]
            pub fn get_arg(area: *mut usize);
            #[link_name = "instance-id"]
            pub fn instance_id(area: *mut usize);
            pub fn user(area: *mut usize);
            pub fn version(area: *mut usize);
            #[link_name = "available-models"]
            pub fn available_models(area: *mut usize);
            #[link_name = "available-traits"]
            pub fn available_traits(model: *const u8, model_length: usize, area: *mut usize);
            #[link_name = "model-info"]
            pub fn model_info(model: *const u8, model_length: usize, area: *mut usize);
            #[link_name = "create-queue"]
            pub fn create_queue(model: *const u8, model_length: usize, area: *mut usize);
            #[link_name = "destroy-queue"]
            pub fn destroy_queue(queue: u32, area: *mut usize);
            pub fn synchronize(queue: u32, area: *mut usize);
            #[link_name = "set-queue-priority"]
            pub fn set_queue_priority(queue: u32, priority: i32, area: *mut usize);
            pub fn wait(futures: *const u32, futures_length: usize, area: *mut usize);
            pub fn take(future: u32, area: *mut usize);
            #[link_name = "take-text"]
            pub fn take_text(future: u32, area: *mut usize);
            #[link_name = "take-texts"]
            pub fn take_texts(future: u32, area: *mut usize);
            #[link_name = "take-blob"]
            pub fn take_blob(future: u32, area: *mut usize);
            pub fn cancel(future: u32, area: *mut usize);
            pub fn now() -> u64;
            #[link_name = "monotonic-now"]
            pub fn monotonic_now() -> u64;
            pub fn sleep(nanoseconds: u64, area: *mut usize);
            #[link_name = "random-bytes"]
            pub fn random_bytes(count: u32, area: *mut usize);
            pub fn log(level: u32, message: *const u8, message_length: usize);
            pub fn launch(
                program: *const u8,
                program_length: usize,
                args: *const [usize; 2],
                args_length: usize,
                area: *mut usize,
            );
        }
    }

    /// What a line of the log is: for the author of the inferlet, for its operator, about something
    /// odd, or about something that has failed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    #[allow(missing_docs)]
    pub enum LogLevel {
        Debug,
        Info,
        Warning,
        Error,
    }

    /// The arguments given at launch, in order.
    pub fn get_arg() -> Vec<String> {
        call(|area| unsafe { imports::get_arg(area) })
    }

    /// This instance's identifier, unique on the server.
    pub fn instance_id() -> String {
        call(|area| unsafe { imports::instance_id(area) })
    }

    /// The user who launched this instance.
    pub fn user() -> String {
        call(|area| unsafe { imports::user(area) })
    }

    /// The server's version.
    pub fn version() -> String {
        call(|area| unsafe { imports::version(area) })
    }

    /// Names of the models being served. The first one is the server's default.
    pub fn available_models() -> Vec<String> {
        call(|area| unsafe { imports::available_models(area) })
    }

    /// Names of the traits that a model offers.
    /// Errors: `unknown-model`.
    pub fn available_traits(model: &str) -> Result<Vec<String>> {
        call(|area| unsafe { imports::available_traits(model.as_ptr(), model.len(), area) })
    }

    /// Properties of a model, a JSON object so that keys can be added without breaking a component:
    /// `name`, `architecture`, `page_size` (tokens), `vocab_size`, `max_position` (tokens),
    /// `max_batch_tokens` (largest forward), `layers`, `heads` (of queries, in each layer),
    /// `bos_token` (or null: texts start without one), `stop_tokens` (token ids), `around` (token
    /// ids that the tokenizer itself puts before and behind a text), `pooling` (of embeddings:
    /// `last`, `mean`, or null: what the checkpoint wants is not known),
    /// `has_chat_template`, `chat_arguments` (what the template reads beside messages, such as
    /// `tools`), `chat_markers` (the added tokens that stand in the template, such as `<think>`),
    /// `generation_defaults` (what the checkpoint recommends of `temperature`, `top_k`, `top_p`,
    /// `min_p`, `repetition_penalty`, possibly none).
    /// Errors: `unknown-model`.
    pub fn model_info(model: &str) -> Result<String> {
        call(|area| unsafe { imports::model_info(model.as_ptr(), model.len(), area) })
    }

    /// Creates a command queue of a model. Commands of one queue take effect in order; queues are
    /// independent of each other.
    /// Errors: `unknown-model`, `limit-exceeded`.
    pub fn create_queue(model: &str) -> Result<u32> {
        call(|area| unsafe { imports::create_queue(model.as_ptr(), model.len(), area) })
    }

    /// Destroys a queue. Commands already in it still take effect.
    /// Errors: `invalid-handle`.
    pub fn destroy_queue(queue: u32) -> Result {
        call(|area| unsafe { imports::destroy_queue(queue, area) })
    }

    /// Ready when every command queued before it has taken effect; then reports the first error
    /// among them that nothing has reported yet.
    /// Gives: nothing, by `take`.
    /// Errors: `invalid-handle`, `limit-exceeded`.
    pub fn synchronize(queue: u32) -> HostFuture<()> {
        let started = call(|area| unsafe { imports::synchronize(queue, area) });
        HostFuture::new(started, take)
    }

    /// Priority of a queue, 0 unless set; higher goes first within a batch. At most 100, at least
    /// -100.
    /// Errors: `invalid-handle`, `invalid-argument`.
    pub fn set_queue_priority(queue: u32, priority: i32) -> Result {
        call(|area| unsafe { imports::set_queue_priority(queue, priority, area) })
    }

    /// Suspends the instance until at least one of the futures is ready, and returns those that
    /// are, in the order given. A ready future stays ready until it is taken or cancelled. An empty
    /// list gives every other instance a turn and returns an empty list.
    /// Errors: `invalid-handle`.
    pub fn wait(futures: &[u32]) -> Result<Vec<u32>> {
        call(|area| unsafe { imports::wait(futures.as_ptr(), futures.len(), area) })
    }

    /// Consumes a ready future that carries no value.
    /// Errors: `invalid-handle`, `not-ready`, or the error of the operation.
    pub fn take(future: u32) -> Result {
        call(|area| unsafe { imports::take(future, area) })
    }

    /// Consumes a ready future that carries text.
    /// Errors: as `take`.
    pub fn take_text(future: u32) -> Result<String> {
        call(|area| unsafe { imports::take_text(future, area) })
    }

    /// Consumes a ready future that carries a list of texts.
    /// Errors: as `take`.
    pub fn take_texts(future: u32) -> Result<Vec<String>> {
        call(|area| unsafe { imports::take_texts(future, area) })
    }

    /// Consumes a ready future that carries bytes.
    /// Errors: as `take`.
    pub fn take_blob(future: u32) -> Result<Vec<u8>> {
        call(|area| unsafe { imports::take_blob(future, area) })
    }

    /// Cancels a future, ready or not. Its operation is undone where possible: a message stays in
    /// the mailbox, a child instance is killed, a command that has not been sent yields no result.
    /// Errors: `invalid-handle`.
    pub fn cancel(future: u32) -> Result {
        call(|area| unsafe { imports::cancel(future, area) })
    }

    /// Nanoseconds since the Unix epoch.
    pub fn now() -> u64 {
        unsafe { imports::now() }
    }

    /// Nanoseconds of a clock that never goes back, from an arbitrary start.
    pub fn monotonic_now() -> u64 {
        unsafe { imports::monotonic_now() }
    }

    /// Ready after this time.
    /// Gives: nothing, by `take`.
    /// Errors: `limit-exceeded`.
    pub fn sleep(time: Duration) -> HostFuture<()> {
        let started = call(|area| unsafe { imports::sleep(nanoseconds(time), area) });
        HostFuture::new(started, take)
    }

    /// Random bytes fit for cryptography, at most 65536.
    /// Errors: `invalid-argument`.
    pub fn random_bytes(count: u32) -> Result<Vec<u8>> {
        call(|area| unsafe { imports::random_bytes(count, area) })
    }

    /// Writes a line to the instance's log (`pie-py logs`). The log keeps the newest lines.
    pub fn log(level: LogLevel, message: &str) {
        unsafe { imports::log(level as u32, message.as_ptr(), message.len()) }
    }

    /// Starts a child instance of a program (its name or content hash), as the same user. A child
    /// ends with its parent, and when its future is cancelled. It has no client: parent and child
    /// talk through `messaging`.
    /// Gives: the child's result, by `take_text`.
    /// Errors: `not-found`, `limit-exceeded` (too many children, or generations of them). Of the
    /// future: `failed-dependency` (the child failed; the message is the child's own error text),
    /// `cancelled` (it was killed), `limit-exceeded`, `worker-lost` or `invalid-argument`
    /// (it could not be started).
    pub fn launch(program: &str, args: &[&str]) -> HostFuture<String> {
        let args = texts(args);
        let started = call(|area| unsafe {
            imports::launch(program.as_ptr(), program.len(), args.as_ptr(), args.len(), area)
        });
        HostFuture::new(started, take_text)
    }
}

/// Messages between the instance and the client that launched it. Text and bytes are two
/// independent, ordered streams.
pub mod session {
    use crate::abi::call;
    use crate::error::Result;
    use crate::future::HostFuture;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/session@0.1.0")]
        unsafe extern "C" {
            pub fn send(message: *const u8, message_length: usize, area: *mut usize);
            #[link_name = "send-blob"]
            pub fn send_blob(data: *const u8, data_length: usize, area: *mut usize);
            pub fn writable(area: *mut usize);
            pub fn receive(area: *mut usize);
            #[link_name = "receive-blob"]
            pub fn receive_blob(area: *mut usize);
        }
    }

    /// Sends text to the client. The server keeps a bounded number of bytes for a client that does
    /// not read (back-pressure).
    /// Room: after `would-block`, by `writable`.
    /// Errors: `would-block`, `limit-exceeded` (one message too large).
    pub fn send(message: &str) -> Result {
        call(|area| unsafe { imports::send(message.as_ptr(), message.len(), area) })
    }

    /// Sends bytes to the client.
    /// Room: after `would-block`, by `writable`.
    /// Errors: as `send`.
    pub fn send_blob(data: &[u8]) -> Result {
        call(|area| unsafe { imports::send_blob(data.as_ptr(), data.len(), area) })
    }

    /// Ready when `send` has room again.
    /// Gives: nothing, by `take`.
    /// Errors: `limit-exceeded`.
    pub fn writable() -> HostFuture<()> {
        let started = call(|area| unsafe { imports::writable(area) });
        HostFuture::new(started, super::runtime::take)
    }

    /// The client's next text. Cancelled, it leaves the text for the next call.
    /// Gives: text, by `take_text`.
    /// Errors: `limit-exceeded`.
    pub fn receive() -> HostFuture<String> {
        let started = call(|area| unsafe { imports::receive(area) });
        HostFuture::new(started, super::runtime::take_text)
    }

    /// The client's next bytes. Cancelled, it leaves them for the next call.
    /// Gives: bytes, by `take_blob`.
    /// Errors: `limit-exceeded`.
    pub fn receive_blob() -> HostFuture<Vec<u8>> {
        let started = call(|area| unsafe { imports::receive_blob(area) });
        HostFuture::new(started, super::runtime::take_blob)
    }
}

/// HTTP requests, made by the server. The operator configures the allowed hosts; addresses that are
/// not public are refused unless allowed, also after redirects.
pub mod http {
    use crate::abi::{call, pairs};
    use crate::error::Result;
    use crate::future::HostFuture;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/http@0.1.0")]
        unsafe extern "C" {
            #[link_name = "http-get"]
            pub fn http_get(
                url: *const u8,
                url_length: usize,
                headers: *const [usize; 4],
                headers_length: usize,
                area: *mut usize,
            );
            #[link_name = "http-post"]
            pub fn http_post(
                url: *const u8,
                url_length: usize,
                headers: *const [usize; 4],
                headers_length: usize,
                body: *const u8,
                body_length: usize,
                area: *mut usize,
            );
            #[link_name = "http-request"]
            pub fn http_request(
                method: *const u8,
                method_length: usize,
                url: *const u8,
                url_length: usize,
                headers: *const [usize; 4],
                headers_length: usize,
                body: *const u8,
                body_length: usize,
                timeout_ms: u32,
                area: *mut usize,
            );
            #[link_name = "take-response"]
            pub fn take_response(future: u32, area: *mut usize);
            #[link_name = "read-body"]
            pub fn read_body(body: u32, most: u32, area: *mut usize);
            #[link_name = "response-url"]
            pub fn response_url(body: u32, area: *mut usize);
            #[link_name = "close-body"]
            pub fn close_body(body: u32, area: *mut usize);
        }
    }

    /// `http_request` with GET, without a body, with the server's time-out.
    /// Gives: a response, by `take_response`.
    pub fn http_get(url: &str, headers: &[(&str, &str)]) -> HostFuture<crate::http::Response> {
        let headers = pairs(headers);
        let started = call(|area| unsafe {
            imports::http_get(url.as_ptr(), url.len(), headers.as_ptr(), headers.len(), area)
        });
        HostFuture::new(started, crate::http::take_response)
    }

    /// `http_request` with POST and the server's time-out.
    /// Gives: a response, by `take_response`.
    pub fn http_post(
        url: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> HostFuture<crate::http::Response> {
        let headers = pairs(headers);
        let started = call(|area| unsafe {
            imports::http_post(
                url.as_ptr(),
                url.len(),
                headers.as_ptr(),
                headers.len(),
                body.as_ptr(),
                body.len(),
                area,
            )
        });
        HostFuture::new(started, crate::http::take_response)
    }

    /// Starts a request (GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS) to an `http://` or
    /// `https://` URL; ready when the answer's headers have arrived, whatever its status. Redirects
    /// are followed; a redirect to another origin drops headers that carry secrets. `timeout_ms`
    /// bounds the time from this call to the last byte of the body; 0 is the server's time-out.
    /// Unless `headers` have an Accept-Encoding, a gzip body is unpacked.
    /// Gives: a response, by `take_response`.
    /// Errors: `invalid-argument`, `permission-denied` (a host that is not allowed),
    /// `limit-exceeded` (size, requests under way, requests per second, open bodies).
    pub fn http_request(
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        timeout_ms: u32,
    ) -> HostFuture<crate::http::Response> {
        let headers = pairs(headers);
        let started = call(|area| unsafe {
            imports::http_request(
                method.as_ptr(),
                method.len(),
                url.as_ptr(),
                url.len(),
                headers.as_ptr(),
                headers.len(),
                body.as_ptr(),
                body.len(),
                timeout_ms,
                area,
            )
        });
        HostFuture::new(started, crate::http::take_response)
    }

    /// Consumes a ready future of an answer: status, headers (names in lower case), and a handle of
    /// the body, to be read or closed.
    /// Errors: `invalid-handle`, `not-ready`; `not-found` (no such host), `permission-denied` (an
    /// address or a redirect that is not allowed), `remote-failed` (no connection, or it broke),
    /// `timed-out`, `limit-exceeded` (redirects, headers).
    pub fn take_response(future: u32) -> Result<(u32, Vec<(String, String)>, u32)> {
        call(|area| unsafe { imports::take_response(future, area) })
    }

    /// The next bytes of a body, as soon as there are any, at most `most` and at most 1 MiB; none at
    /// the end. One read at a time.
    /// Gives: bytes, by `runtime::take_blob`.
    /// Errors: `invalid-handle`, `invalid-argument`, `busy`, `limit-exceeded`; of the future:
    /// `remote-failed`, `timed-out`, `limit-exceeded` (the body is too large).
    pub fn read_body(body: u32, most: u32) -> HostFuture<Vec<u8>> {
        let started = call(|area| unsafe { imports::read_body(body, most, area) });
        HostFuture::new(started, super::runtime::take_blob)
    }

    /// The URL that answered: the requested one, or the last one of the redirects.
    /// Errors: `invalid-handle`.
    pub fn response_url(body: u32) -> Result<String> {
        call(|area| unsafe { imports::response_url(body, area) })
    }

    /// Closes a body's handle, and the connection if the body has not been read to its end.
    /// Errors: `invalid-handle`.
    pub fn close_body(body: u32) -> Result {
        call(|area| unsafe { imports::close_body(body, area) })
    }
}

/// Tools of MCP (Model Context Protocol) servers that the operator, or a client of this user,
/// registered.
pub mod mcp {
    use crate::abi::call;
    use crate::future::HostFuture;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/mcp@0.1.0")]
        unsafe extern "C" {
            #[link_name = "mcp-servers"]
            pub fn mcp_servers(area: *mut usize);
            #[link_name = "mcp-list-tools"]
            pub fn mcp_list_tools(server: *const u8, server_length: usize, area: *mut usize);
            #[link_name = "mcp-call-tool"]
            pub fn mcp_call_tool(
                server: *const u8,
                server_length: usize,
                tool: *const u8,
                tool_length: usize,
                arguments: *const u8,
                arguments_length: usize,
                area: *mut usize,
            );
        }
    }

    /// Names of the servers that this user may use.
    pub fn mcp_servers() -> Vec<String> {
        call(|area| unsafe { imports::mcp_servers(area) })
    }

    /// A server's tools, a JSON list of `{"name", "title", "description", "input_schema",
    /// "output_schema"}`.
    /// Gives: JSON, by `runtime::take_text`.
    /// Errors: `not-found`, `limit-exceeded`; of the future: `remote-failed` (the server did not
    /// start, died, or refused), `timed-out`, `limit-exceeded` (the answer is too large).
    pub fn mcp_list_tools(server: &str) -> HostFuture<String> {
        let started =
            call(|area| unsafe { imports::mcp_list_tools(server.as_ptr(), server.len(), area) });
        HostFuture::new(started, super::runtime::take_text)
    }

    /// A tool's answer to `arguments`, a JSON object: a JSON object with `content` (a list of MCP
    /// content blocks), `is_error` (the tool's own failure), and `structured` (what the tool's
    /// output schema describes, or null).
    /// Gives: JSON, by `runtime::take_text`.
    /// Errors: `not-found`, `invalid-argument`, `limit-exceeded`; of the future: as
    /// `mcp_list_tools`.
    pub fn mcp_call_tool(server: &str, tool: &str, arguments: &str) -> HostFuture<String> {
        let started = call(|area| unsafe {
            imports::mcp_call_tool(
                server.as_ptr(),
                server.len(),
                tool.as_ptr(),
                tool.len(),
                arguments.as_ptr(),
                arguments.len(),
                area,
            )
        });
        HostFuture::new(started, super::runtime::take_text)
    }
}

/// Messages between the instances of one user; no other user sees them. A topic is a name of 1 to
/// 256 bytes. Topics with subscribers and work queues are apart, even under the same name. Messages
/// are text and live in the server's memory: they are lost when it stops. A message that a future
/// holds is consumed only when it is taken: a cancelled future puts it back in its old place.
pub mod messaging {
    use crate::abi::call;
    use crate::error::Result;
    use crate::future::HostFuture;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/messaging@0.1.0")]
        unsafe extern "C" {
            pub fn broadcast(
                topic: *const u8,
                topic_length: usize,
                message: *const u8,
                message_length: usize,
                area: *mut usize,
            );
            #[link_name = "broadcast-room"]
            pub fn broadcast_room(topic: *const u8, topic_length: usize, area: *mut usize);
            pub fn subscribe(topic: *const u8, topic_length: usize, area: *mut usize);
            pub fn unsubscribe(subscription: u32, area: *mut usize);
            #[link_name = "next-message"]
            pub fn next_message(subscription: u32, area: *mut usize);
            pub fn push(
                topic: *const u8,
                topic_length: usize,
                message: *const u8,
                message_length: usize,
                area: *mut usize,
            );
            #[link_name = "push-room"]
            pub fn push_room(topic: *const u8, topic_length: usize, area: *mut usize);
            pub fn pull(topic: *const u8, topic_length: usize, area: *mut usize);
        }
    }

    /// Sends to every current subscriber of a topic among this user's instances, this one included,
    /// and returns how many there are. All or none: if the box of one subscriber is full, nothing
    /// is sent and the error names it. So no subscriber misses a message.
    /// Room: after `would-block`, by `broadcast_room`.
    /// Errors: `would-block`, `invalid-argument`, `limit-exceeded` (message too large).
    pub fn broadcast(topic: &str, message: &str) -> Result<u32> {
        call(|area| unsafe {
            imports::broadcast(topic.as_ptr(), topic.len(), message.as_ptr(), message.len(), area)
        })
    }

    /// Ready when the box of every subscriber has room.
    /// Gives: nothing, by `take`.
    /// Errors: `invalid-argument`, `limit-exceeded`.
    pub fn broadcast_room(topic: &str) -> HostFuture<()> {
        let started =
            call(|area| unsafe { imports::broadcast_room(topic.as_ptr(), topic.len(), area) });
        HostFuture::new(started, super::runtime::take)
    }

    /// Subscribes to what is broadcast from now on, and returns a handle. Two subscriptions of one
    /// instance each receive everything.
    /// Errors: `invalid-argument`, `limit-exceeded`.
    pub fn subscribe(topic: &str) -> Result<u32> {
        call(|area| unsafe { imports::subscribe(topic.as_ptr(), topic.len(), area) })
    }

    /// Ends a subscription. What it has not read is dropped; its open futures fail with
    /// `cancelled`.
    /// Errors: `invalid-handle`.
    pub fn unsubscribe(subscription: u32) -> Result {
        call(|area| unsafe { imports::unsubscribe(subscription, area) })
    }

    /// The subscription's next message, in the order of the broadcasts. Cancelled, it leaves the
    /// message for the next call.
    /// Gives: text, by `take_text`.
    /// Errors: `invalid-handle`, `limit-exceeded`.
    pub fn next_message(subscription: u32) -> HostFuture<String> {
        let started = call(|area| unsafe { imports::next_message(subscription, area) });
        HostFuture::new(started, super::runtime::take_text)
    }

    /// Appends to the user's work queue of a topic, which is bounded (back-pressure).
    /// Room: after `would-block`, by `push_room`.
    /// Errors: `would-block`, `invalid-argument`, `limit-exceeded` (message too large, too many
    /// queues).
    pub fn push(topic: &str, message: &str) -> Result {
        call(|area| unsafe {
            imports::push(topic.as_ptr(), topic.len(), message.as_ptr(), message.len(), area)
        })
    }

    /// Ready when the work queue has room.
    /// Gives: nothing, by `take`.
    /// Errors: `invalid-argument`, `limit-exceeded`.
    pub fn push_room(topic: &str) -> HostFuture<()> {
        let started = call(|area| unsafe { imports::push_room(topic.as_ptr(), topic.len(), area) });
        HostFuture::new(started, super::runtime::take)
    }

    /// The oldest message of the work queue (FIFO); waits for one. Each message goes to exactly one
    /// puller; pullers are served in the order of their calls. Cancelled, it leaves the message for
    /// the next puller.
    /// Gives: text, by `take_text`.
    /// Errors: `invalid-argument`, `limit-exceeded`.
    pub fn pull(topic: &str) -> HostFuture<String> {
        let started = call(|area| unsafe { imports::pull(topic.as_ptr(), topic.len(), area) });
        HostFuture::new(started, super::runtime::take_text)
    }
}

/// Keys and values of this user that survive the instance and the server. A key is a text of 1 to
/// 1024 bytes, a value is bytes; both count against the user's quota. Operations take effect in the
/// order of the calls, each wholly or not at all. When the future of a change is ready, it is on
/// disk; cancelled before, it may or may not take effect. An instance that has too many bytes under
/// way, or read and not taken, gets `would-block`, from the call or from the future; `store_room`
/// tells when to try again.
pub mod store {
    use crate::abi::{call, pairs, texts};
    use crate::future::HostFuture;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/store@0.1.0")]
        unsafe extern "C" {
            #[link_name = "store-get"]
            pub fn store_get(key: *const u8, key_length: usize, area: *mut usize);
            #[link_name = "store-set"]
            pub fn store_set(
                key: *const u8,
                key_length: usize,
                value: *const u8,
                value_length: usize,
                area: *mut usize,
            );
            #[link_name = "store-delete"]
            pub fn store_delete(key: *const u8, key_length: usize, area: *mut usize);
            #[link_name = "store-list"]
            pub fn store_list(
                prefix: *const u8,
                prefix_length: usize,
                after: *const u8,
                after_length: usize,
                limit: u32,
                area: *mut usize,
            );
            #[link_name = "store-room"]
            pub fn store_room(area: *mut usize);
            #[link_name = "store-commit"]
            pub fn store_commit(
                expected: *const [usize; 4],
                expected_length: usize,
                absent: *const [usize; 2],
                absent_length: usize,
                writes: *const [usize; 4],
                writes_length: usize,
                deletes: *const [usize; 2],
                deletes_length: usize,
                area: *mut usize,
            );
        }
    }

    /// A key's value, or the error `not-found`.
    /// Gives: bytes, by `take_blob`.
    /// Room: after `would-block`, by `store_room`.
    /// Errors: `invalid-argument`, `would-block`, `limit-exceeded`.
    pub fn store_get(key: &str) -> HostFuture<Vec<u8>> {
        let started = call(|area| unsafe { imports::store_get(key.as_ptr(), key.len(), area) });
        HostFuture::new(started, super::runtime::take_blob)
    }

    /// Sets a key's value, new or instead of its old one.
    /// Gives: nothing, by `take`.
    /// Room: after `would-block`, by `store_room`.
    /// Errors: `invalid-argument`, `would-block`, `limit-exceeded` (value too large; of the future:
    /// quota).
    pub fn store_set(key: &str, value: &[u8]) -> HostFuture<()> {
        let started = call(|area| unsafe {
            imports::store_set(key.as_ptr(), key.len(), value.as_ptr(), value.len(), area)
        });
        HostFuture::new(started, super::runtime::take)
    }

    /// Removes a key; idempotent: a missing key is no error.
    /// Gives: nothing, by `take`.
    /// Room: after `would-block`, by `store_room`.
    /// Errors: `invalid-argument`, `would-block`, `limit-exceeded`.
    pub fn store_delete(key: &str) -> HostFuture<()> {
        let started = call(|area| unsafe { imports::store_delete(key.as_ptr(), key.len(), area) });
        HostFuture::new(started, super::runtime::take)
    }

    /// The keys that begin with `prefix` and come after `after`, in the order of their UTF-8 bytes,
    /// at most `limit` (1 to 1000) of them. An empty `after` is before every key.
    /// Gives: a list of texts, by `take_texts`.
    /// Room: after `would-block`, by `store_room`.
    /// Errors: `invalid-argument`, `would-block`, `limit-exceeded`.
    pub fn store_list(prefix: &str, after: &str, limit: u32) -> HostFuture<Vec<String>> {
        let started = call(|area| unsafe {
            imports::store_list(
                prefix.as_ptr(),
                prefix.len(),
                after.as_ptr(),
                after.len(),
                limit,
                area,
            )
        });
        HostFuture::new(started, super::runtime::take_texts)
    }

    /// Ready when operations are accepted again.
    /// Gives: nothing, by `take`.
    /// Errors: `limit-exceeded`.
    pub fn store_room() -> HostFuture<()> {
        let started = call(|area| unsafe { imports::store_room(area) });
        HostFuture::new(started, super::runtime::take)
    }

    /// Makes all changes at once, if each of the `expected` keys has just this value and none of
    /// the `absent` keys exists; otherwise nothing changes and the future's error is `conflict`. At
    /// most 1000 keys in conditions, and as many in changes; none twice.
    /// Gives: nothing, by `take`.
    /// Room: after `would-block`, by `store_room`.
    /// Errors: `invalid-argument`, `would-block`, `limit-exceeded` (value too large, too many keys;
    /// of the future: quota).
    pub fn store_commit(
        expected: &[(&str, &[u8])],
        absent: &[&str],
        writes: &[(&str, &[u8])],
        deletes: &[&str],
    ) -> HostFuture<()> {
        let expected = pairs(expected);
        let absent = texts(absent);
        let writes = pairs(writes);
        let deletes = texts(deletes);
        let started = call(|area| unsafe {
            imports::store_commit(
                expected.as_ptr(),
                expected.len(),
                absent.as_ptr(),
                absent.len(),
                writes.as_ptr(),
                writes.len(),
                deletes.as_ptr(),
                deletes.len(),
                area,
            )
        });
        HostFuture::new(started, super::runtime::take)
    }
}

/// KV pages and embeds. A page holds `page_size` slots; a slot is empty, live or masked.
pub mod allocate {
    use crate::abi::{call, nanoseconds};
    use crate::error::Result;
    use std::time::Duration;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/allocate@0.1.0")]
        unsafe extern "C" {
            #[link_name = "alloc-kvpage"]
            pub fn alloc_kvpage(queue: u32, count: u32, area: *mut usize);
            #[link_name = "dealloc-kvpage"]
            pub fn dealloc_kvpage(
                queue: u32,
                pages: *const u32,
                pages_length: usize,
                area: *mut usize,
            );
            #[link_name = "export-kvpage"]
            pub fn export_kvpage(
                queue: u32,
                pages: *const u32,
                pages_length: usize,
                name: *const u8,
                name_length: usize,
                shared: u32,
                area: *mut usize,
            );
            #[link_name = "import-kvpage"]
            pub fn import_kvpage(queue: u32, name: *const u8, name_length: usize, area: *mut usize);
            #[link_name = "list-exports"]
            pub fn list_exports(queue: u32, area: *mut usize);
            #[link_name = "release-export"]
            pub fn release_export(
                queue: u32,
                name: *const u8,
                name_length: usize,
                area: *mut usize,
            );
            #[link_name = "expire-export"]
            pub fn expire_export(
                queue: u32,
                name: *const u8,
                name_length: usize,
                nanoseconds: u64,
                area: *mut usize,
            );
            #[link_name = "retain-kvpage"]
            pub fn retain_kvpage(
                queue: u32,
                pages: *const u32,
                pages_length: usize,
                priority: i32,
                nanoseconds: u64,
                area: *mut usize,
            );
            #[link_name = "copy-kvpage"]
            pub fn copy_kvpage(
                queue: u32,
                source_page: u32,
                source_slot: u32,
                target_page: u32,
                target_slot: u32,
                count: u32,
                area: *mut usize,
            );
            #[link_name = "kvpage-used"]
            pub fn kvpage_used(
                queue: u32,
                pages: *const u32,
                pages_length: usize,
                area: *mut usize,
            );
            #[link_name = "truncate-kvpage"]
            pub fn truncate_kvpage(
                queue: u32,
                pages: *const u32,
                pages_length: usize,
                used: *const u32,
                used_length: usize,
                area: *mut usize,
            );
            #[link_name = "alloc-emb"]
            pub fn alloc_emb(queue: u32, count: u32, area: *mut usize);
            #[link_name = "dealloc-emb"]
            pub fn dealloc_emb(
                queue: u32,
                embeds: *const u32,
                embeds_length: usize,
                area: *mut usize,
            );
            #[link_name = "copy-emb"]
            pub fn copy_emb(
                queue: u32,
                sources: *const u32,
                sources_length: usize,
                targets: *const u32,
                targets_length: usize,
                positions: *const u32,
                positions_length: usize,
                area: *mut usize,
            );
            #[link_name = "pool-stats"]
            pub fn pool_stats(queue: u32, area: *mut usize);
        }
    }

    /// Allocates pages, all slots empty, and returns the first address of the range. If too few are
    /// free the call waits, as long as pages of waiting instances can be evicted to host memory or
    /// other instances are about to end.
    /// Errors: `invalid-handle`, `invalid-argument`, `out-of-resources` (more than the model has),
    /// `limit-exceeded`.
    pub fn alloc_kvpage(queue: u32, count: u32) -> Result<u32> {
        call(|area| unsafe { imports::alloc_kvpage(queue, count, area) })
    }

    /// Frees pages once the commands queued before have taken effect; the addresses are invalid at
    /// once.
    /// Errors: `invalid-handle`.
    pub fn dealloc_kvpage(queue: u32, pages: &[u32]) -> Result {
        call(|area| unsafe { imports::dealloc_kvpage(queue, pages.as_ptr(), pages.len(), area) })
    }

    /// Publishes pages under a name. They become immutable and reference-counted: they live until
    /// the export is released, or ends because no instance imports it for as long as the operator
    /// says (`expire_export`), and no instance maps them. Private to the user unless `shared`.
    /// Errors: `invalid-handle`, `invalid-argument`, `already-exists`, `busy` (a queued command
    /// still writes one of them: synchronize first), `limit-exceeded`.
    pub fn export_kvpage(queue: u32, pages: &[u32], name: &str, shared: bool) -> Result {
        call(|area| unsafe {
            imports::export_kvpage(
                queue,
                pages.as_ptr(),
                pages.len(),
                name.as_ptr(),
                name.len(),
                shared.into(),
                area,
            )
        })
    }

    /// Maps exported pages into this instance, read-only, and returns spans of addresses.
    /// Errors: `invalid-handle`, `not-found`, `limit-exceeded`.
    pub fn import_kvpage(queue: u32, name: &str) -> Result<Vec<u32>> {
        call(|area| unsafe { imports::import_kvpage(queue, name.as_ptr(), name.len(), area) })
    }

    /// Names of the exports of the queue's model that this user may import.
    /// Errors: `invalid-handle`.
    pub fn list_exports(queue: u32) -> Result<Vec<String>> {
        call(|area| unsafe { imports::list_exports(queue, area) })
    }

    /// Withdraws an export of this user. Pages already mapped stay.
    /// Errors: `invalid-handle`, `not-found`, `permission-denied`.
    pub fn release_export(queue: u32, name: &str) -> Result {
        call(|area| unsafe { imports::release_export(queue, name.as_ptr(), name.len(), area) })
    }

    /// Sets after how long without an import an export of this user ends, as by `release_export`.
    /// The time starts again now, and with each import.
    /// Errors: `invalid-handle`, `not-found`, `permission-denied`, `invalid-argument` (no time),
    /// `limit-exceeded` (longer than the operator allows).
    pub fn expire_export(queue: u32, name: &str, time: Duration) -> Result {
        call(|area| unsafe {
            imports::expire_export(queue, name.as_ptr(), name.len(), nanoseconds(time), area)
        })
    }

    /// Says what pages are worth when memory is short, beside the user's other pages: those of lower
    /// `priority` leave first, the prefix cache and for host memory. Pages have 0 until told; above
    /// it they have the priority for this time, below it until they are found by `match_prefix`.
    /// Other users' pages leave and stay as if nothing had been said.
    /// Errors: `invalid-handle`, `swapped-out`, `invalid-argument` (a priority outside -100 to 100).
    pub fn retain_kvpage(queue: u32, pages: &[u32], priority: i32, time: Duration) -> Result {
        call(|area| unsafe {
            imports::retain_kvpage(
                queue,
                pages.as_ptr(),
                pages.len(),
                priority,
                nanoseconds(time),
                area,
            )
        })
    }

    /// Copies `count` slots (content, position, mask) from `source_page` at `source_slot` to
    /// `target_page` at `target_slot`. The source slots must be filled, and no empty slot may be
    /// left before the target's.
    /// Errors: `invalid-handle`, `invalid-argument`, `page-full`, `immutable`, `limit-exceeded`.
    pub fn copy_kvpage(
        queue: u32,
        source_page: u32,
        source_slot: u32,
        target_page: u32,
        target_slot: u32,
        count: u32,
    ) -> Result {
        call(|area| unsafe {
            imports::copy_kvpage(
                queue,
                source_page,
                source_slot,
                target_page,
                target_slot,
                count,
                area,
            )
        })
    }

    /// Number of filled (live or masked) slots of each page, as if every queued command had run.
    /// Errors: `invalid-handle`.
    pub fn kvpage_used(queue: u32, pages: &[u32]) -> Result<Vec<u32>> {
        call(|area| unsafe { imports::kvpage_used(queue, pages.as_ptr(), pages.len(), area) })
    }

    /// Empties the slots of pages from a number on: page `i` of the list keeps its first `used[i]`
    /// slots. Commands queued before still read and write the slots as they were; later ones fill
    /// them again. That is how steps that were queued ahead and are not needed are undone.
    /// Errors: `invalid-handle`, `invalid-argument` (more than are filled, lengths that disagree, a
    /// page twice), `immutable`.
    pub fn truncate_kvpage(queue: u32, pages: &[u32], used: &[u32]) -> Result {
        call(|area| unsafe {
            imports::truncate_kvpage(
                queue,
                pages.as_ptr(),
                pages.len(),
                used.as_ptr(),
                used.len(),
                area,
            )
        })
    }

    /// Allocates embeds and returns the first address of the range. Errors: as `alloc_kvpage`.
    pub fn alloc_emb(queue: u32, count: u32) -> Result<u32> {
        call(|area| unsafe { imports::alloc_emb(queue, count, area) })
    }

    /// Frees embeds once the commands queued before have taken effect; the addresses are invalid at
    /// once.
    /// Errors: `invalid-handle`.
    pub fn dealloc_emb(queue: u32, embeds: &[u32]) -> Result {
        call(|area| unsafe { imports::dealloc_emb(queue, embeds.as_ptr(), embeds.len(), area) })
    }

    /// Copies embeds, each of `sources` to the one of `targets` at the same index, when the command
    /// runs. A source may occur several times. `positions` (spans, as of `embed_txt`) are those of
    /// the targets; if empty, each target gets its source's. All sources are read before a target
    /// is written.
    /// Errors: `invalid-handle`, `invalid-argument` (lengths that disagree, a source that nothing
    /// was written to, a target twice, a position outside the model's context), `limit-exceeded`
    /// (more than `max_batch_tokens`, too many queued commands).
    pub fn copy_emb(queue: u32, sources: &[u32], targets: &[u32], positions: &[u32]) -> Result {
        call(|area| unsafe {
            imports::copy_emb(
                queue,
                sources.as_ptr(),
                sources.len(),
                targets.as_ptr(),
                targets.len(),
                positions.as_ptr(),
                positions.len(),
                area,
            )
        })
    }

    /// State of the queue's model's pools, a JSON object: `kv_pages`, `kv_pages_free` (of these
    /// `kv_pages_cached` hold prefixes that are found until the pages are needed),
    /// `host_pages` and `host_pages_free` (for swapped pages), `embeds`, `embeds_free`, and this
    /// instance's `kv_pages_mine`, `host_pages_mine`, `embeds_mine`.
    /// Errors: `invalid-handle`.
    pub fn pool_stats(queue: u32) -> Result<String> {
        call(|area| unsafe { imports::pool_stats(queue, area) })
    }
}

/// The transformer's forward pass.
pub mod forward {
    use crate::abi::call;
    use crate::error::Result;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/forward@0.1.0")]
        unsafe extern "C" {
            pub fn forward(
                queue: u32,
                input_pages: *const u32,
                input_pages_length: usize,
                input_embeds: *const u32,
                input_embeds_length: usize,
                output_pages: *const u32,
                output_pages_length: usize,
                output_embeds: *const u32,
                output_embeds_length: usize,
                mask: *const u32,
                mask_length: usize,
                area: *mut usize,
            );
            #[link_name = "mask-kvpage"]
            pub fn mask_kvpage(
                queue: u32,
                pages: *const u32,
                pages_length: usize,
                masks: *const u32,
                masks_length: usize,
                area: *mut usize,
            );
            #[link_name = "shift-kvpage"]
            pub fn shift_kvpage(
                queue: u32,
                pages: *const u32,
                pages_length: usize,
                distance: i32,
                area: *mut usize,
            );
        }
    }

    /// Runs the model over the input embeds, in order.
    ///
    /// Each input attends to every live slot of `input_pages`, and to those inputs whose position
    /// is lower, or equal and not after it in the list. An explicit `mask` replaces this rule: one
    /// row per input, flattened as `[runs, length, length, ...]` for each row, the lengths
    /// alternating hidden, visible, hidden, ... over the columns: the filled slots of `input_pages`
    /// in order, then the inputs. A masked slot is never attended to, whatever the mask says.
    ///
    /// If `output_pages` is not empty, the inputs' keys and values go into its empty slots, from
    /// the first on. The last inputs' hidden states go into `output_embeds`, as many as it names.
    /// Pages may be input and output at once: the inputs see the slots filled before this call.
    ///
    /// Errors: `invalid-handle`, `invalid-argument`, `page-full` (too little room), `immutable`,
    /// `limit-exceeded` (more inputs than `max_batch_tokens`, or more than 512 by default that can
    /// only run at once, such as those of a forward without output pages; a mask of over 262144
    /// numbers or 2^28 cells; too many queued commands), `unsupported` (a sampler's `attend` program
    /// is told of it, and it has a mask, no output pages, or positions that fall).
    pub fn forward(
        queue: u32,
        input_pages: &[u32],
        input_embeds: &[u32],
        output_pages: &[u32],
        output_embeds: &[u32],
        mask: &[u32],
    ) -> Result {
        call(|area| unsafe {
            imports::forward(
                queue,
                input_pages.as_ptr(),
                input_pages.len(),
                input_embeds.as_ptr(),
                input_embeds.len(),
                output_pages.as_ptr(),
                output_pages.len(),
                output_embeds.as_ptr(),
                output_embeds.len(),
                mask.as_ptr(),
                mask.len(),
                area,
            )
        })
    }

    /// Sets which filled slots of pages are masked: one word per page, bit `i` set hides slot `i`.
    /// A bit of an empty slot is an error.
    /// Errors: `invalid-handle`, `invalid-argument`, `immutable`, `limit-exceeded`.
    pub fn mask_kvpage(queue: u32, pages: &[u32], masks: &[u32]) -> Result {
        call(|area| unsafe {
            imports::mask_kvpage(
                queue,
                pages.as_ptr(),
                pages.len(),
                masks.as_ptr(),
                masks.len(),
                area,
            )
        })
    }

    /// Gives all that is in pages other positions, `distance` further on: keys are turned to them,
    /// so that later inputs see them there. What the tokens have seen stays as it was; positions
    /// need not be those of a context any more, as a gap is closed after pages were left out.
    /// Errors: `invalid-handle`, `invalid-argument` (further than the model's context), `immutable`,
    /// `swapped-out`, `limit-exceeded`; `unsupported`: a key is a latent, or a layer has a state.
    pub fn shift_kvpage(queue: u32, pages: &[u32], distance: i32) -> Result {
        call(|area| unsafe {
            imports::shift_kvpage(queue, pages.as_ptr(), pages.len(), distance, area)
        })
    }
}

/// Forward passes through a LoRA adapter: low-rank changes to the model's weights. The operator
/// loads adapters; commands with different adapters, and without any, run in one batch.
pub mod adapter {
    use crate::abi::call;
    use crate::error::Result;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/adapter@0.1.0")]
        unsafe extern "C" {
            #[link_name = "available-adapters"]
            pub fn available_adapters(model: *const u8, model_length: usize, area: *mut usize);
            #[link_name = "forward-with-adapter"]
            pub fn forward_with_adapter(
                queue: u32,
                adapter: *const u8,
                adapter_length: usize,
                input_pages: *const u32,
                input_pages_length: usize,
                input_embeds: *const u32,
                input_embeds_length: usize,
                output_pages: *const u32,
                output_pages_length: usize,
                output_embeds: *const u32,
                output_embeds_length: usize,
                mask: *const u32,
                mask_length: usize,
                area: *mut usize,
            );
        }
    }

    /// Names of the adapters that are loaded for a model.
    /// Errors: `unknown-model`, `unsupported`.
    pub fn available_adapters(model: &str) -> Result<Vec<String>> {
        call(|area| unsafe { imports::available_adapters(model.as_ptr(), model.len(), area) })
    }

    /// As `forward::forward`, through an adapter. Keys and values in the pages are those of the
    /// adapter that computed them. An adapter stays loaded as long as an instance that has used it
    /// is alive.
    /// Errors: as `forward`, and `not-found` (no such adapter), `unsupported`.
    pub fn forward_with_adapter(
        queue: u32,
        adapter: &str,
        input_pages: &[u32],
        input_embeds: &[u32],
        output_pages: &[u32],
        output_embeds: &[u32],
        mask: &[u32],
    ) -> Result {
        call(|area| unsafe {
            imports::forward_with_adapter(
                queue,
                adapter.as_ptr(),
                adapter.len(),
                input_pages.as_ptr(),
                input_pages.len(),
                input_embeds.as_ptr(),
                input_embeds.len(),
                output_pages.as_ptr(),
                output_pages.len(),
                output_embeds.as_ptr(),
                output_embeds.len(),
                mask.as_ptr(),
                mask.len(),
                area,
            )
        })
    }
}

/// Attention weights of inputs, which show the tokens that matter and those that can be dropped.
pub mod introspect {
    use crate::abi::call;
    use crate::error::Result;
    use crate::future::HostFuture;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/introspect@0.1.0")]
        unsafe extern "C" {
            #[link_name = "forward-with-attention"]
            pub fn forward_with_attention(
                queue: u32,
                input_pages: *const u32,
                input_pages_length: usize,
                input_embeds: *const u32,
                input_embeds_length: usize,
                output_pages: *const u32,
                output_pages_length: usize,
                output_embeds: *const u32,
                output_embeds_length: usize,
                mask: *const u32,
                mask_length: usize,
                observed: u32,
                detail: u32,
                adapter: *const u8,
                adapter_length: usize,
                area: *mut usize,
            );
            #[link_name = "take-attention"]
            pub fn take_attention(future: u32, area: *mut usize);
        }
    }

    /// The rows of the answer: one row (the average over layers and heads), one row per layer (the
    /// average over its heads), or one row per head, layer by layer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    #[allow(missing_docs)]
    pub enum Detail {
        Total,
        Layers,
        Heads,
    }

    /// Attention: how many rows, and their numbers, one row after the
    /// other. Columns are those of a mask: the filled slots of the input pages in order, then the
    /// inputs. A number is the sum over the observed inputs of their attention probabilities (of a
    /// softmax in float32, so each input adds 1 to a row, or 0 if it sees nothing); what is hidden
    /// has 0.
    #[derive(Clone, Debug, PartialEq)]
    #[allow(missing_docs)]
    pub struct Attention {
        pub rows: u32,
        pub numbers: Vec<f32>,
    }

    /// As `forward::forward`, and what the last `observed` inputs attend to. An empty `adapter` means
    /// none.
    /// Gives: attention, by `take_attention`.
    /// Errors: as `forward_with_adapter`, and `invalid-argument` (not 1 to as many as inputs are
    /// observed), `limit-exceeded` (an answer of over 524288 numbers, inputs times columns
    /// over 2^28), `unsupported`.
    pub fn forward_with_attention(
        queue: u32,
        input_pages: &[u32],
        input_embeds: &[u32],
        output_pages: &[u32],
        output_embeds: &[u32],
        mask: &[u32],
        observed: u32,
        detail: Detail,
        adapter: &str,
    ) -> HostFuture<Attention> {
        let started = call(|area| unsafe {
            imports::forward_with_attention(
                queue,
                input_pages.as_ptr(),
                input_pages.len(),
                input_embeds.as_ptr(),
                input_embeds.len(),
                output_pages.as_ptr(),
                output_pages.len(),
                output_embeds.as_ptr(),
                output_embeds.len(),
                mask.as_ptr(),
                mask.len(),
                observed,
                detail as u32,
                adapter.as_ptr(),
                adapter.len(),
                area,
            )
        });
        HostFuture::new(started, take_attention)
    }

    /// Consumes a ready future of attention: how many rows, and their numbers, one row after the
    /// other. Columns are those of a mask: the filled slots of the input pages in order, then the
    /// inputs. A number is the sum over the observed inputs of their attention probabilities (of a
    /// softmax in float32, so each input adds 1 to a row, or 0 if it sees nothing); what is hidden
    /// has 0.
    /// Fields of `attention`: `rows`, `numbers`.
    /// Errors: `invalid-handle`, `not-ready`, or the error of the operation.
    pub fn take_attention(future: u32) -> Result<Attention> {
        let taken = call::<Result<_>>(|area| unsafe { imports::take_attention(future, area) })?;
        let (rows, numbers) = taken;
        Ok(Attention { rows, numbers })
    }
}

/// Swaps KV pages to host memory and back, or discards them, while their addresses stay valid.
///
/// A swapped-out page can be freed, asked for its fill count, swapped in and discarded; any other
/// use of it is the error `swapped-out`. It takes no page of the pool. Swaps are commands: they
/// take effect in the order of their queue, and `synchronize` tells when.
pub mod offload {
    use crate::abi::{call, nanoseconds};
    use crate::error::Result;
    use std::time::Duration;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/offload@0.1.0")]
        unsafe extern "C" {
            #[link_name = "swap-out"]
            pub fn swap_out(queue: u32, pages: *const u32, pages_length: usize, area: *mut usize);
            #[link_name = "swap-in"]
            pub fn swap_in(queue: u32, pages: *const u32, pages_length: usize, area: *mut usize);
            pub fn discard(queue: u32, pages: *const u32, pages_length: usize, area: *mut usize);
            #[link_name = "kv-costs"]
            pub fn kv_costs(model: *const u8, model_length: usize, area: *mut usize);
            pub fn advise(
                queue: u32,
                pages: *const u32,
                pages_length: usize,
                wait: *const u8,
                wait_length: usize,
                area: *mut usize,
            );
            #[link_name = "note-wait"]
            pub fn note_wait(
                tool: *const u8,
                tool_length: usize,
                nanoseconds: u64,
                area: *mut usize,
            );
        }
    }

    /// Moves pages to the server's host memory. Idempotent: pages that are swapped out stay so.
    /// Errors: `invalid-handle` (also for a page twice), `busy` (a page is shared: an export,
    /// another instance or another address references it), `out-of-resources` (host memory is
    /// full), `limit-exceeded`.
    pub fn swap_out(queue: u32, pages: &[u32]) -> Result {
        call(|area| unsafe { imports::swap_out(queue, pages.as_ptr(), pages.len(), area) })
    }

    /// Brings pages back as they were, and discarded ones empty. Pages in the pool stay there. As
    /// with `alloc_kvpage`, instances launched later are ended if too few pages are free.
    /// Errors: `invalid-handle` (also for a page twice), `out-of-resources`, `limit-exceeded`.
    pub fn swap_in(queue: u32, pages: &[u32]) -> Result {
        call(|area| unsafe { imports::swap_in(queue, pages.as_ptr(), pages.len(), area) })
    }

    /// Drops this instance's reference to the content of pages, wherever they are. The addresses
    /// stay valid: `swap_in` puts empty pages there. Other references to a page keep its content.
    /// Errors: `invalid-handle` (also for a page twice).
    pub fn discard(queue: u32, pages: &[u32]) -> Result {
        call(|area| unsafe { imports::discard(queue, pages.as_ptr(), pages.len(), area) })
    }

    /// The costs of keeping, swapping and recomputing pages, measured at the model's start, a JSON
    /// object: `page_bytes`, `page_size` (tokens), `swap_out` and `swap_in` (null without host
    /// memory, else `seconds`, the fixed part, and `bytes_per_second`), `prefill` (`seconds` of one
    /// forward of `tokens`, and `fit`, the `[c, a, b]` of `c + a n + b n^2` seconds), `decode`
    /// (`seconds` of one step of `sequences`), `out_beside_kernels` (whether a GPU goes on while
    /// pages leave). The server's policies go on from there by what it measures later.
    /// Errors: `unknown-model`, `unsupported`.
    pub fn kv_costs(model: &str) -> Result<String> {
        call(|area| unsafe { imports::kv_costs(model.as_ptr(), model.len(), area) })
    }

    /// Advises what to do with pages while the program waits for a tool, by a policy of the server
    /// (InferCept). It changes nothing. `wait` is a JSON object with optional keys: `tool`, a name
    /// of the program's own; `policy`, one of `preserve`, `discard`, `swap`, `min-waste`,
    /// `cheapest`, or the operator's; `elapsed_ns` of the wait; `expected_ns`, its expected total
    /// duration, if known; `can_discard`, false if the program cannot recompute the tokens. The
    /// answer is a JSON object: `choice`, one of `preserve`, `discard`, `swap`; `pages`, how many
    /// to swap out now; `seconds`, after which to ask again; `remaining`, the expected seconds left
    /// (from `expected_ns`, else from earlier waits of this user); `chunk`, the tokens to compute
    /// at once after a discard; `restore`, the seconds until the context is back after this choice.
    /// Errors: `invalid-handle` (also for a page twice), `invalid-argument`, `unsupported`.
    pub fn advise(queue: u32, pages: &[u32], wait: &str) -> Result<String> {
        call(|area| unsafe {
            imports::advise(queue, pages.as_ptr(), pages.len(), wait.as_ptr(), wait.len(), area)
        })
    }

    /// Reports the duration of a finished wait for a tool, for `advise` to this and other instances
    /// of the user.
    /// Errors: `limit-exceeded` (the name is too long).
    pub fn note_wait(tool: &str, time: Duration) -> Result {
        call(|area| unsafe {
            imports::note_wait(tool.as_ptr(), tool.len(), nanoseconds(time), area)
        })
    }
}

/// The prefix cache: shared prefixes, found by their tokens. Each user has a cache of their own,
/// unless the operator shares one among all users.
///
/// The server tracks the provenance of this instance's pages from its first `match_prefix` of a
/// model on. A page can enter the cache if it holds text: tokens of `embed_txt` and `embed_sampled`
/// at the positions 0, 1, ..., each run by a `forward` (or all by one adapter) without a mask,
/// whose input pages were those of all tokens before it, in order. An embed counts if it was the
/// newest that the instance wrote, on the queue of the forward.
pub mod prefix_cache {
    use crate::abi::call;
    use crate::error::Result;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/prefix-cache@0.1.0")]
        unsafe extern "C" {
            #[link_name = "match-prefix"]
            pub fn match_prefix(
                queue: u32,
                adapter: *const u8,
                adapter_length: usize,
                tokens: *const u32,
                tokens_length: usize,
                area: *mut usize,
            );
            #[link_name = "insert-prefix"]
            pub fn insert_prefix(
                queue: u32,
                pages: *const u32,
                pages_length: usize,
                area: *mut usize,
            );
        }
    }

    /// Maps the cached pages of the longest prefix of `tokens`, full pages only, and returns spans
    /// of them, and 0. They are immutable; `adapter` is that of the forwards that filled them, an
    /// empty text means none. If queued commands of any instance are computing more of these
    /// tokens, there are no spans, but a future that is ready when they have run or failed: `take`
    /// it, and call again.
    /// Errors: `invalid-handle`, `unsupported`, `not-found` (no such adapter), `limit-exceeded`.
    pub fn match_prefix(queue: u32, adapter: &str, tokens: &[u32]) -> Result<(Vec<u32>, u32)> {
        call(|area| unsafe {
            imports::match_prefix(
                queue,
                adapter.as_ptr(),
                adapter.len(),
                tokens.as_ptr(),
                tokens.len(),
                area,
            )
        })
    }

    /// Inserts the first pages of a text, in order. Pages that are full, or will be once the queued
    /// commands have run, become immutable and are found from then on; returns how many, 0 if the
    /// server does not know what the pages hold. The cache keeps unreferenced pages until their
    /// memory is needed, and evicts the least recently used first (LRU).
    /// Errors: `invalid-handle`, `swapped-out`.
    pub fn insert_prefix(queue: u32, pages: &[u32]) -> Result<u32> {
        call(|area| unsafe { imports::insert_prefix(queue, pages.as_ptr(), pages.len(), area) })
    }
}

/// Text into embeds.
pub mod input_text {
    use crate::abi::call;
    use crate::error::Result;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/input-text@0.1.0")]
        unsafe extern "C" {
            #[link_name = "embed-txt"]
            pub fn embed_txt(
                queue: u32,
                tokens: *const u32,
                tokens_length: usize,
                positions: *const u32,
                positions_length: usize,
                embeds: *const u32,
                embeds_length: usize,
                area: *mut usize,
            );
        }
    }

    /// Embeds tokens at positions into embeds; the three have the same length. `positions` are
    /// spans, like handles: `[0, 9]` is the positions 0 to 8.
    /// Errors: `invalid-handle`, `invalid-argument` (a token outside the vocabulary, a position
    /// outside the model's context, lengths that disagree), `limit-exceeded`.
    pub fn embed_txt(queue: u32, tokens: &[u32], positions: &[u32], embeds: &[u32]) -> Result {
        call(|area| unsafe {
            imports::embed_txt(
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
}

/// Images into embeds, which are inputs like those of text. The model's chat format determines the
/// tokens around them.
pub mod input_image {
    use crate::abi::call;
    use crate::error::Result;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/input-image@0.1.0")]
        unsafe extern "C" {
            #[link_name = "num-embs-needed"]
            pub fn num_embs_needed(
                model: *const u8,
                model_length: usize,
                width: u32,
                height: u32,
                area: *mut usize,
            );
            #[link_name = "num-positions-needed"]
            pub fn num_positions_needed(
                model: *const u8,
                model_length: usize,
                width: u32,
                height: u32,
                area: *mut usize,
            );
            #[link_name = "image-size"]
            pub fn image_size(image: *const u8, image_length: usize, area: *mut usize);
            #[link_name = "embed-img"]
            pub fn embed_img(
                queue: u32,
                image: *const u8,
                image_length: usize,
                positions: *const u32,
                positions_length: usize,
                embeds: *const u32,
                embeds_length: usize,
                area: *mut usize,
            );
        }
    }

    /// The number of embeds that an image of this size in pixels takes.
    /// Errors: `unknown-model`, `unsupported` (the model reads text only), `invalid-argument` (no
    /// pixels, or one side more than 200 times the other), `limit-exceeded` (too many pixels).
    pub fn num_embs_needed(model: &str, width: u32, height: u32) -> Result<u32> {
        call(|area| unsafe {
            imports::num_embs_needed(model.as_ptr(), model.len(), width, height, area)
        })
    }

    /// The number of positions that an image of this size in pixels takes: what follows it stands so
    /// much further on. They are fewer than its embeds where a model sees rows and columns (Qwen 3
    /// VL): as many as the longer of the two has embeds.
    /// Errors: as `num_embs_needed`.
    pub fn num_positions_needed(model: &str, width: u32, height: u32) -> Result<u32> {
        call(|area| unsafe {
            imports::num_positions_needed(model.as_ptr(), model.len(), width, height, area)
        })
    }

    /// Width and height of an image file as displayed (Exif orientation applied).
    /// Errors: `invalid-argument` (no image).
    pub fn image_size(image: &[u8]) -> Result<(u32, u32)> {
        call(|area| unsafe { imports::image_size(image.as_ptr(), image.len(), area) })
    }

    /// Embeds an image file. There are as many embeds as `num_embs_needed` says, row by row, and as
    /// many positions (spans, as of `embed_txt`) as `num_positions_needed` says. Where these are
    /// fewer, they follow one another, and all embeds stand at the first of them: their rows and
    /// columns are the embeds' own. An error beyond the file's header fails the command when it
    /// runs: the next `synchronize` is `invalid-argument`.
    /// Errors: `invalid-handle`, `unsupported`, `invalid-argument`, `limit-exceeded`.
    pub fn embed_img(queue: u32, image: &[u8], positions: &[u32], embeds: &[u32]) -> Result {
        call(|area| unsafe {
            imports::embed_img(
                queue,
                image.as_ptr(),
                image.len(),
                positions.as_ptr(),
                positions.len(),
                embeds.as_ptr(),
                embeds.len(),
                area,
            )
        })
    }
}

/// Text to tokens and back.
pub mod tokenize {
    use crate::abi::call;
    use crate::error::Result;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/tokenize@0.1.0")]
        unsafe extern "C" {
            pub fn tokenize(
                model: *const u8,
                model_length: usize,
                text: *const u8,
                text_length: usize,
                area: *mut usize,
            );
            pub fn detokenize(
                model: *const u8,
                model_length: usize,
                tokens: *const u32,
                tokens_length: usize,
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
                messages_length: usize,
                add_generation_prompt: u32,
                area: *mut usize,
            );
        }
    }

    /// Token ids of a text; special tokens written in the text are recognised, none is added.
    /// Errors: `unknown-model`, `limit-exceeded` (text too long).
    pub fn tokenize(model: &str, text: &str) -> Result<Vec<u32>> {
        call(|area| unsafe {
            imports::tokenize(model.as_ptr(), model.len(), text.as_ptr(), text.len(), area)
        })
    }

    /// Text of token ids, special tokens included. Incomplete UTF-8 becomes U+FFFD.
    /// Errors: `unknown-model`, `invalid-argument`.
    pub fn detokenize(model: &str, tokens: &[u32]) -> Result<String> {
        call(|area| unsafe {
            imports::detokenize(model.as_ptr(), model.len(), tokens.as_ptr(), tokens.len(), area)
        })
    }

    /// The bytes of every token, by id. Large: ask once.
    /// Errors: `unknown-model`.
    pub fn get_vocabs(model: &str) -> Result<Vec<Vec<u8>>> {
        call(|area| unsafe { imports::get_vocabs(model.as_ptr(), model.len(), area) })
    }

    /// Special tokens, as their texts and ids.
    /// Errors: `unknown-model`.
    pub fn special_tokens(model: &str) -> Result<Vec<(String, u32)>> {
        call(|area| unsafe { imports::special_tokens(model.as_ptr(), model.len(), area) })
    }

    /// Renders messages, a JSON list of `{"role": ..., "content": ...}`, with the model's chat
    /// template, as `transformers` does. An object instead of the list has the template's arguments:
    /// `messages`, and `tools`, `documents`, `enable_thinking` or what else it takes; there,
    /// `chat_template` names one of several templates. `add_generation_prompt` appends what starts
    /// the assistant's turn. Control tokens in messages of users and tools are mere text, kept apart
    /// by code points that `tokenize` drops, unless the object has `control_tokens`, true.
    /// Errors: `unknown-model`, `unsupported` (the model has no template, or a broken one),
    /// `invalid-argument` (the template refuses the messages), `limit-exceeded` (it takes too long).
    pub fn apply_chat_template(
        model: &str,
        messages: &str,
        add_generation_prompt: bool,
    ) -> Result<String> {
        call(|area| unsafe {
            imports::apply_chat_template(
                model.as_ptr(),
                model.len(),
                messages.as_ptr(),
                messages.len(),
                add_generation_prompt.into(),
                area,
            )
        })
    }
}

/// Output embeds into distributions over tokens, or into numbers.
pub mod output_text {
    use crate::abi::call;
    use crate::error::Result;
    use crate::future::HostFuture;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/output-text@0.1.0")]
        unsafe extern "C" {
            #[link_name = "get-next-dist"]
            pub fn get_next_dist(queue: u32, embed: u32, k: u32, area: *mut usize);
            #[link_name = "take-dist"]
            pub fn take_dist(future: u32, area: *mut usize);
            #[link_name = "get-hidden"]
            pub fn get_hidden(
                queue: u32,
                embeds: *const u32,
                embeds_length: usize,
                area: *mut usize,
            );
            #[link_name = "take-hidden"]
            pub fn take_hidden(future: u32, area: *mut usize);
        }
    }

    /// A distribution: token ids, and their probabilities (of the
    /// softmax over the whole vocabulary, temperature 1), most likely first.
    #[derive(Clone, Debug, PartialEq)]
    #[allow(missing_docs)]
    pub struct Distribution {
        pub tokens: Vec<u32>,
        pub probabilities: Vec<f32>,
    }

    /// The `k` most likely next tokens after an output embed. `k` is at least 1; more than the
    /// vocabulary means the whole vocabulary; 256 is usual.
    /// Gives: a distribution, by `take_dist`.
    /// Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
    pub fn get_next_dist(queue: u32, embed: u32, k: u32) -> HostFuture<Distribution> {
        let started = call(|area| unsafe { imports::get_next_dist(queue, embed, k, area) });
        HostFuture::new(started, take_dist)
    }

    /// Consumes a ready future of a distribution: token ids, and their probabilities (of the
    /// softmax over the whole vocabulary, temperature 1), most likely first.
    /// Fields of `distribution`: `tokens`, `probabilities`.
    /// Errors: `invalid-handle`, `not-ready`, or the error of the operation.
    pub fn take_dist(future: u32) -> Result<Distribution> {
        let taken = call::<Result<_>>(|area| unsafe { imports::take_dist(future, area) })?;
        let (tokens, probabilities) = taken;
        Ok(Distribution { tokens, probabilities })
    }

    /// The mean of the hidden states in embeds (spans), of one embed its own. Those that a forward
    /// has written are after the model's final norm.
    /// Gives: numbers, by `take_hidden`.
    /// Errors: `invalid-handle`, `invalid-argument` (no embed, or one that holds nothing yet),
    /// `limit-exceeded` (more embeds than `max_batch_tokens`, too many queued commands).
    pub fn get_hidden(queue: u32, embeds: &[u32]) -> HostFuture<Vec<f32>> {
        let started =
            call(|area| unsafe { imports::get_hidden(queue, embeds.as_ptr(), embeds.len(), area) });
        HostFuture::new(started, take_hidden)
    }

    /// Consumes a ready future of a hidden state: its numbers.
    /// Errors: `invalid-handle`, `not-ready`, or the error of the operation.
    pub fn take_hidden(future: u32) -> Result<Vec<f32>> {
        call(|area| unsafe { imports::take_hidden(future, area) })
    }
}

/// Output embeds into tokens, chosen where the model runs.
///
/// A sampler keeps the state of one text: parameters, a seed, the number of tokens chosen, the
/// counts of tokens, and the last one. A choice depends only on those, the distribution and the
/// mask: the same seed gives the same tokens, whatever else the server does. (A different batch may
/// round the distribution differently in the last bit.)
pub mod sample {
    use crate::abi::{call, texts};
    use crate::error::Result;
    use crate::future::HostFuture;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/sample@0.1.0")]
        unsafe extern "C" {
            #[link_name = "create-sampler"]
            pub fn create_sampler(
                queue: u32,
                parameters: *const u8,
                parameters_length: usize,
                area: *mut usize,
            );
            #[link_name = "sampler-facts"]
            pub fn sampler_facts(queue: u32, sampler: u32, area: *mut usize);
            #[link_name = "destroy-sampler"]
            pub fn destroy_sampler(queue: u32, sampler: u32, area: *mut usize);
            #[link_name = "feed-sampler"]
            pub fn feed_sampler(
                queue: u32,
                sampler: u32,
                tokens: *const u32,
                tokens_length: usize,
                generated: u32,
                area: *mut usize,
            );
            #[link_name = "read-state"]
            pub fn read_state(queue: u32, sampler: u32, area: *mut usize);
            #[link_name = "write-state"]
            pub fn write_state(
                queue: u32,
                sampler: u32,
                state: *const u8,
                state_length: usize,
                area: *mut usize,
            );
            #[link_name = "mix-logits"]
            pub fn mix_logits(
                queue: u32,
                embed: u32,
                sampler_queue: u32,
                sampler: u32,
                area: *mut usize,
            );
            pub fn sample(queue: u32, embed: u32, sampler: u32, area: *mut usize);
            #[link_name = "sample-masked"]
            pub fn sample_masked(
                queue: u32,
                embed: u32,
                sampler: u32,
                mask: *const u32,
                mask_length: usize,
                area: *mut usize,
            );
            #[link_name = "take-sample"]
            pub fn take_sample(future: u32, area: *mut usize);
            #[link_name = "embed-sampled"]
            pub fn embed_sampled(
                queue: u32,
                sampler: u32,
                position: u32,
                embed: u32,
                area: *mut usize,
            );
            pub fn step(
                queue: u32,
                sampler: u32,
                position: u32,
                embed: u32,
                input_pages: *const u32,
                input_pages_length: usize,
                output_page: u32,
                adapter: *const u8,
                adapter_length: usize,
                area: *mut usize,
            );
            #[link_name = "start-run"]
            pub fn start_run(
                queue: u32,
                sampler: u32,
                embed: u32,
                position: u32,
                own_embed: u32,
                input_pages: *const u32,
                input_pages_length: usize,
                output_pages: *const u32,
                output_pages_length: usize,
                adapter: *const u8,
                adapter_length: usize,
                most: u32,
                stops: *const u32,
                stops_length: usize,
                area: *mut usize,
            );
            pub fn speculate(
                queue: u32,
                run: u32,
                text: *const u32,
                text_length: usize,
                most: u32,
                area: *mut usize,
            );
            #[link_name = "speculate-with"]
            pub fn speculate_with(
                queue: u32,
                run: u32,
                draft_queue: u32,
                draft_run: u32,
                most: u32,
                area: *mut usize,
            );
            #[link_name = "run-progress"]
            pub fn run_progress(queue: u32, run: u32, count: u32, area: *mut usize);
            #[link_name = "take-tokens"]
            pub fn take_tokens(queue: u32, run: u32, area: *mut usize);
            #[link_name = "next-tokens"]
            pub fn next_tokens(queue: u32, run: u32, count: u32, area: *mut usize);
            #[link_name = "run-text"]
            pub fn run_text(
                queue: u32,
                run: u32,
                before: *const u32,
                before_length: usize,
                ends: *const [usize; 2],
                ends_length: usize,
                hidden: *const u32,
                hidden_length: usize,
                to_client: u32,
                area: *mut usize,
            );
            #[link_name = "take-run-text"]
            pub fn take_run_text(future: u32, area: *mut usize);
            #[link_name = "end-run"]
            pub fn end_run(queue: u32, run: u32, count: u32, area: *mut usize);
        }
    }

    /// A token: the token, its log-probability, and the most likely
    /// tokens, most likely first, with theirs. Log-probabilities are those of the model's own
    /// distribution, as in `take_dist`: before masks, and before what the sampler does.
    #[derive(Clone, Debug, PartialEq)]
    #[allow(missing_docs)]
    pub struct Sampled {
        pub token: u32,
        pub logprob: f32,
        pub top_tokens: Vec<u32>,
        pub top_logprobs: Vec<f32>,
    }

    /// Makes a sampler of the queue's model. `parameters` is a JSON object; an empty text is `{}`:
    /// `seed` (0 to 2^64 - 1; random by default), `logprobs` (0; the number of most likely tokens
    /// that `take_sample` also reports, 256 at most), and *fields*, such as `temperature` and
    /// `top_p`, which say what the logits go through behind the mask of `sample_masked` or
    /// `grammar`: docs/device-programs.md has all of them, in the order of their steps.
    ///
    /// In the place of fields there may be a *device program*: `program` is its name in the library,
    /// or a list of texts in its language, its own first, each with a file's name and the number of
    /// its first line; `constants` an object of values that the texts name, and `given` one of
    /// values for its state. The guest waits while texts are read that the server has not seen.
    ///
    /// Beside all of that, `attend` is a device program of the stage of this name, an object of
    /// `program`, `constants` and `given`: it chooses, layer by layer, what the forwards of `step`
    /// and of runs of this sampler read of their context. It is `unsupported` by models without keys
    /// or weights of heads. One that takes weights is also told those of its prompt: of the forwards
    /// of this queue from here up to the sampler's first choice, which read all that they may.
    /// Errors: `invalid-handle`, `invalid-argument`, `unsupported`, `limit-exceeded`,
    /// `out-of-resources`.
    pub fn create_sampler(queue: u32, parameters: &str) -> Result<u32> {
        call(|area| unsafe {
            imports::create_sampler(queue, parameters.as_ptr(), parameters.len(), area)
        })
    }

    /// What a sampler's device programs need, a JSON object: `looks_back` (to be told by
    /// `feed_sampler` of tokens that it did not choose), `counts` (how often each occurs),
    /// `has_state` (that changes from token to token), `beside` (how many calls of `mix_logits`
    /// before a choice), `window` (how many of the prompt's last inputs `attend` takes the weights
    /// of: 0 for all, null for none).
    /// Errors: `invalid-handle`.
    pub fn sampler_facts(queue: u32, sampler: u32) -> Result<String> {
        call(|area| unsafe { imports::sampler_facts(queue, sampler, area) })
    }

    /// Ends a sampler once the commands queued before have taken effect; its handle is invalid at
    /// once.
    /// Errors: `invalid-handle`.
    pub fn destroy_sampler(queue: u32, sampler: u32) -> Result {
        call(|area| unsafe { imports::destroy_sampler(queue, sampler, area) })
    }

    /// Tells a sampler of tokens that it did not choose, for programs that look back: `generated`
    /// ones, or those of the prompt. It knows the tokens that it chooses by itself.
    /// Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
    pub fn feed_sampler(queue: u32, sampler: u32, tokens: &[u32], generated: bool) -> Result {
        call(|area| unsafe {
            imports::feed_sampler(
                queue,
                sampler,
                tokens.as_ptr(),
                tokens.len(),
                generated.into(),
                area,
            )
        })
    }

    /// Asks for the state of a sampler that is a device program, after the choices queued before:
    /// a JSON object that has, of each name that changes, a number, a boolean, or lists of them;
    /// null is a number that JSON has not.
    /// Gives: a JSON object, by `take_text`.
    /// Errors: `invalid-handle`, `invalid-argument` (no device program), `limit-exceeded`.
    pub fn read_state(queue: u32, sampler: u32) -> HostFuture<String> {
        let started = call(|area| unsafe { imports::read_state(queue, sampler, area) });
        HostFuture::new(started, super::runtime::take_text)
    }

    /// Gives names of a sampler that is a device program other values, from the next choice queued
    /// on: a JSON object with values as `create_sampler` takes them. What changes goes on from
    /// there, what does not has the value until it is given another.
    /// Errors: `invalid-handle`, `invalid-argument` (no device program, no such name, a value of
    /// another kind or size), `limit-exceeded`.
    pub fn write_state(queue: u32, sampler: u32, state: &str) -> Result {
        call(|area| unsafe {
            imports::write_state(queue, sampler, state.as_ptr(), state.len(), area)
        })
    }

    /// Gives the next choice of a device program the logits after an embed, for it to read: of this
    /// model or another one with as many tokens. Called before a choice for each context beside that
    /// the program reads, in their order; a run can't have any.
    /// Errors: `invalid-handle`, `invalid-argument` (it reads no more, or models of different
    /// size), `limit-exceeded`, `out-of-resources`.
    pub fn mix_logits(queue: u32, embed: u32, sampler_queue: u32, sampler: u32) -> Result {
        call(|area| unsafe { imports::mix_logits(queue, embed, sampler_queue, sampler, area) })
    }

    /// Chooses a token that follows an output embed. The sampler moves on even if the future is
    /// cancelled.
    /// Gives: a token, by `take_sample`.
    /// Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
    pub fn sample(queue: u32, embed: u32, sampler: u32) -> HostFuture<Sampled> {
        let started = call(|area| unsafe { imports::sample(queue, embed, sampler, area) });
        HostFuture::new(started, take_sample)
    }

    /// As `sample`, among the tokens that a mask allows: bit `t % 32` of word `t / 32` is token
    /// `t`.
    /// Gives: a token, by `take_sample`.
    /// Errors: as `sample`.
    pub fn sample_masked(
        queue: u32,
        embed: u32,
        sampler: u32,
        mask: &[u32],
    ) -> HostFuture<Sampled> {
        let started = call(|area| unsafe {
            imports::sample_masked(queue, embed, sampler, mask.as_ptr(), mask.len(), area)
        });
        HostFuture::new(started, take_sample)
    }

    /// Consumes a ready future of a token: the token, its log-probability, and the most likely
    /// tokens, most likely first, with theirs. Log-probabilities are those of the model's own
    /// distribution, as in `take_dist`: before masks, and before what the sampler does.
    /// Fields of `sampled`: `token`, `logprob`, `top_tokens`, `top_logprobs`.
    /// Errors: `invalid-handle`, `not-ready`; `invalid-argument` (every token is ruled out); or the
    /// error of the operation.
    pub fn take_sample(future: u32) -> Result<Sampled> {
        let taken = call::<Result<_>>(|area| unsafe { imports::take_sample(future, area) })?;
        let (token, logprob, top_tokens, top_logprobs) = taken;
        Ok(Sampled { token, logprob, top_tokens, top_logprobs })
    }

    /// Embeds the token of the sampler's latest `sample` call, at a position, whether or not it is
    /// known already: the next steps can be queued before this one has run. If no token could be
    /// chosen, this command fails, and the commands behind it in its queue with it.
    /// Errors: `invalid-handle`, `invalid-argument` (nothing was sampled yet), `limit-exceeded`.
    pub fn embed_sampled(queue: u32, sampler: u32, position: u32, embed: u32) -> Result {
        call(|area| unsafe { imports::embed_sampled(queue, sampler, position, embed, area) })
    }

    /// A generation's next step, in one call: `embed_sampled`; the forward of that embed over the
    /// input pages, through an adapter if one is named, with keys and values into a page and the
    /// hidden state into the embed itself; and `sample` of it, whose future is returned. An error
    /// leaves none of them queued.
    /// Gives: a token, by `take_sample`.
    /// Errors: as of these three functions, and of `forward_with_adapter`.
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
            imports::step(
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

    /// Starts a *run*, which chooses up to `most` tokens in one call, and returns its handle. The
    /// first token is `sample` of `embed`. Each token is followed by the next as by `step`: it goes
    /// through the model at the next position, from `position` on, over the input pages and all
    /// that the run has written; keys and values fill the output pages and then pages that the run
    /// takes itself. Its hidden states go into `own_embed`; `embed` keeps what it holds. The run is
    /// over with the first of the `stops`, with its last token, or with an error.
    ///
    /// Commands behind it in its queue wait until it is over. Until `end_run` the output pages are
    /// `immutable` and show the fill counts that they have now. Of the output pages only the first
    /// that is not full may hold something, and then it has to be among the input pages.
    /// Errors: as of `step`; `invalid-argument` (no token wanted, or more than the model's context
    /// holds).
    pub fn start_run(
        queue: u32,
        sampler: u32,
        embed: u32,
        position: u32,
        own_embed: u32,
        input_pages: &[u32],
        output_pages: &[u32],
        adapter: &str,
        most: u32,
        stops: &[u32],
    ) -> Result<u32> {
        call(|area| unsafe {
            imports::start_run(
                queue,
                sampler,
                embed,
                position,
                own_embed,
                input_pages.as_ptr(),
                input_pages.len(),
                output_pages.as_ptr(),
                output_pages.len(),
                adapter.as_ptr(),
                adapter.len(),
                most,
                stops.as_ptr(),
                stops.len(),
                area,
            )
        })
    }

    /// Has a run guess its next tokens from now on, up to `most` of them at a time, 1 to 16: what
    /// came after its last tokens where they came before, in `text`, the tokens of its context, or
    /// among its own (prompt lookup). Guesses go through the model together with the token before
    /// them, and those stand that are what the sampler chooses anyway: the tokens are the same as
    /// without, at any temperature, and come sooner where a text repeats. The server guesses only
    /// where that has been worth its time. Nothing changes where choices depend on more than the
    /// text and their number, as with a device program that has state or looks at the text, and for
    /// models with recurrent layers. Other texts that this one may repeat may stand before the
    /// context's tokens. With no text, nothing is looked up: the guesses are what the sampler chose
    /// behind the first wrong guess of the step before, then its last token again (Jacobi decoding).
    /// Errors: `invalid-handle`, `invalid-argument` (no guess, or more than 16; a number that is no
    /// token; more tokens than the model's context holds).
    pub fn speculate(queue: u32, run: u32, text: &[u32], most: u32) -> Result {
        call(|area| unsafe {
            imports::speculate(queue, run, text.as_ptr(), text.len(), most, area)
        })
    }

    /// Has a run guess its next tokens from now on as another run chooses them, of a smaller model
    /// with the same vocabulary: up to `most` at a time, 1 to 16. Both have begun behind the same
    /// text, and the other one has just been started. It goes as far as guesses are wanted then, and
    /// its tokens cannot be waited for; what was guessed wrongly is undone, in its pages too, and
    /// `take_tokens` gives what it has. The tokens of `run` are the same as without.
    /// Errors: `invalid-handle`, `unsupported`, `invalid-argument` (no guess, or more than 16; a run
    /// of another vocabulary, one whose tokens were taken or waited for, or one that guesses or
    /// drafts itself).
    pub fn speculate_with(
        queue: u32,
        run: u32,
        draft_queue: u32,
        draft_run: u32,
        most: u32,
    ) -> Result {
        call(|area| unsafe {
            imports::speculate_with(queue, run, draft_queue, draft_run, most, area)
        })
    }

    /// Ready when `count` tokens of a run are there that were not taken, or the run is over. The run
    /// goes on by itself to a few tokens more than were asked for.
    /// Gives: nothing, by `take`.
    /// Errors: `invalid-handle`, `invalid-argument` (no token), `limit-exceeded`.
    pub fn run_progress(queue: u32, run: u32, count: u32) -> HostFuture<()> {
        let started = call(|area| unsafe { imports::run_progress(queue, run, count, area) });
        HostFuture::new(started, super::runtime::take)
    }

    /// Takes the tokens of a run that are there and were not taken; none if the run is over. The
    /// token that has ended the run is the last one.
    /// Errors: `invalid-handle`; or the error that has ended the run, once all tokens before it are
    /// taken.
    pub fn take_tokens(queue: u32, run: u32) -> Result<Vec<u32>> {
        call(|area| unsafe { imports::take_tokens(queue, run, area) })
    }

    /// Waits until `count` tokens of a run can be taken or it is over, and takes all that are
    /// there, in one call.
    /// Errors: as of `run_progress` and `take_tokens`.
    pub fn next_tokens(queue: u32, run: u32, count: u32) -> Result<Vec<u32>> {
        call(|area| unsafe { imports::next_tokens(queue, run, count, area) })
    }

    /// Has the server read a run as text, that of all its tokens, so that the guest is woken at its
    /// end alone. The text is that of the tokens' bytes, as `get_vocabs` has them; bytes that are no
    /// character are U+FFFD. The tokens `before` stand before the run's first one, which may end a
    /// character that they begin. A stop token has no text, nor have tokens in the spans `hidden`.
    /// The first of the strings `ends` that comes in the text ends the run; the text ends before it.
    ///
    /// With `to_client` the text goes to the client as it comes, in messages of whole characters as
    /// by `send`, while the client has room; what may be the start of one of the `ends` waits. The
    /// run goes a few tokens beyond what is sent. The future is ready when all has been sent;
    /// cancelled, no more is sent. The run's tokens can be taken as ever.
    /// Gives: the text and where it has ended, by `take_run_text`.
    /// Errors: `invalid-handle`, `invalid-argument` (an empty string, a span without its count),
    /// `limit-exceeded` (more than 1024 characters in `ends`, or 512 spans).
    pub fn run_text(
        queue: u32,
        run: u32,
        before: &[u32],
        ends: &[&str],
        hidden: &[u32],
        to_client: bool,
    ) -> HostFuture<(String, u32, u32)> {
        let ends = texts(ends);
        let started = call(|area| unsafe {
            imports::run_text(
                queue,
                run,
                before.as_ptr(),
                before.len(),
                ends.as_ptr(),
                ends.len(),
                hidden.as_ptr(),
                hidden.len(),
                to_client.into(),
                area,
            )
        });
        HostFuture::new(started, take_run_text)
    }

    /// Consumes a ready future of `run_text`: the text, how many of the run's tokens belong to it
    /// with the one that has ended it, and the number of the string in `ends` that has ended it, or
    /// how many there are if none has. Those tokens are what `end_run` should keep.
    /// Errors: `invalid-handle`, `not-ready`; or the error that has ended the run.
    pub fn take_run_text(future: u32) -> Result<(String, u32, u32)> {
        call(|area| unsafe { imports::take_run_text(future, area) })
    }

    /// Ends a run, over or not. Its first `count` tokens stand, and all that comes after them is
    /// undone: the pages hold these tokens but the last, and the sampler goes on as if it had
    /// chosen no more. Returns, as spans, the pages that the run has taken and that hold tokens;
    /// the others are given back.
    /// Errors: `invalid-handle`, `invalid-argument` (more tokens than there are).
    pub fn end_run(queue: u32, run: u32, count: u32) -> Result<Vec<u32>> {
        call(|area| unsafe { imports::end_run(queue, run, count, area) })
    }
}

/// Constrains tokens to a JSON schema, a regular expression or a context-free grammar.
///
/// A *matcher* is a position in a compiled grammar: it knows the tokens that may come next. Where
/// the text may end, the model's stop tokens are allowed as well. While a token of a matcher is
/// being sampled, other uses of it are `busy`.
pub mod grammar {
    use crate::abi::call;
    use crate::error::Result;
    use crate::future::HostFuture;

    mod imports {
        #[link(wasm_import_module = "pie:inferlet/grammar@0.1.0")]
        unsafe extern "C" {
            #[link_name = "compile-grammar"]
            pub fn compile_grammar(
                model: *const u8,
                model_length: usize,
                kind: *const u8,
                kind_length: usize,
                text: *const u8,
                text_length: usize,
                area: *mut usize,
            );
            #[link_name = "take-grammar"]
            pub fn take_grammar(future: u32, area: *mut usize);
            #[link_name = "release-grammar"]
            pub fn release_grammar(grammar: u32, area: *mut usize);
            #[link_name = "create-matcher"]
            pub fn create_matcher(grammar: u32, area: *mut usize);
            #[link_name = "destroy-matcher"]
            pub fn destroy_matcher(matcher: u32, area: *mut usize);
            pub fn advance(
                matcher: u32,
                tokens: *const u32,
                tokens_length: usize,
                area: *mut usize,
            );
            pub fn rollback(matcher: u32, count: u32, area: *mut usize);
            #[link_name = "count-allowed"]
            pub fn count_allowed(
                matcher: u32,
                tokens: *const u32,
                tokens_length: usize,
                area: *mut usize,
            );
            #[link_name = "is-accepting"]
            pub fn is_accepting(matcher: u32, area: *mut usize);
            #[link_name = "is-finished"]
            pub fn is_finished(matcher: u32, area: *mut usize);
            #[link_name = "grammar-mask"]
            pub fn grammar_mask(matcher: u32, area: *mut usize);
            #[link_name = "grammar-forced"]
            pub fn grammar_forced(matcher: u32, area: *mut usize);
            #[link_name = "sample-constrained"]
            pub fn sample_constrained(
                queue: u32,
                embed: u32,
                sampler: u32,
                matcher: u32,
                area: *mut usize,
            );
        }
    }

    /// Compiles a grammar for a model's tokens. `kind` is `json-schema`, `regex` (Rust's syntax,
    /// over the whole text), `lark` or `ebnf` (EBNF in Lark's syntax, with the rule `start`, or
    /// llama.cpp's GBNF, with the rule `root`), or `sequence` (a JSON list of `[kind, text]`, each
    /// behind the one before). The same text is compiled once.
    ///
    /// A schema's keys come in its order, also of one within `lark` (`%json {...}`). Its
    /// `x-guidance` is an object of options: `strict` (false; objects and lists have nothing but
    /// what is named, where the schema does not say), `any_whitespace` (false: as Python's `json`
    /// writes it), `any_key_order` (false). What a grammar cannot hold a text to is refused by its
    /// name.
    ///
    /// In `lark` and `ebnf` a terminal, a rule of texts and regular expressions alone, takes as much
    /// text as it can.
    /// Gives: the grammar's handle, by `take_grammar`.
    /// Errors: `unknown-model`, `invalid-argument`, `limit-exceeded`; of the future:
    /// `invalid-argument` (the grammar is wrong), `limit-exceeded` (too large or too slow),
    /// `unsupported`.
    pub fn compile_grammar(model: &str, kind: &str, text: &str) -> HostFuture<u32> {
        let started = call(|area| unsafe {
            imports::compile_grammar(
                model.as_ptr(),
                model.len(),
                kind.as_ptr(),
                kind.len(),
                text.as_ptr(),
                text.len(),
                area,
            )
        });
        HostFuture::new(started, take_grammar)
    }

    /// Consumes a ready future of a grammar and returns the grammar's handle.
    /// Errors: `invalid-handle`, `not-ready`, `limit-exceeded`, or the error of the operation.
    pub fn take_grammar(future: u32) -> Result<u32> {
        call(|area| unsafe { imports::take_grammar(future, area) })
    }

    /// Ends a grammar's handle; its matchers go on. Errors: `invalid-handle`.
    pub fn release_grammar(grammar: u32) -> Result {
        call(|area| unsafe { imports::release_grammar(grammar, area) })
    }

    /// A matcher at a grammar's start. Errors: `invalid-handle`, `limit-exceeded`.
    pub fn create_matcher(grammar: u32) -> Result<u32> {
        call(|area| unsafe { imports::create_matcher(grammar, area) })
    }

    /// Ends a matcher. Errors: `invalid-handle`.
    pub fn destroy_matcher(matcher: u32) -> Result {
        call(|area| unsafe { imports::destroy_matcher(matcher, area) })
    }

    /// Consumes tokens, all or none of them, at most 1024; whether the text may end then.
    /// Errors: `invalid-handle`, `invalid-argument` (a token that is not allowed), `busy`,
    /// `limit-exceeded` (the grammar is too complex).
    pub fn advance(matcher: u32, tokens: &[u32]) -> Result<bool> {
        call(|area| unsafe { imports::advance(matcher, tokens.as_ptr(), tokens.len(), area) })
    }

    /// Takes the last `count` tokens back. Errors: `invalid-handle`, `invalid-argument`, `busy`.
    pub fn rollback(matcher: u32, count: u32) -> Result {
        call(|area| unsafe { imports::rollback(matcher, count, area) })
    }

    /// How many of the tokens, from the first on, `advance` would consume; nothing changes.
    /// Errors: `invalid-handle`, `invalid-argument`, `busy`.
    pub fn count_allowed(matcher: u32, tokens: &[u32]) -> Result<u32> {
        call(|area| unsafe { imports::count_allowed(matcher, tokens.as_ptr(), tokens.len(), area) })
    }

    /// Whether the text may end here. Errors: `invalid-handle`.
    pub fn is_accepting(matcher: u32) -> Result<bool> {
        call(|area| unsafe { imports::is_accepting(matcher, area) })
    }

    /// Whether the text must end here, or has ended with a stop token. Errors: `invalid-handle`.
    pub fn is_finished(matcher: u32) -> Result<bool> {
        call(|area| unsafe { imports::is_finished(matcher, area) })
    }

    /// The tokens allowed next: bit `t % 32` of word `t / 32` is token `t`. As `sample_masked`
    /// takes it.
    /// Errors: `invalid-handle`, `busy`, `limit-exceeded` (the grammar is too complex).
    pub fn grammar_mask(matcher: u32) -> Result<Vec<u32>> {
        call(|area| unsafe { imports::grammar_mask(matcher, area) })
    }

    /// The tokens that the grammar forces next, possibly none, at most 1024 at once; they are not
    /// consumed.
    /// Errors: `invalid-handle`, `busy`.
    pub fn grammar_forced(matcher: u32) -> Result<Vec<u32>> {
        call(|area| unsafe { imports::grammar_forced(matcher, area) })
    }

    /// As `sample::sample`, among the tokens that the matcher allows; the matcher then consumes the
    /// one chosen by itself, before the future is ready.
    /// Gives: a token, by `sample::take_sample`.
    /// Errors: as `sample::sample`, and `busy`.
    pub fn sample_constrained(
        queue: u32,
        embed: u32,
        sampler: u32,
        matcher: u32,
    ) -> HostFuture<super::sample::Sampled> {
        let started = call(|area| unsafe {
            imports::sample_constrained(queue, embed, sampler, matcher, area)
        });
        HostFuture::new(started, super::sample::take_sample)
    }
}
