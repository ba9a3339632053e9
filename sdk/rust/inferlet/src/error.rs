//! Errors of the API.

use std::fmt;

use crate::host::CODES;

pub use crate::host::ErrorCode;

/// The result of a function of the API.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// An error of the API, or one of the inferlet's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The kind of error, for programs.
    pub code: ErrorCode,
    /// The fault, for people.
    pub message: String,
}

impl ErrorCode {
    /// The code as the contract spells it.
    pub const fn as_str(self) -> &'static str {
        CODES[self as usize].1
    }
}

/// The error of a call that was wrong.
pub(crate) fn invalid<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::new(ErrorCode::InvalidArgument, message))
}

impl Error {
    /// An error of any code.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Error {
        Error { code, message: message.into() }
    }

    /// An error of the inferlet's own.
    pub fn other(message: impl Into<String>) -> Error {
        Error::new(ErrorCode::Other, message)
    }

    /// Wrong arguments: the command line exits with status 2.
    pub fn usage(message: impl Into<String>) -> Error {
        Error::new(ErrorCode::Usage, message)
    }

    /// From the `CODE: message` that the host gives.
    pub(crate) fn from_host(text: String) -> Error {
        let parsed = text.split_once(": ").and_then(|(spelt, message)| {
            let (code, _) = CODES.iter().find(|(_, code)| *code == spelt)?;
            Some(Error::new(*code, message))
        });
        parsed.unwrap_or_else(|| Error::other(text))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            ErrorCode::Other => out.write_str(&self.message),
            code => write!(out, "{}: {}", code.as_str(), self.message),
        }
    }
}

impl std::error::Error for Error {}

impl From<String> for Error {
    fn from(message: String) -> Error {
        Error::other(message)
    }
}

impl From<&str> for Error {
    fn from(message: &str) -> Error {
        Error::other(message)
    }
}
