// Generated from device_programs/language.py by `python -m codegen`; do not edit.
//! The operations of device programs, and methods that are an operation each.

use std::ops;

use super::recording::record;
use super::{Tensor, Value};

/// How the type of a result follows from the operands' types.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    Map,
    Zip,
    Reduce,
    Scan,
    Own,
}

/// An operation: letters of the kinds that it takes and gives, empty for those of the operands.
pub(super) struct Operation {
    pub(super) name: &'static str,
    pub(super) rule: Rule,
    pub(super) takes: &'static str,
    pub(super) gives: &'static str,
}

const fn one(
    name: &'static str,
    rule: Rule,
    takes: &'static str,
    gives: &'static str,
) -> Operation {
    Operation { name, rule, takes, gives }
}

pub(super) const OPERATIONS: &[Operation] = &[
    one("logits", Rule::Own, "", "f"),
    one("step", Rule::Own, "", "i"),
    one("newest", Rule::Own, "", "i"),
    one("counts", Rule::Own, "", "i"),
    one("given", Rule::Own, "", "b"),
    one("beside", Rule::Own, "", "f"),
    one("state", Rule::Own, "", ""),
    one("constant", Rule::Own, "", ""),
    one("iota", Rule::Own, "", "i"),
    one("neg", Rule::Map, "fi", ""),
    one("abs", Rule::Map, "fi", ""),
    one("floor", Rule::Map, "f", ""),
    one("sqrt", Rule::Map, "f", ""),
    one("exp", Rule::Map, "f", ""),
    one("log", Rule::Map, "f", ""),
    one("tanh", Rule::Map, "f", ""),
    one("sigmoid", Rule::Map, "f", ""),
    one("not", Rule::Map, "b", ""),
    one("is_nan", Rule::Map, "f", "b"),
    one("cast", Rule::Own, "fib", ""),
    one("add", Rule::Zip, "fi", ""),
    one("sub", Rule::Zip, "fi", ""),
    one("mul", Rule::Zip, "fi", ""),
    one("div", Rule::Zip, "f", ""),
    one("pow", Rule::Zip, "f", ""),
    one("minimum", Rule::Zip, "fi", ""),
    one("maximum", Rule::Zip, "fi", ""),
    one("floordiv", Rule::Zip, "i", ""),
    one("mod", Rule::Zip, "i", ""),
    one("and", Rule::Zip, "ib", ""),
    one("or", Rule::Zip, "ib", ""),
    one("xor", Rule::Zip, "ib", ""),
    one("shl", Rule::Zip, "i", ""),
    one("shr", Rule::Zip, "i", ""),
    one("lt", Rule::Zip, "fi", "b"),
    one("le", Rule::Zip, "fi", "b"),
    one("eq", Rule::Zip, "fib", "b"),
    one("hash", Rule::Zip, "i", ""),
    one("where", Rule::Own, "fib", ""),
    one("sum", Rule::Reduce, "fi", ""),
    one("max", Rule::Reduce, "fi", ""),
    one("min", Rule::Reduce, "fi", ""),
    one("any", Rule::Reduce, "b", ""),
    one("all", Rule::Reduce, "b", ""),
    one("argmax", Rule::Reduce, "fi", "i"),
    one("cumsum", Rule::Scan, "fi", ""),
    one("log_softmax", Rule::Scan, "f", ""),
    one("sort", Rule::Scan, "fi", ""),
    one("argsort", Rule::Scan, "fi", "i"),
    one("flip", Rule::Scan, "fib", ""),
    one("top", Rule::Own, "fi", "i"),
    one("nucleus", Rule::Own, "f", "b"),
    one("slice", Rule::Own, "fib", ""),
    one("concat", Rule::Own, "fib", ""),
    one("gather", Rule::Own, "fib", ""),
    one("scatter_add", Rule::Own, "fi", ""),
    one("scatter_max", Rule::Own, "fib", ""),
    one("reshape", Rule::Own, "fib", ""),
    one("transpose", Rule::Own, "fib", ""),
    one("matvec", Rule::Own, "f", ""),
    one("random", Rule::Own, "i", "f"),
    one("exponential", Rule::Own, "i", "f"),
    one("weights", Rule::Own, "", "f"),
    one("scores", Rule::Own, "", "f"),
    one("tokens", Rule::Own, "", "i"),
    one("layer", Rule::Own, "", "i"),
    one("shared", Rule::Own, "f", ""),
];
/// A size: as many as the model has tokens.
pub const VOCABULARY: i64 = -1;
/// A size of the stage `attend`: as many as a layer has queries.
pub const HEADS: i64 = -2;
/// A size of the stage `attend`: as many as the context has tokens.
pub const TOKENS: i64 = -3;
/// A size of the stage `attend`: as many as the context has pages.
pub const PAGES: i64 = -4;
pub(super) const SIZES: &[(i64, &str)] =
    &[(-1, "vocabulary"), (-2, "heads"), (-3, "tokens"), (-4, "pages")];
pub(super) const MOST_BESIDE: i64 = 2;
pub(super) const MOST_AXES: usize = 2;
pub(super) const MOST_NEWEST: i64 = 4096;
pub(super) const REMEMBERED: &[&str] = &["newest", "counts", "given"];

