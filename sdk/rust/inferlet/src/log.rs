//! Macros that write formatted lines to the instance's log.

/// Logs a line for the author of the inferlet.
#[macro_export]
macro_rules! debug {
    ($($part:tt)*) => { $crate::runtime::log($crate::runtime::LogLevel::Debug, &::std::format!($($part)*)) };
}

/// Logs a line for the operator of the inferlet.
#[macro_export]
macro_rules! info {
    ($($part:tt)*) => { $crate::runtime::log($crate::runtime::LogLevel::Info, &::std::format!($($part)*)) };
}

/// Logs that something is odd.
#[macro_export]
macro_rules! warning {
    ($($part:tt)*) => { $crate::runtime::log($crate::runtime::LogLevel::Warning, &::std::format!($($part)*)) };
}

/// Logs that something failed.
#[macro_export]
macro_rules! error {
    ($($part:tt)*) => { $crate::runtime::log($crate::runtime::LogLevel::Error, &::std::format!($($part)*)) };
}
