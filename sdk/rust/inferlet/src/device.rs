//! Device programs: a rule for choosing tokens, in plain Rust, that runs where the model runs.
//!
//! ```ignore
//! use inferlet::device::{self, State, Tensor};
//!
//! fn mirostat(logits: Tensor, state: &mut State) -> Tensor {
//!     let surprise = -logits.log_softmax() / std::f64::consts::LN_2;
//!     let kept = logits.where_(surprise.le(state.get("mu")), f64::NEG_INFINITY);
//!     let token = device::draw(kept);
//!     state.set("mu", state.get("mu") - (surprise.at(token) - 5.0) * 0.1);
//!     token
//! }
//!
//! let rule = device::program(mirostat).with([("mu", 10.0)])?.seed(1);
//! let text = context.generate(rule).max_tokens(64).collect_text().await?;
//! ```
//!
//! The function is called once, with tensors that have kinds and sizes and no values, and what it
//! does with them is recorded: its `if`, `for` and calls are gone by then. Kinds are float (f32),
//! int (64 bits) and bool. A mistake is the error of [`DeviceProgram::with`], which names the line
//! that makes it. Rust's numbers go with either kind; operators are Rust's, but comparisons are
//! methods (`a.lt(b)`), and so are `a.pow(b)` and `a.floordiv(b)`. `%` rounds down, as in Python.
//! docs/device-programs.md has the operations.

use std::ops;

mod language;
mod recording;
mod types;
mod values;

pub use language::{HEADS, PAGES, TOKENS, VOCABULARY};
pub use types::{Kind, Type};
pub use values::{per_token, per_token_by_head, Attend, Given, ProgramSampler, Values};

use crate::error::{invalid, Result};
use recording::{change, constant, mistake, read, record, recorded, type_of, Stage};
use types::is_open;

/// A value of a device program, while it is recorded: it has a kind and sizes.
#[derive(Clone, Copy, Debug)]
pub struct Tensor {
    recording: usize,
    number: usize,
}

/// A tensor, or a number that goes with it.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// A tensor.
    Tensor(Tensor),
    /// A float.
    Float(f64),
    /// An int; beside floats it is one of them.
    Int(i64),
    /// A bool.
    Bool(bool),
}

macro_rules! value {
    ($($number:ty => $kind:ident,)*) => {
        $(impl From<$number> for Value {
            fn from(number: $number) -> Value {
                Value::$kind(number.into())
            }
        })*
    };
}

value! {
    Tensor => Tensor, f64 => Float, f32 => Float, i64 => Int, i32 => Int, u32 => Int, bool => Bool,
}

impl Tensor {
    /// Kind and sizes.
    ///
    /// # Panics
    /// Outside the function that it belongs to.
    #[track_caller]
    pub fn type_of(self) -> Type {
        type_of(self)
    }

    /// What its elements are.
    #[track_caller]
    pub fn kind(self) -> Kind {
        type_of(self).kind
    }

    #[track_caller]
    fn last_size(self) -> i64 {
        type_of(self).shape.last().copied().unwrap_or(1)
    }

    /// How many elements (of two axes: rows) it has; that of the vocabulary is not known.
    #[track_caller]
    pub fn size(self) -> i64 {
        match type_of(self).shape.first() {
            Some(&size) if !is_open(size) => size,
            _ => {
                mistake(format!("{} has no length that is known", type_of(self)));
                0
            }
        }
    }

    /// Elements (of two axes: rows) at places; a place below 0 counts from the end.
    #[track_caller]
    pub fn at(self, places: impl Into<Value>) -> Tensor {
        let places = match places.into() {
            Value::Int(place) if place < 0 => Value::Int(place + self.size()),
            places => places,
        };
        record("gather", &[self.into(), constant(places, Some(Kind::Int)).into()], &[])
    }

    /// Its elements, or rows, one after the other.
    #[track_caller]
    pub fn iter(self) -> impl Iterator<Item = Tensor> {
        (0..self.size()).map(move |place| self.at(place))
    }

