//! Tools of MCP (Model Context Protocol) servers that the operator, or a client of yours,
//! registered.
//!
//! ```ignore
//! let result = mcp::call_tool("calendar", "find_events", r#"{"day": "2026-11-21"}"#).await?;
//! session::send(&result.text())?;
//! ```

use crate::error::{Error, ErrorCode, Result};
use crate::future::HostFuture;
use crate::json::{self, Value};
use crate::runtime;

pub use crate::host::mcp::mcp_servers as servers;
pub use crate::host::mcp::*;

/// A tool's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolResult {
    /// MCP content blocks: objects with a `type`.
    pub content: Vec<Value>,
    /// The tool itself says that it failed; the content says why.
    pub is_error: bool,
    /// The value of the tool's output schema, or `Value::Null`.
    pub structured: Value,
}

impl ToolResult {
    /// The text blocks, a line end between them.
    pub fn text(&self) -> String {
        let texts: Vec<&str> =
            self.content.iter().filter_map(|block| block.get("text")?.as_str()).collect();
        texts.join("\n")
    }
}

/// The tools of a server: objects with `name`, `title`, `description`, `input_schema` and
/// `output_schema`, JSON Schemas.
pub fn list_tools(server: &str) -> HostFuture<Vec<Value>> {
    HostFuture::new(mcp_list_tools(server).into_handle(), take_tools)
}

/// Calls a tool with arguments, a JSON object. Dropped, the call is cancelled. A tool's own failure
/// is an answer, with `is_error`.
pub fn call_tool(server: &str, tool: &str, arguments: &str) -> HostFuture<ToolResult> {
    HostFuture::new(mcp_call_tool(server, tool, arguments).into_handle(), take_result)
}

fn take_tools(future: u32) -> Result<Vec<Value>> {
    let value = json::parse(&runtime::take_text(future)?)?;
    Ok(value.as_list().ok_or_else(|| unexpected("a list of tools"))?.to_vec())
}

fn take_result(future: u32) -> Result<ToolResult> {
    let value = json::parse(&runtime::take_text(future)?)?;
    let content = value.get("content").and_then(Value::as_list);
    Ok(ToolResult {
        content: content.ok_or_else(|| unexpected("content"))?.to_vec(),
        is_error: value.get("is_error").and_then(Value::as_bool).unwrap_or(false),
        structured: value.get("structured").cloned().unwrap_or(Value::Null),
    })
}

fn unexpected(wanted: &str) -> Error {
    Error::new(ErrorCode::Internal, format!("the server's answer has not {wanted}"))
}
