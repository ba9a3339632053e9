//! HTTP requests, made by the server for the inferlet.
//!
//! ```ignore
//! let response = http::get("https://example.com/", &[]).await?.error_for_status()?;
//! let mut lines = response.lines();
//! while let Some(line) = lines.next_line().await? {
//!     session::send(&line)?;
//! }
//! ```
//!
//! The server's operator says which hosts may be reached. [`http_request`] and the others of that
//! form are the contract's own functions.

use std::time::Duration;

use crate::error::{Error, ErrorCode, Result};
use crate::future::HostFuture;
use crate::host::http as host;
use crate::json::{self, Value};

pub use crate::host::http::*;
pub use crate::host::http::{http_get as get, http_post as post};

/// Bytes that a [`Response`] asks for at once.
const CHUNK: u32 = 1 << 16;

/// An answer whose headers are there; its body comes as it is read. Dropped, it closes the body.
#[derive(Debug)]
pub struct Response {
    status: u32,
    headers: Vec<(String, String)>,
    url: String,
    body: Option<u32>,
}

impl Response {
    /// The status, whatever it is.
    pub fn status(&self) -> u32 {
        self.status
    }

    /// Where the answer came from: redirects may have led there.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Names in lower case, and values, in order.
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// True if the status is below 400.
    pub fn is_ok(&self) -> bool {
        self.status < 400
    }

    /// The response itself; a status of 400 or more is the error `remote-failed`.
    pub fn error_for_status(self) -> Result<Response> {
        if self.is_ok() {
            return Ok(self);
        }
        let message = format!("{}: status {}", self.url, self.status);
        Err(Error::new(ErrorCode::RemoteFailed, message))
    }

    /// The first value of a header, by its name in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The next bytes of the body as they arrive; `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(body) = self.body else { return Ok(None) };
        let read = read_body(body, CHUNK).await;
        match &read {
            Ok(data) if !data.is_empty() => return read.map(Some),
            _ => self.close(),
        }
        read.map(|_| None)
    }

    /// The rest of the body, line by line as it arrives (event streams, JSON lines).
    pub fn lines(self) -> Lines {
        Lines { response: self, data: Vec::new(), start: 0, searched: 0 }
    }

    /// The rest of the body.
    pub async fn bytes(mut self) -> Result<Vec<u8>> {
        let mut data = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            data.extend(chunk);
        }
        Ok(data)
    }

    /// The rest of the body, as UTF-8; what is none becomes U+FFFD.
    pub async fn text(self) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.bytes().await?).into_owned())
    }

    /// The rest of the body, read as JSON.
    pub async fn json(self) -> Result<Value> {
        json::parse(&self.text().await?)
    }

    /// Gives the rest of the body up.
    pub fn close(&mut self) {
        if let Some(body) = self.body.take() {
            // It can only fail for a handle that is gone, and gone is what it shall be.
            let _ = close_body(body);
        }
    }

    /// The body's handle, for [`read_body`] and [`close_body`]. It is no longer closed by itself.
    pub fn into_body(mut self) -> Result<u32> {
        let gone = || Error::new(ErrorCode::InvalidHandle, "the body is closed");
        self.body.take().ok_or_else(gone)
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        self.close();
    }
}

/// The lines of a body; see [`Response::lines`]. Dropped, it closes the body.
#[derive(Debug)]
pub struct Lines {
    response: Response,
    data: Vec<u8>,
    /// Where the next line begins in `data`.
    start: usize,
    /// Where its end has to be looked for: before, there is none.
    searched: usize,
}

impl Lines {
    /// The next line without its end (`\n` or `\r\n`), as UTF-8, where what is none becomes U+FFFD;
    /// `None` after the last.
    pub async fn next_line(&mut self) -> Result<Option<String>> {
        loop {
            let fresh = &self.data[self.searched..];
            if let Some(length) = fresh.iter().position(|byte| *byte == b'\n') {
                let end = self.searched + length;
                let line = &self.data[self.start..end];
                let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
                (self.start, self.searched) = (end + 1, end + 1);
                return Ok(Some(line.into_owned()));
            }
            self.data.drain(..self.start);
            (self.start, self.searched) = (0, self.data.len());
            match self.response.chunk().await? {
                Some(chunk) => self.data.extend(chunk),
                None if self.data.is_empty() => return Ok(None),
                None => {
                    let last = std::mem::take(&mut self.data);
                    self.searched = 0;
                    return Ok(Some(String::from_utf8_lossy(&last).into_owned()));
                }
            }
        }
    }
}

/// A request of any method. `timeout` bounds all, to the body's last byte.
pub fn request(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    timeout: Option<Duration>,
) -> HostFuture<Response> {
    let milliseconds = timeout.map_or(0, |time| time.as_millis().clamp(1, u32::MAX.into()) as u32);
    http_request(method, url, headers, body, milliseconds)
}

/// Consumes a ready future of an answer.
pub fn take_response(future: u32) -> Result<Response> {
    let (status, headers, body) = host::take_response(future)?;
    let mut response = Response { status, headers, url: String::new(), body: Some(body) };
    response.url = response_url(body)?;
    Ok(response)
}