    /// From `start` up to `stop`, or to the end, of the last axis; either counts from the end below
    /// 0.
    #[track_caller]
    pub fn slice(self, start: i64, stop: impl Into<Option<i64>>) -> Tensor {
        let (size, stop) = (self.last_size(), stop.into());
        if is_open(size) {
            return match stop {
                Some(stop) if start >= 0 && stop >= 0 => {
                    record("slice", &[self.into()], &[start, stop])
                }
                _ => mistake(format!(
                    "a slice of {} needs an end, and counts from its beginning",
                    type_of(self)
                )),
            };
        }
        let place = |n: i64| if n < 0 { (n + size).max(0) } else { n.min(size) };
        record("slice", &[self.into()], &[place(start), place(stop.unwrap_or(size))])
    }

    /// Itself where a condition is true, else another value.
    #[track_caller]
    pub fn where_(self, condition: Tensor, other: impl Into<Value>) -> Tensor {
        where_(condition, self, other)
    }

    /// Whether it is above another one.
    #[track_caller]
    pub fn gt(self, other: impl Into<Value>) -> Tensor {
        record("lt", &[self.like(other).into(), self.into()], &[])
    }

    /// Whether it is at least another one.
    #[track_caller]
    pub fn ge(self, other: impl Into<Value>) -> Tensor {
        record("le", &[self.like(other).into(), self.into()], &[])
    }

    /// Whether it is another one than `other`.
    #[track_caller]
    pub fn ne(self, other: impl Into<Value>) -> Tensor {
        !self.eq(other)
    }

    /// A number as a tensor of this one's kind, as in `x.like(0.95).pow(x)`.
    #[track_caller]
    pub fn like(self, value: impl Into<Value>) -> Tensor {
        constant(value.into(), Some(self.kind()))
    }

    /// Probabilities along the last axis.
    #[track_caller]
    pub fn softmax(self) -> Tensor {
        self.log_softmax().exp()
    }

    /// The mean along the last axis, whose size is known.
    #[track_caller]
    pub fn mean(self) -> Tensor {
        match self.last_size() {
            size if is_open(size) => mistake(format!(
                "mean of {}, whose size is no number: take `sum` and divide it",
                type_of(self)
            )),
            size => self.sum() / size as f64,
        }
    }

    /// Places along the last axis, that of the largest first, equal ones in their order.
    #[track_caller]
    pub fn descending(self) -> Tensor {
        (-self).argsort()
    }

    /// Places of the `count` largest, the largest first, equal ones in their order.
    #[track_caller]
    pub fn top(self, count: i64) -> Tensor {
        record("top", &[self.into()], &[count])
    }

    /// As float; true is 1.
    #[track_caller]
    pub fn to_float(self) -> Tensor {
        record("cast", &[self.into()], &[Kind::Float as i64])
    }

    /// As int: the part before the point, 0 for NaN; true is 1.
    #[track_caller]
    pub fn to_int(self) -> Tensor {
        record("cast", &[self.into()], &[Kind::Int as i64])
    }

    /// Whether it is not 0.
    #[track_caller]
    pub fn to_bool(self) -> Tensor {
        record("cast", &[self.into()], &[Kind::Bool as i64])
    }

    /// The same elements with other sizes.
    #[track_caller]
    pub fn reshape(self, sizes: &[i64]) -> Tensor {
        record("reshape", &[self.into()], sizes)
    }

    /// With values added at places; those outside are left out.
    #[track_caller]
    pub fn scatter_add(self, places: Tensor, values: impl Into<Value>) -> Tensor {
        record("scatter_add", &[self.into(), places.into(), self.like(values).into()], &[])
    }

    /// With a value at a place that is larger (of bools: true); those outside are left out.
    #[track_caller]
    pub fn scatter_max(self, places: Tensor, values: impl Into<Value>) -> Tensor {
        record("scatter_max", &[self.into(), places.into(), self.like(values).into()], &[])
    }
}

impl Tensor {
    /// With a value at a place of its one axis; the same if it lies outside.
    #[track_caller]
    pub fn with_at(self, place: impl Into<Value>, value: impl Into<Value>) -> Tensor {
        match type_of(self).shape[..] {
            [size] => where_(iota(size).eq(place), value, self),
            _ => mistake(format!("with_at takes one axis, not {}", type_of(self))),
        }
    }
}

impl ops::Neg for Tensor {
    type Output = Tensor;

    #[track_caller]
    fn neg(self) -> Tensor {
        record("neg", &[self.into()], &[])
    }
}

impl ops::Not for Tensor {
    type Output = Tensor;

