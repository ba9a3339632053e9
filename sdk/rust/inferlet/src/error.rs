//! Errors of the API.

use std::fmt;

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

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The codes of the contract. More may come.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorCode { $($(#[$doc])* $name,)* }

        impl ErrorCode {
            /// The code as the contract spells it.
            pub const fn as_str(self) -> &'static str {
                match self { $(ErrorCode::$name => $text,)* }
            }

            fn parse(text: &str) -> Option<ErrorCode> {
                match text { $($text => Some(ErrorCode::$name),)* _ => None }
            }
        }
    };
}

codes! {
    /// An argument is wrong in itself.
    InvalidArgument = "invalid-argument",
    /// A handle that this instance does not hold, or no longer.
    InvalidHandle = "invalid-handle",
    /// No model of that name is served.
    UnknownModel = "unknown-model",
    /// The model can't do this.
    Unsupported = "unsupported",
    /// There is nothing of that name.
    NotFound = "not-found",
    /// The name is taken.
    AlreadyExists = "already-exists",
    /// The future is not ready yet.
    NotReady = "not-ready",
    /// More than the model's pools hold.
    OutOfResources = "out-of-resources",
    /// Too few empty slots in the output pages.
    PageFull = "page-full",
    /// The page is exported or imported.
    Immutable = "immutable",
    /// The page was swapped out or discarded: swap it in first.
    SwappedOut = "swapped-out",
    /// A queued command still uses it.
    Busy = "busy",
    /// What a change was derived from has changed.
    Conflict = "conflict",
    /// Back-pressure: the receiver has to read first.
    WouldBlock = "would-block",
    /// A limit of this instance.
    LimitExceeded = "limit-exceeded",
    /// It was given up.
    Cancelled = "cancelled",
    /// A command that it depends on failed.
    FailedDependency = "failed-dependency",
    /// The inference process died.
    WorkerLost = "worker-lost",
    /// Another server, or the way to it, failed.
    RemoteFailed = "remote-failed",
    /// It took too long.
    TimedOut = "timed-out",
    /// It belongs to another user or program.
    PermissionDenied = "permission-denied",
    /// A fault of the server.
    Internal = "internal",
    /// The inferlet was given wrong arguments.
    Usage = "usage",
    /// An error of the inferlet's own.
    Other = "error",
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

    /// True if there was not enough of something.
    pub(crate) fn is_scarcity(&self) -> bool {
        matches!(self.code, ErrorCode::OutOfResources | ErrorCode::LimitExceeded)
    }

    /// From the `CODE: message` that the host gives.
    pub(crate) fn from_host(text: String) -> Error {
        let parsed = text
            .split_once(": ")
            .and_then(|(code, message)| Some(Error::new(ErrorCode::parse(code)?, message)));
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
