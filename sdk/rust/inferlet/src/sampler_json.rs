//! Fields of samplers in JSON.

use crate::error::{Error, ErrorCode, Result};
use crate::json::Value;

/// A field's value.
pub(crate) trait Field: Sized {
    /// The value that JSON has, if it has one of this type.
    fn from_value(given: &Value) -> Option<Self>;
}

/// Sets a field to a member of an object, if it has one of this name.
///
/// Errors: `invalid-argument`, naming the field.
pub(crate) fn read<T: Field>(given: &Value, name: &str, field: &mut T) -> Result {
    if let Some(value) = given.get(name) {
        *field = T::from_value(value).ok_or_else(|| {
            let message = format!("sampler parameters: `{name}` has a value of another type");
            Error::new(ErrorCode::InvalidArgument, message)
        })?;
    }
    Ok(())
}

impl Field for f32 {
    fn from_value(given: &Value) -> Option<Self> {
        given.as_f64().map(|number| number as f32)
    }
}

impl Field for u32 {
    fn from_value(given: &Value) -> Option<Self> {
        given.as_u32()
    }
}

impl Field for u64 {
    fn from_value(given: &Value) -> Option<Self> {
        let number = given.as_f64()?;
        (number == (number as u64) as f64).then_some(number as u64)
    }
}

impl<T: Field> Field for Option<T> {
    fn from_value(given: &Value) -> Option<Self> {
        match given {
            Value::Null => Some(None),
            given => T::from_value(given).map(Some),
        }
    }
}

impl Field for Vec<u32> {
    fn from_value(given: &Value) -> Option<Self> {
        given.as_list()?.iter().map(u32::from_value).collect()
    }
}

impl Field for Vec<Vec<u32>> {
    fn from_value(given: &Value) -> Option<Self> {
        given.as_list()?.iter().map(Vec::from_value).collect()
    }
}

/// Tokens with a number each; none rules a token out.
impl Field for Vec<(u32, Option<f32>)> {
    fn from_value(given: &Value) -> Option<Self> {
        let Value::Object(members) = given else { return None };
        let pair = |(token, bias): &(String, Value)| {
            Some((token.parse().ok()?, Option::<f32>::from_value(bias)?))
        };
        members.iter().map(pair).collect()
    }
}
