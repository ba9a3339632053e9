//! A small JSON reader, for what the host describes in JSON, and for messages of clients.

use std::fmt::Write;

use crate::error::{Error, ErrorCode, Result};

/// How deep lists and objects may lie in each other.
const MAX_DEPTH: usize = 128;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// Any number, but for those below.
    Number(f64),
    /// A whole number of at most 128 bits that is written as one, without a point.
    Whole(i128),
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Value>),
    /// An object's members, in order.
    Object(Vec<(String, Value)>),
}

impl Value {
    /// A member of an object.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let Value::Object(members) = self else { return None };
        members.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The number.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Number(number) => Some(*number),
            Value::Whole(number) => Some(*number as f64),
            _ => None,
        }
    }

    /// The number, if it is a whole one of 64 bits.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Number(number) => (*number == (*number as i64) as f64).then_some(*number as i64),
            Value::Whole(number) => (*number).try_into().ok(),
            _ => None,
        }
    }

    /// The number, if it is a whole one in range.
    pub fn as_u32(&self) -> Option<u32> {
        let number = self.as_f64()?;
        (number == f64::from(number as u32)).then_some(number as u32)
    }

    /// The truth value.
    pub fn as_bool(&self) -> Option<bool> {
        let Value::Bool(truth) = self else { return None };
        Some(*truth)
    }

    /// The string.
    pub fn as_str(&self) -> Option<&str> {
        let Value::Text(text) = self else { return None };
        Some(text)
    }

    /// The list's elements.
    pub fn as_list(&self) -> Option<&[Value]> {
        let Value::List(elements) = self else { return None };
        Some(elements)
    }

    /// The value as a text.
    pub fn to_json(&self) -> String {
        match self {
            Value::Null => "null".to_owned(),
            Value::Bool(truth) => truth.to_string(),
            Value::Number(number) if number.is_infinite() => "Infinity".to_owned(), // it is refused
            Value::Number(number) => format!("{number:?}"),
            Value::Whole(number) => number.to_string(),
            Value::Text(text) => quote(text),
            Value::List(elements) => {
                let list: Vec<String> = elements.iter().map(Value::to_json).collect();
                format!("[{}]", list.join(","))
            }
            Value::Object(members) => object(
                members.iter().map(|(name, value)| format!("{}:{}", quote(name), value.to_json())),
            ),
        }
    }
}

macro_rules! values {
    ($($plain:ty => $kind:ident,)*) => {
        $(impl From<$plain> for Value {
            fn from(plain: $plain) -> Value {
                Value::$kind(plain.into())
            }
        })*
    };
}

values! { i64 => Whole, i32 => Whole, u32 => Whole, bool => Bool, &str => Text, }

/// Minus infinity is null.
impl From<f64> for Value {
    fn from(number: f64) -> Value {
        match number {
            f64::NEG_INFINITY => Value::Null,
            number => Value::Number(number),
        }
    }
}

impl From<f32> for Value {
    fn from(number: f32) -> Value {
        f64::from(number).into()
    }
}

/// What is added to a token's logit. A list of such is one object, as `logit_bias` is.
impl From<(u32, f64)> for Value {
    fn from((token, bias): (u32, f64)) -> Value {
        Value::Object(vec![(token.to_string(), bias.into())])
    }
}

impl<T: Into<Value>> From<Vec<T>> for Value {
    fn from(values: Vec<T>) -> Value {
        let mut members = Vec::new();
        let mut list = Vec::new();
        for value in values {
            match value.into() {
                Value::Object(more) => members.extend(more),
                value => list.push(value),
            }
        }
        match members.is_empty() {
            true => Value::List(list),
            false => Value::Object(members),
        }
    }
}

impl<T: Into<Value>, const N: usize> From<[T; N]> for Value {
    fn from(values: [T; N]) -> Value {
        Vec::from(values).into()
    }
}

/// Reads one JSON value; nothing may follow it.
///
/// Errors: `invalid-argument`, with the byte at which the text is wrong.
pub fn parse(text: &str) -> Result<Value> {
    let mut reader = Reader { text, at: 0 };
    let value = reader.value(0)?;
    reader.space();
    match reader.at == text.len() {
        true => Ok(value),
        false => Err(reader.wrong("the end")),
    }
}

