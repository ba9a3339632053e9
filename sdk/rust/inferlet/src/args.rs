//! Options of an inferlet: `--key value`, `--key=value` and `--flag`.

use std::fmt::Display;
use std::str::FromStr;

use crate::error::{Error, Result};

/// The arguments given at launch. Options are taken out one by one; [`finish`](Args::finish) tells
/// whether any is left over.
#[derive(Clone, Debug)]
pub struct Args {
    rest: Vec<String>,
}

/// Spellings of one option: `"--prompt"` or `["-p", "--prompt"]`.
pub trait Keys: Copy {
    /// True if an argument is one of the spellings.
    fn matches(self, argument: &str) -> bool;
    /// The spelling for messages.
    fn name(&self) -> &str;
}

impl Keys for &str {
    fn matches(self, argument: &str) -> bool {
        self == argument
    }

    fn name(&self) -> &str {
        self
    }
}

impl Keys for [&str; 2] {
    fn matches(self, argument: &str) -> bool {
        self.contains(&argument)
    }

    fn name(&self) -> &str {
        self[1]
    }
}

impl From<Vec<String>> for Args {
    fn from(arguments: Vec<String>) -> Args {
        Args::new(arguments)
    }
}

impl Args {
    /// From arguments in order.
    pub fn new(arguments: Vec<String>) -> Args {
        Args { rest: arguments }
    }

    /// True if a flag is given; takes it out.
    pub fn contains(&mut self, keys: impl Keys) -> bool {
        let found = self.rest.iter().position(|argument| keys.matches(argument));
        found.map(|at| self.rest.remove(at)).is_some()
    }

    /// The value of an option that may be left out.
    pub fn opt_value_from_str<T: FromStr<Err: Display>>(
        &mut self,
        keys: impl Keys,
    ) -> Result<Option<T>> {
        let Some(text) = self.take(keys)? else { return Ok(None) };
        match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(Error::usage(format!("{} {text}: {error}", keys.name()))),
        }
    }

    /// The value of an option that must be given.
    pub fn value_from_str<T: FromStr<Err: Display>>(&mut self, keys: impl Keys) -> Result<T> {
        self.opt_value_from_str(keys)?
            .ok_or_else(|| Error::usage(format!("the option {} is missing", keys.name())))
    }

    /// Says that everything has been taken: an error if there are arguments left.
    pub fn finish(self) -> Result {
        match self.rest.first() {
            None => Ok(()),
            Some(argument) => Err(Error::usage(format!("unknown argument {argument}"))),
        }
    }

    /// Takes an option and its value out.
    fn take(&mut self, keys: impl Keys) -> Result<Option<String>> {
        for at in 0..self.rest.len() {
            if keys.matches(&self.rest[at]) {
                if at + 1 == self.rest.len() {
                    return Err(Error::usage(format!("{} needs a value", self.rest[at])));
                }
                self.rest.remove(at);
                return Ok(Some(self.rest.remove(at)));
            }
            if let Some((key, value)) = self.rest[at].split_once('=') {
                if keys.matches(key) {
                    let value = value.to_owned();
                    self.rest.remove(at);
                    return Ok(Some(value));
                }
            }
        }
        Ok(None)
    }
}