impl Tensor {
    /// The absolute value.
    #[track_caller]
    pub fn abs(self) -> Tensor {
        record("abs", &[self.into()], &[])
    }

    /// The largest whole number that is not above `x`.
    #[track_caller]
    pub fn floor(self) -> Tensor {
        record("floor", &[self.into()], &[])
    }

    /// The square root; NaN below 0.
    #[track_caller]
    pub fn sqrt(self) -> Tensor {
        record("sqrt", &[self.into()], &[])
    }

    /// `e` to the power of `x`.
    #[track_caller]
    pub fn exp(self) -> Tensor {
        record("exp", &[self.into()], &[])
    }

    /// The natural logarithm; minus infinity of 0, NaN below.
    #[track_caller]
    pub fn log(self) -> Tensor {
        record("log", &[self.into()], &[])
    }

    /// The hyperbolic tangent.
    #[track_caller]
    pub fn tanh(self) -> Tensor {
        record("tanh", &[self.into()], &[])
    }

    /// `1 / (1 + exp(-x))`.
    #[track_caller]
    pub fn sigmoid(self) -> Tensor {
        record("sigmoid", &[self.into()], &[])
    }

    /// Whether `x` is no number.
    #[track_caller]
    pub fn is_nan(self) -> Tensor {
        record("is_nan", &[self.into()], &[])
    }

    /// `a` to the power of `b`.
    #[track_caller]
    pub fn pow(self, other: impl Into<Value>) -> Tensor {
        record("pow", &[self.into(), other.into()], &[])
    }

    /// `a // b`, rounded down; 0 where `b` is 0.
    #[track_caller]
    pub fn floordiv(self, other: impl Into<Value>) -> Tensor {
        record("floordiv", &[self.into(), other.into()], &[])
    }

    /// `a < b`.
    #[track_caller]
    pub fn lt(self, other: impl Into<Value>) -> Tensor {
        record("lt", &[self.into(), other.into()], &[])
    }

    /// `a <= b`.
    #[track_caller]
    pub fn le(self, other: impl Into<Value>) -> Tensor {
        record("le", &[self.into(), other.into()], &[])
    }

    /// `a == b`.
    #[track_caller]
    pub fn eq(self, other: impl Into<Value>) -> Tensor {
        record("eq", &[self.into(), other.into()], &[])
    }

    /// The sum. Along the last axis.
    #[track_caller]
    pub fn sum(self) -> Tensor {
        record("sum", &[self.into()], &[])
    }

    /// The largest; NaN if there is one. Along the last axis.
    #[track_caller]
    pub fn max(self) -> Tensor {
        record("max", &[self.into()], &[])
    }

    /// The smallest; NaN if there is one. Along the last axis.
    #[track_caller]
    pub fn min(self) -> Tensor {
        record("min", &[self.into()], &[])
    }

    /// Whether one is true. Along the last axis.
    #[track_caller]
    pub fn any(self) -> Tensor {
        record("any", &[self.into()], &[])
    }

    /// Whether all are true. Along the last axis.
    #[track_caller]
    pub fn all(self) -> Tensor {
        record("all", &[self.into()], &[])
    }

    /// Where the largest is, the first of equal ones; NaN is below all. Along the last axis.
    #[track_caller]
    pub fn argmax(self) -> Tensor {
        record("argmax", &[self.into()], &[])
    }

    /// The sum of each element and all before it. Along the last axis.
    #[track_caller]
    pub fn cumsum(self) -> Tensor {
        record("cumsum", &[self.into()], &[])
    }

    /// `x - log(sum(exp(x)))`. Along the last axis.
    #[track_caller]
    pub fn log_softmax(self) -> Tensor {
        record("log_softmax", &[self.into()], &[])
    }

    /// In order, the smallest first, NaN last. Along the last axis.
    #[track_caller]
    pub fn sort(self) -> Tensor {
        record("sort", &[self.into()], &[])
    }

    /// Where the smallest is, then the next, equal ones in their order; NaN last. Along the
    /// last axis.
    #[track_caller]
    pub fn argsort(self) -> Tensor {
        record("argsort", &[self.into()], &[])
    }

    /// In the opposite order. Along the last axis.
    #[track_caller]
    pub fn flip(self) -> Tensor {
        record("flip", &[self.into()], &[])
    }

    /// The two axes changed.
    #[track_caller]
    pub fn transpose(self) -> Tensor {
        record("transpose", &[self.into()], &[])
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $name:literal) => {
        impl<V: Into<Value>> ops::$trait<V> for Tensor {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, other: V) -> Tensor {
                record($name, &[self.into(), other.into()], &[])
            }
        }

        operator!($trait, $method, $name, f64);
        operator!($trait, $method, $name, i64);
    };
    ($trait:ident, $method:ident, $name:literal, $number:ty) => {
        impl ops::$trait<Tensor> for $number {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                record($name, &[self.into(), other.into()], &[])
            }
        }
    };
}

operator!(Add, add, "add");
operator!(Sub, sub, "sub");
operator!(Mul, mul, "mul");
operator!(Div, div, "div");
operator!(Shl, shl, "shl");
operator!(Shr, shr, "shr");
operator!(Rem, rem, "mod");
operator!(BitAnd, bitand, "and");
operator!(BitOr, bitor, "or");
operator!(BitXor, bitxor, "xor");
