//! Arguments of calls, from JSON.

use inferlet::json::Value;
use inferlet::{Error, Result};

/// An argument whose references have become what earlier calls returned.
pub fn resolve(argument: &Value, outcomes: &[Result<Value>]) -> Result<Value> {
    if let Some(items) = argument.as_list() {
        let items: Result<Vec<Value>> = items.iter().map(|item| resolve(item, outcomes)).collect();
        return items.map(Value::List);
    }
    for wrapper in ["bytes", "tuple"] {
        if let Some(items) = argument.get(wrapper) {
            return resolve(items, outcomes);
        }
    }
    if let Some(item) = argument.get("repeat") {
        let times = argument.get("times").and_then(Value::as_u32).unwrap_or(0) as usize;
        return Ok(match resolve(item, outcomes)? {
            Value::Text(text) => Value::Text(text.repeat(times)),
            Value::List(items) => {
                let count = items.len() * times;
                Value::List(items.into_iter().cycle().take(count).collect())
            }
            other => other,
        });
    }
    let (Some(of), Some(path), Some(add)) =
        (argument.get("of"), argument.get("at"), argument.get("add"))
    else {
        return Ok(argument.clone());
    };
    let at = of.as_u32().ok_or("a reference has a number")? as usize;
    let mut value = match &outcomes[at] {
        Ok(value) => value,
        Err(error) => return Err(Error::other(format!("no-value: call {at} failed: {error}"))),
    };
    for index in path.as_list().unwrap_or_default() {
        let index = index.as_u32().ok_or("an index is a number")? as usize;
        value = value.as_list().and_then(|items| items.get(index)).ok_or("no such element")?;
    }
    match (value, add.as_f64()) {
        (Value::Whole(number), Some(add)) => Ok(Value::Whole(number + add as i128)),
        _ => Ok(value.clone()),
    }
}

/// The arguments of one call, taken by place and type.
pub struct Arguments<'a>(pub &'a [Value]);

impl<'a> Arguments<'a> {
    fn at(&self, place: usize) -> Result<&'a Value> {
        self.0.get(place).ok_or_else(|| Error::other(format!("argument {place} is missing")))
    }

    pub fn number(&self, place: usize) -> Result<f64> {
        self.at(place)?.as_f64().ok_or_else(|| wrong(place, "a number"))
    }

    pub fn u32(&self, place: usize) -> Result<u32> {
        as_u32(self.at(place)?)
    }

    pub fn bool(&self, place: usize) -> Result<bool> {
        self.at(place)?.as_bool().ok_or_else(|| wrong(place, "a truth value"))
    }

    pub fn text(&self, place: usize) -> Result<&'a str> {
        self.at(place)?.as_str().ok_or_else(|| wrong(place, "text"))
    }

    pub fn list(&self, place: usize) -> Result<&'a [Value]> {
        self.at(place)?.as_list().ok_or_else(|| wrong(place, "a list"))
    }

    pub fn u32s(&self, place: usize) -> Result<Vec<u32>> {
        self.list(place)?.iter().map(as_u32).collect()
    }

    pub fn bytes(&self, place: usize) -> Result<Vec<u8>> {
        as_bytes(self.at(place)?)
    }

    pub fn texts(&self, place: usize) -> Result<Vec<&'a str>> {
        self.list(place)?.iter().map(as_text).collect()
    }

    /// Pairs of texts.
    pub fn headers(&self, place: usize) -> Result<Vec<(&'a str, &'a str)>> {
        self.list(place)?
            .iter()
            .map(|pair| Ok((as_text(part(pair, 0)?)?, as_text(part(pair, 1)?)?)))
            .collect()
    }

    /// Texts and bytes.
    pub fn entries(&self, place: usize) -> Result<Vec<(&'a str, Vec<u8>)>> {
        self.list(place)?
            .iter()
            .map(|pair| Ok((as_text(part(pair, 0)?)?, as_bytes(part(pair, 1)?)?)))
            .collect()
    }
}

/// Entries whose values are borrowed, as the SDK takes them.
pub fn lent<'a>(entries: &'a [(&'a str, Vec<u8>)]) -> Vec<(&'a str, &'a [u8])> {
    entries.iter().map(|(key, value)| (*key, value.as_slice())).collect()
}

fn wrong(place: usize, wanted: &str) -> Error {
    Error::other(format!("argument {place} is not {wanted}"))
}

fn part(pair: &Value, at: usize) -> Result<&Value> {
    pair.as_list().and_then(|items| items.get(at)).ok_or_else(|| Error::other("a pair is wanted"))
}

fn as_u32(value: &Value) -> Result<u32> {
    value.as_u32().ok_or_else(|| Error::other("a u32 is wanted"))
}

fn as_text(value: &Value) -> Result<&str> {
    value.as_str().ok_or_else(|| Error::other("text is wanted"))
}

fn as_bytes(value: &Value) -> Result<Vec<u8>> {
    let items = value.as_list().ok_or_else(|| Error::other("bytes are wanted"))?;
    items.iter().map(|item| as_u32(item).map(|byte| byte as u8)).collect()
}