    #[track_caller]
    fn not(self) -> Tensor {
        match self.kind() {
            Kind::Int => self ^ -1,
            _ => record("not", &[self.into()], &[]),
        }
    }
}

/// What a program was given, by name. What a name is set to is there at the next token.
#[derive(Debug)]
pub struct State(());

impl State {
    /// A value: that of this token, or the one that it was set to before.
    #[track_caller]
    pub fn get(&self, name: &str) -> Tensor {
        read(name)
    }

    /// Sets the value at the next token, of the same kind and sizes.
    #[track_caller]
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        change(name, value.into());
    }
}

/// 0, 1, 2 and so on, int `[size]`; [`VOCABULARY`] is all tokens.
#[track_caller]
pub fn iota(size: i64) -> Tensor {
    record("iota", &[], &[size])
}

/// How many tokens were chosen before, int.
#[track_caller]
pub fn step() -> Tensor {
    record("step", &[], &[])
}

/// How many tokens the context has, the newest one included, int; of the stage `attend`.
#[track_caller]
pub fn tokens() -> Tensor {
    record("tokens", &[], &[])
}

/// Which layer it is, from 0 on, int; of the stage `attend`.
#[track_caller]
pub fn layer() -> Tensor {
    record("layer", &[], &[])
}

/// Of `[heads, n]` the largest of the heads that share keys, for each; of the stage `attend`.
#[track_caller]
pub fn shared(values: Tensor) -> Tensor {
    record("shared", &[values.into()], &[])
}

/// What the layer has just given each token, float `[heads, tokens]`; of the stage `attend`.
#[track_caller]
pub fn weights() -> Tensor {
    weights_of(1)
}

/// As [`weights`]; of a prompt those of its last `window` inputs, added up, or of all with 0. Tokens
/// among these that have run before run again.
#[track_caller]
pub fn weights_of(window: i64) -> Tensor {
    record("weights", &[], &[window])
}

/// The largest product of the query with a key that each page can have, float `[heads, pages]`; of
/// the stage `attend`.
#[track_caller]
pub fn scores() -> Tensor {
    record("scores", &[], &[])
}

/// The newest tokens of the text, int `[count]`, the last one last; -1 before its beginning.
#[track_caller]
pub fn newest(count: i64) -> Tensor {
    record("newest", &[], &[count])
}

/// How often each token was generated, int `[vocabulary]`.
#[track_caller]
pub fn counts() -> Tensor {
    record("counts", &[], &[])
}

/// The logits of one of the contexts beside, float `[vocabulary]`: see
/// [`Generator::beside`](crate::Generator::beside).
#[track_caller]
pub fn beside(number: i64) -> Tensor {
    record("beside", &[], &[number])
}

/// Which tokens the text before the generation has, bool `[vocabulary]`.
#[track_caller]
pub fn given() -> Tensor {
    record("given", &[], &[])
}

/// `a` where a condition is true, else `b`.
#[track_caller]
pub fn where_(condition: Tensor, a: impl Into<Value>, b: impl Into<Value>) -> Tensor {
    let (a, b) = (a.into(), b.into());
    let like = match (a, b) {
        (Value::Tensor(one), _) | (_, Value::Tensor(one)) => one.kind(),
        _ => Kind::Float,
    };
    let [a, b] = [a, b].map(|value| constant(value, Some(like)).into());
    record("where", &[condition.into(), a, b], &[])
}

/// The smaller one; NaN if one is.
#[track_caller]
pub fn minimum(a: impl Into<Value>, b: impl Into<Value>) -> Tensor {
    record("minimum", &[a.into(), b.into()], &[])
}

/// The larger one; NaN if one is.
#[track_caller]
pub fn maximum(a: impl Into<Value>, b: impl Into<Value>) -> Tensor {
    record("maximum", &[a.into(), b.into()], &[])
}

/// Which of the likeliest are the fewest that have a share of all probability: bool `[n]`.
#[track_caller]
pub fn nucleus(logits: Tensor, share: impl Into<Value>) -> Tensor {
    record("nucleus", &[logits.into(), share.into()], &[])
}

/// 64 bits that look random, of two ints: number `b` of the SplitMix64 sequence from `a` on.
#[track_caller]
pub fn hash(a: impl Into<Value>, b: impl Into<Value>) -> Tensor {
    record("hash", &[a.into(), b.into()], &[])
}

