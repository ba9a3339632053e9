//! The types of what operations give, as `pie_py/device_programs/language.py` has them.

use std::fmt;

use super::language::{
    Rule, HEADS, MOST_AXES, MOST_BESIDE, MOST_NEWEST, OPERATIONS, PAGES, SIZES, TOKENS, VOCABULARY,
};

/// What the elements of a value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `f32`
    Float = 0,
    /// `i64`; arithmetic wraps around.
    Int = 1,
    /// `bool`
    Bool = 2,
}

impl Kind {
    pub(super) fn of_number(number: i64) -> Kind {
        match number {
            0 => Kind::Float,
            1 => Kind::Int,
            _ => Kind::Bool,
        }
    }

    fn of_letter(letter: char) -> Kind {
        match letter {
            'f' => Kind::Float,
            'i' => Kind::Int,
            _ => Kind::Bool,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Float => "float",
            Kind::Int => "int",
            Kind::Bool => "bool",
        }
    }
}

/// The kind and the sizes of a value; [`VOCABULARY`] is the number of the model's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type {
    /// What its elements are.
    pub kind: Kind,
    /// Two at most.
    pub shape: Vec<i64>,
}

impl Type {
    pub(super) fn new(kind: Kind, shape: &[i64]) -> Type {
        Type { kind, shape: shape.to_vec() }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.kind.name(), sizes(&self.shape))
    }
}

fn sizes(shape: &[i64]) -> String {
    let shown = |&size: &i64| match SIZES.iter().find(|(one, _)| *one == size) {
        Some((_, name)) => String::from(*name),
        None => size.to_string(),
    };
    format!("[{}]", shape.iter().map(shown).collect::<Vec<_>>().join(", "))
}

/// Whether a size is known only where the program runs.
pub(super) fn is_open(size: i64) -> bool {
    SIZES.iter().any(|(one, _)| *one == size)
}

type Checked<T = Type> = Result<T, String>;

/// The type of what an operation gives; or what is wrong, without the place.
pub(super) fn result_type(name: &str, operands: &[Type], attributes: &[i64]) -> Checked {
    let Some(operation) = OPERATIONS.iter().find(|one| one.name == name) else {
        return Err(format!("there is no operation '{name}'"));
    };
    let values = if name == "where" { &operands[1..] } else { operands };
    check_kinds(name, operation.takes, values)?;
    let kind = match (operation.gives.chars().next(), values.first()) {
        (Some(letter), _) => Kind::of_letter(letter),
        (None, Some(first)) => first.kind,
        (None, None) => Kind::Float,
    };
    let shape = match operation.rule {
        Rule::Map => operands[0].shape.clone(),
        Rule::Zip => broadcast(name, operands)?,
        Rule::Reduce => {
            let shape = with_axis(name, &operands[0])?;
            shape[..shape.len() - 1].to_vec()
        }
        Rule::Scan => with_axis(name, &operands[0])?.to_vec(),
        Rule::Own => return own_type(name, kind, operands, attributes),
    };
    Ok(Type { kind, shape })
}

fn check_kinds(name: &str, takes: &str, values: &[Type]) -> Checked<()> {
    let at_places = matches!(name, "gather" | "scatter_add" | "scatter_max");
    let same = if at_places { &values[..1] } else { values };
    for one in same {
        if !takes.chars().any(|letter| Kind::of_letter(letter) == one.kind) {
            let names: Vec<_> =
                takes.chars().map(|letter| Kind::of_letter(letter).name()).collect();
            return Err(format!("{name} takes {}, not {one}", names.join(" or ")));
        }
        if one.kind != same[0].kind {
            return Err(format!("{name} of {} and {one}: cast one of them", same[0]));
        }
    }
    Ok(())
}

fn broadcast(name: &str, operands: &[Type]) -> Checked<Vec<i64>> {
    let axes = operands.iter().map(|one| one.shape.len()).max().unwrap_or(0);
    let mut found = vec![1; axes];
    for one in operands {
        for (before, &size) in found[axes - one.shape.len()..].iter_mut().zip(&one.shape) {
            if *before == 1 {
                *before = size;
            } else if size != 1 && size != *before {
                let shown: Vec<_> = operands.iter().map(|one| sizes(&one.shape)).collect();
                return Err(format!("{name} of sizes {}", shown.join(" and ")));
            }
        }
    }
    Ok(found)
}

fn with_axis<'a>(name: &str, value: &'a Type) -> Checked<&'a [i64]> {
    match value.shape.is_empty() {
        true => Err(format!("{name} takes a value with an axis, not {value}")),
        false => Ok(&value.shape),
    }
}

fn vector(name: &str, value: &Type) -> Checked<i64> {
    match value.shape[..] {
        [size] => Ok(size),
        _ => Err(format!("{name} takes one axis, not {value}")),
    }
}

fn check_places(name: &str, places: &Type) -> Checked<()> {
    match places.kind {
        Kind::Int => Ok(()),
        _ => Err(format!("{name} takes int as places, not {places}")),
    }
}

fn bounded(name: &str, value: Type) -> Checked {
    match value.shape.len() <= MOST_AXES {
        true => Ok(value),
        false => Err(format!("{name} would give {value}: {MOST_AXES} axes at most")),
    }
}