/// An object of members, `"name":value` each.
pub(crate) fn object(members: impl IntoIterator<Item = String>) -> String {
    format!("{{{}}}", members.into_iter().collect::<Vec<_>>().join(","))
}

/// A text as a JSON string, with its quotes.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            // All of these, for the readers that are stricter than JSON.
            control if control.is_control() => {
                let _ = write!(out, "\\u{:04x}", control as u32); // writing to a String can't fail
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn wrong(&self, wanted: &str) -> Error {
        let message = format!("JSON: {wanted} expected at byte {}", self.at);
        Error::new(ErrorCode::InvalidArgument, message)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn accept(&mut self, token: &str) -> bool {
        let found = self.text[self.at..].starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn value(&mut self, depth: usize) -> Result<Value> {
        if depth > MAX_DEPTH {
            return Err(self.wrong("less nesting"));
        }
        self.space();
        match self.peek() {
            Some(b'"') => Ok(Value::Text(self.string()?)),
            Some(b'[') => self.list(depth),
            Some(b'{') => self.object(depth),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ if self.accept("null") => Ok(Value::Null),
            _ if self.accept("true") => Ok(Value::Bool(true)),
            _ if self.accept("false") => Ok(Value::Bool(false)),
            _ => Err(self.wrong("a value")),
        }
    }

    fn number(&mut self) -> Result<Value> {
        let start = self.at;
        while matches!(self.peek(), Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')) {
            self.at += 1;
        }
        let text = &self.text[start..self.at];
        if let Ok(whole) = text.parse::<i128>() {
            return Ok(Value::Whole(whole));
        }
        let number = text.parse();
        number.map(Value::Number).map_err(|_| self.wrong("a number"))
    }

    fn list(&mut self, depth: usize) -> Result<Value> {
        let mut elements = Vec::new();
        self.items("]", |reader| Ok(elements.push(reader.value(depth + 1)?)))?;
        Ok(Value::List(elements))
    }

    fn object(&mut self, depth: usize) -> Result<Value> {
        let mut members = Vec::new();
        self.items("}", |reader| {
            reader.space();
            let name = reader.string()?;
            reader.space();
            if !reader.accept(":") {
                return Err(reader.wrong("a colon"));
            }
            Ok(members.push((name, reader.value(depth + 1)?)))
        })?;
        Ok(Value::Object(members))
    }

    /// Reads the items between a bracket and the one that closes it, with commas.
    fn items(&mut self, close: &str, mut item: impl FnMut(&mut Self) -> Result) -> Result {
        self.at += 1;
        self.space();
        if self.accept(close) {
            return Ok(());
        }
        loop {
            item(self)?;
            self.space();
            if self.accept(close) {
                return Ok(());
            }
            if !self.accept(",") {
                return Err(self.wrong("a comma, or what closes it,"));
            }
        }
    }

    fn string(&mut self) -> Result<String> {
        if !self.accept("\"") {
            return Err(self.wrong("a string"));
        }
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.find(['"', '\\']).ok_or_else(|| self.wrong("a closing quote"))?;
            out.push_str(&rest[..plain]);
            self.at += plain + 1;
            if rest.as_bytes()[plain] == b'"' {
                return Ok(out);
            }
            out.push(self.escape()?);
        }
    }

    fn escape(&mut self) -> Result<char> {
        let kind = self.peek();
        self.at += 1;
        Ok(match kind {
            Some(b'n') => '\n',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(mark @ (b'"' | b'\\' | b'/')) => char::from(mark),
            Some(b'u') => {
                let first = self.unit()?;
                match char::from_u32(first) {
                    Some(character) => character,
                    None if first < 0xDC00 && self.accept("\\u") => {
                        let pair = [first as u16, self.unit()? as u16];
                        let joined = char::decode_utf16(pair).next().and_then(Result::ok);
                        joined.ok_or_else(|| self.wrong("the second half of a character"))?
                    }
                    None => return Err(self.wrong("a whole character")),
                }
            }
            _ => {
                self.at -= 1;
                return Err(self.wrong("an escape"));
            }
        })
    }

    /// The four hexadecimal digits of a UTF-16 unit.
    fn unit(&mut self) -> Result<u32> {
        let digits = self.text.get(self.at..self.at + 4);
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let unit = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let unit = unit.ok_or_else(|| self.wrong("four hexadecimal digits"))?;
        self.at += 4;
        Ok(unit)
    }
}