/// The second one behind the first, along the last axis.
#[track_caller]
pub fn concat(a: Tensor, b: Tensor) -> Tensor {
    record("concat", &[a.into(), b.into()], &[])
}

/// The products of a matrix's rows `[n, m]` with a vector `[m]`: float `[n]`.
#[track_caller]
pub fn matvec(matrix: Tensor, vector: Tensor) -> Tensor {
    record("matvec", &[matrix.into(), vector.into()], &[])
}

/// True at a place, bool `[size]`.
#[track_caller]
pub fn one_hot(place: Tensor, size: i64) -> Tensor {
    iota(size).eq(place)
}

/// Random numbers, 0 up to 1, of ints: seed, step, stream and number alone decide.
#[track_caller]
pub fn random(numbers: impl Into<Value>, stream: i64) -> Tensor {
    record("random", &[numbers.into()], &[stream])
}

/// One random number, 0 up to 1.
#[track_caller]
pub fn uniform(stream: i64) -> Tensor {
    random(-1, stream)
}

/// As `random`, exponentially distributed.
#[track_caller]
pub fn exponential(numbers: impl Into<Value>, stream: i64) -> Tensor {
    record("exponential", &[numbers.into()], &[stream])
}

/// A token by chance: int, with the probabilities that logits `[n]` stand for.
#[track_caller]
pub fn draw(logits: Tensor) -> Tensor {
    draw_from(logits, 0)
}

/// As `draw`, from another stream of random numbers.
#[track_caller]
pub fn draw_from(logits: Tensor, stream: i64) -> Tensor {
    match type_of(logits).shape[..] {
        [size] => (logits - exponential(iota(size), stream).log()).argmax(),
        _ => mistake(format!("draw takes one axis, not {}", type_of(logits))),
    }
}

/// A function that chooses tokens where the model runs; made by [`program`].
#[derive(Clone, Copy, Debug)]
pub struct DeviceProgram<F>(F);

/// Makes a device program of a function of `logits` and `state`.
///
/// `logits` is float `[vocabulary]`, with minus infinity where a grammar rules a token out. The
/// function returns the token.
pub fn program<F: Fn(Tensor, &mut State) -> Tensor>(function: F) -> DeviceProgram<F> {
    DeviceProgram(function)
}

impl<F: Fn(Tensor, &mut State) -> Tensor> DeviceProgram<F> {
    /// A sampler of the program, with what it is given: `()` is nothing.
    ///
    /// Errors: `invalid-argument`, a mistake of the function, with its line.
    pub fn with(&self, values: impl Into<Values>) -> Result<ProgramSampler> {
        let values = values.into();
        let function = || (self.0)(record("logits", &[], &[]), &mut State(()));
        match recorded(values.types()?, Stage::Sample, function) {
            Ok(recorded) => ProgramSampler::new(recorded, values),
            Err(mistake) => invalid(mistake),
        }
    }
}

/// A function that chooses what layers read; made by [`attend`].
#[derive(Clone, Copy, Debug)]
pub struct AttendProgram<F>(F);

/// Makes a program of the stage `attend`: called once for each layer and generated token.
///
/// What the function reads says what it returns. After [`scores`] it returns which pages the layer
/// reads, bool `[pages]`. After [`weights`] it returns which tokens the layer still reads in the
/// steps that follow, bool `[tokens]`, and what it drops does not come back. Without either it
/// returns which tokens a layer reads. The newest token is always read.
///
/// A prompt reads all. With weights the function is called for it, too, once in each layer, as
/// [`step`] is 0: they are then those of the prompt's last input, or inputs, see [`weights_of`].
pub fn attend<F: Fn(&mut State) -> Tensor>(function: F) -> AttendProgram<F> {
    AttendProgram(function)
}

impl<F: Fn(&mut State) -> Tensor> AttendProgram<F> {
    /// The program with its state: `()` is nothing.
    ///
    /// Errors: `invalid-argument`, a mistake of the function, with its line.
    pub fn with(&self, values: impl Into<Values>) -> Result<Attend> {
        let values = values.into();
        match recorded(values.types()?, Stage::Attend, || (self.0)(&mut State(()))) {
            Ok(recorded) => Attend::new(recorded.text, recorded.told, &values),
            Err(mistake) => invalid(mistake),
        }
    }
}