fn own_type(name: &str, kind: Kind, operands: &[Type], attributes: &[i64]) -> Checked {
    let of = |shape: &[i64]| Ok(Type::new(kind, shape));
    match (name, operands, attributes) {
        ("logits" | "counts" | "given", ..) => of(&[VOCABULARY]),
        ("weights", ..) => of(&[HEADS, TOKENS]),
        ("scores", ..) => of(&[HEADS, PAGES]),
        ("shared", [value], _) => match value.shape[..] {
            [HEADS, _] => of(&value.shape),
            _ => Err(format!("shared takes heads as its first axis, not {value}")),
        },
        ("step" | "tokens" | "layer", ..) => of(&[]),
        ("beside", _, &[number]) => match (0..MOST_BESIDE).contains(&number) {
            true => of(&[VOCABULARY]),
            false => Err(format!("beside {number}: 0 to {}", MOST_BESIDE - 1)),
        },
        ("newest", _, &[count]) => match (1..=MOST_NEWEST).contains(&count) {
            true => of(&[count]),
            false => Err(format!("newest {count} tokens: 1 to {MOST_NEWEST}")),
        },
        ("constant", _, &[of, value]) => {
            let (of, most) = (Kind::of_number(of), 1 << 53);
            match of == Kind::Int && !(-most..=most).contains(&value) {
                true => Err(format!("a constant {value} outside {} to {most}", -most)),
                false => Ok(Type::new(of, &[])),
            }
        }
        ("iota", _, &[size]) => match is_open(size) || size >= 1 {
            true => of(&[size]),
            false => Err(format!("iota of size {size}")),
        },
        ("cast", [value], &[to]) => Ok(Type::new(Kind::of_number(to), &value.shape)),
        ("where", [condition, ..], _) => match condition.kind {
            Kind::Bool => of(&broadcast(name, operands)?),
            _ => Err(format!("where takes bool first, not {condition}")),
        },
        ("top", [value], &[count]) => {
            let size = vector(name, value)?;
            match count < 1 || (!is_open(size) && count > size) {
                true => Err(format!("top {count} of {value}")),
                false => of(&[count]),
            }
        }
        ("nucleus", [value, share], _) => match share.shape.is_empty() {
            true => Ok(Type::new(Kind::Bool, &[vector(name, value)?])),
            false => Err(format!("nucleus takes one share, not {share}")),
        },
        ("slice", [value], &[start, stop]) => {
            let mut shape = with_axis(name, value)?.to_vec();
            let size = shape.pop().unwrap_or(1);
            if start < 0 || start >= stop || (size != VOCABULARY && stop > size) {
                return Err(format!("slice from {start} to {stop} of {value}"));
            }
            shape.push(stop - start);
            of(&shape)
        }
        ("concat", [a, b], _) => match (with_axis(name, a)?, with_axis(name, b)?) {
            ([one @ .., m], [other @ .., n]) if one == other && !is_open(*m) && !is_open(*n) => {
                of(&[one, &[m + n]].concat())
            }
            _ => Err(format!("concat of {a} and {b}")),
        },
        ("gather", [value, places], _) => {
            check_places(name, places)?;
            let rest = &with_axis(name, value)?[1..];
            bounded(name, Type::new(kind, &[&places.shape, rest].concat()))
        }
        ("scatter_add" | "scatter_max", [value, places, new], _) => {
            check_places(name, places)?;
            vector(name, value)?;
            if new.kind != value.kind {
                return Err(format!("{name} of {value} and {new}: cast one of them"));
            }
            let along = [places.clone(), new.clone()];
            if places.shape.len() != 1 || broadcast(name, &along)? != places.shape {
                return Err(format!("{name} of {new} at {places}"));
            }
            Ok(value.clone())
        }
        ("reshape", [value], shape) => match count(shape) == count(&value.shape) {
            true => bounded(name, Type::new(kind, shape)),
            false => Err(format!("reshape of {value} to {}", Type::new(kind, shape))),
        },
        ("transpose", [value], _) => match value.shape[..] {
            [rows, columns] => of(&[columns, rows]),
            _ => Err(format!("transpose takes two axes, not {value}")),
        },
        ("matvec", [matrix, other], _) => match matrix.shape[..] {
            [rows, columns] if vector(name, other)? == columns => of(&[rows]),
            _ => Err(format!("matvec of {matrix} and {other}")),
        },
        ("random" | "exponential", [value], &[stream]) => match (0..1 << 16).contains(&stream) {
            true => of(&value.shape),
            false => Err(format!("{name} of stream {stream}: 0 to 65535")),
        },
        _ => Err(format!("{name} is given to a program by name alone")),
    }
}

/// Elements, but for sizes that are not known, and those.
fn count(shape: &[i64]) -> Option<(i64, Vec<i64>)> {
    let (mut open, known): (Vec<i64>, Vec<i64>) = shape.iter().partition(|&&size| is_open(size));
    open.sort_unstable();
    match known.iter().all(|&size| size >= 1) {
        true => Some((known.iter().product(), open)),
        false => None,
    }
}
