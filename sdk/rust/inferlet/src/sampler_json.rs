//! Parameters of samplers in the contract's JSON.

use std::fmt::Write;

use crate::error::{Error, ErrorCode, Result};
use crate::json::{quote, Value};

/// A parameter's value. Writing to a String can't fail.
pub(crate) trait Parameter: Sized {
    /// The value that JSON has, if it has one of this type.
    fn from_value(given: &Value) -> Option<Self>;

    /// Adds a comma, the name and the value to an object.
    fn write(&self, name: &str, out: &mut String);
}

/// Sets a parameter to a member of an object, if it has one of this name.
///
/// Errors: `invalid-argument`, naming the parameter.
pub(crate) fn read<T: Parameter>(given: &Value, name: &str, parameter: &mut T) -> Result {
    if let Some(value) = given.get(name) {
        *parameter = T::from_value(value).ok_or_else(|| {
            let message = format!("sampler parameters: `{name}` has a value of another type");
            Error::new(ErrorCode::InvalidArgument, message)
        })?;
    }
    Ok(())
}

fn whole(given: &Value) -> Option<u64> {
    let number = given.as_f64()?;
    (number == (number as u64) as f64).then_some(number as u64)
}

macro_rules! number {
    ($type:ty, $read:expr) => {
        impl Parameter for $type {
            fn from_value(given: &Value) -> Option<Self> {
                $read(given)
            }

            fn write(&self, name: &str, out: &mut String) {
                let _ = write!(out, ",\"{name}\":{self:?}");
            }
        }

        impl Parameter for Vec<$type> {
            fn from_value(given: &Value) -> Option<Self> {
                given.as_list()?.iter().map(<$type>::from_value).collect()
            }

            fn write(&self, name: &str, out: &mut String) {
                let _ = write!(out, ",\"{name}\":{self:?}");
            }
        }
    };
}

number!(f32, |given: &Value| given.as_f64().map(|number| number as f32));
number!(u32, Value::as_u32);
number!(u64, whole);

impl<T: Parameter> Parameter for Option<T> {
    fn from_value(given: &Value) -> Option<Self> {
        match given {
            Value::Null => Some(None),
            given => T::from_value(given).map(Some),
        }
    }

    fn write(&self, name: &str, out: &mut String) {
        if let Some(value) = self {
            value.write(name, out);
        }
    }
}

impl Parameter for Vec<String> {
    fn from_value(given: &Value) -> Option<Self> {
        given.as_list()?.iter().map(|name| name.as_str().map(str::to_owned)).collect()
    }

    fn write(&self, name: &str, out: &mut String) {
        let names: Vec<String> = self.iter().map(|name| quote(name)).collect();
        let _ = write!(out, ",\"{name}\":[{}]", names.join(","));
    }
}

impl Parameter for Vec<Vec<u32>> {
    fn from_value(given: &Value) -> Option<Self> {
        given.as_list()?.iter().map(Vec::from_value).collect()
    }

    fn write(&self, name: &str, out: &mut String) {
        let _ = write!(out, ",\"{name}\":{self:?}");
    }
}

/// Tokens with a number each; none rules a token out.
impl Parameter for Vec<(u32, Option<f32>)> {
    fn from_value(given: &Value) -> Option<Self> {
        let Value::Object(members) = given else { return None };
        let pair = |(token, bias): &(String, Value)| {
            Some((token.parse().ok()?, Option::<f32>::from_value(bias)?))
        };
        members.iter().map(pair).collect()
    }

    fn write(&self, name: &str, out: &mut String) {
        let pairs: Vec<String> = self
            .iter()
            .map(|(token, bias)| match bias {
                Some(bias) => format!("\"{token}\":{bias:?}"),
                None => format!("\"{token}\":null"),
            })
            .collect();
        let _ = write!(out, ",\"{name}\":{{{}}}", pairs.join(","));
    }
}
