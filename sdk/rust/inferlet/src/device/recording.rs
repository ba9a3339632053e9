//! What a function does while it is called, and the text of it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;

use super::language::{HEADS, PAGES, TOKENS};
use super::types::{result_type, Kind, Type};
use super::{Tensor, Value};
use crate::json::quote;

const OTHER: &str = "a tensor that another call of a program has made";

/// An operation, the numbers of the nodes that it takes, and its own.
type Node = (&'static str, Vec<usize>, Vec<i64>);

/// Each operation once. The first mistake is kept with its place, and what follows it has no
/// meaning.
#[derive(Default)]
pub(super) struct Recording {
    /// By which its tensors are known.
    number: usize,
    /// What the program is given, in the order of the names.
    names: Vec<(String, Type)>,
    nodes: Vec<(Node, Type)>,
    known: BTreeMap<Node, usize>,
    /// Values for the next token, by the numbers of names.
    changed: BTreeMap<usize, Tensor>,
    mistake: Option<String>,
}

/// What became of a function.
pub(super) struct Recorded {
    /// Canonical.
    pub(super) text: String,
    pub(super) operations: BTreeSet<&'static str>,
    /// Contexts beside whose logits it reads.
    pub(super) beside: usize,
    /// Last inputs of a prompt whose weights it takes.
    pub(super) told: usize,
}

/// What a function returns: a token, or what is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Sample,
    Attend,
}

#[derive(Default)]
struct Recorder {
    current: Option<Recording>,
    /// Recordings before.
    count: usize,
}

thread_local! {
    static RECORDER: RefCell<Recorder> = RefCell::default();
}

/// The recording under way does something.
///
/// # Panics
/// Without one.
#[track_caller]
fn with<T>(what: &str, act: impl FnOnce(&mut Recording) -> T) -> T {
    match RECORDER.with_borrow_mut(|recorder| recorder.current.as_mut().map(act)) {
        Some(found) => found,
        None => panic!("{what}: there are tensors only within a function of `device::program`"),
    }
}

/// An operation on tensors, and on numbers that become constants.
#[track_caller]
pub(super) fn record(operation: &'static str, operands: &[Value], attributes: &[i64]) -> Tensor {
    let place = Location::caller();
    with(operation, |recording| {
        let made = recording.operation(operation, operands, attributes);
        recording.or_mistake(made, place)
    })
}

/// Says that something is wrong at the caller's line.
#[track_caller]
pub(super) fn mistake(what: String) -> Tensor {
    let place = Location::caller();
    with("device", |recording| recording.or_mistake(Err(what), place))
}

/// # Panics
/// Of a tensor of another recording.
#[track_caller]
pub(super) fn type_of(tensor: Tensor) -> Type {
    let found = with("type", |recording| {
        (tensor.recording == recording.number).then(|| recording.type_of(tensor))
    });
    found.expect(OTHER)
}

/// A number as a constant: a whole one beside floats is one of them.
#[track_caller]
pub(super) fn constant(value: Value, like: Option<Kind>) -> Tensor {
    let place = Location::caller();
    with("constant", |recording| {
        let made = recording.tensor(value, like);
        recording.or_mistake(made, place)
    })
}

/// The value of a name, or the one that it was set to before.
#[track_caller]
pub(super) fn read(name: &str) -> Tensor {
    let place = Location::caller();
    with("state", |recording| {
        let made = recording.read(name);
        recording.or_mistake(made, place)
    })
}

#[track_caller]
pub(super) fn change(name: &str, value: Value) {
    let place = Location::caller();
    with("state", |recording| {
        let made = recording.change(name, value);
        recording.or_mistake(made, place);
    });
}

/// Records what a function does: the program, or the mistake, with its place.
pub(super) fn recorded(
    mut names: Vec<(String, Type)>,
    stage: Stage,
    function: impl FnOnce() -> Tensor,
) -> Result<Recorded, String> {
    names.sort_by(|(a, _), (b, _)| a.cmp(b));
    let begun = RECORDER.with_borrow_mut(|recorder| {
        recorder.count += 1;
        let begun = Recording { number: recorder.count, names, ..Recording::default() };
        recorder.current.is_none().then(|| recorder.current = Some(begun))
    });
    if begun.is_none() {
        return Err("a whole program can't be called within another".into());
    }
    record("step", &[], &[]); // what a mistake stands for
    let token = function();
    match RECORDER.with_borrow_mut(|recorder| recorder.current.take()) {
        Some(recording) => recording.finish(token, stage),
        None => Err("the recording is gone".into()),
    }
}

impl Recording {
    fn or_mistake(&mut self, made: Result<Tensor, String>, place: &Location) -> Tensor {
        made.unwrap_or_else(|what| {
            self.mistake.get_or_insert(format!("{}:{}: {what}", place.file(), place.line()));
            Tensor { recording: self.number, number: 0 }
        })
    }

    fn type_of(&self, tensor: Tensor) -> Type {
        self.nodes[tensor.number].1.clone()
    }

    fn operation(
        &mut self,
        operation: &'static str,
        operands: &[Value],
        attributes: &[i64],
    ) -> Result<Tensor, String> {
        let like = operands.iter().find_map(|one| match one {
            Value::Tensor(tensor) if tensor.recording == self.number => Some(self.type_of(*tensor)),
            _ => None,
        });
        let like = like.map(|of| of.kind);
        let tensors = operands.iter().map(|&one| self.tensor(one, like));
        let tensors = tensors.collect::<Result<Vec<Tensor>, String>>()?;
        let types: Vec<Type> = tensors.iter().map(|&one| self.type_of(one)).collect();
        let numbers = tensors.iter().map(|one| one.number).collect();
        let of = result_type(operation, &types, attributes)?;
        Ok(self.put((operation, numbers, attributes.to_vec()), of))
    }

    fn put(&mut self, node: Node, of: Type) -> Tensor {
        let number = *self.known.entry(node.clone()).or_insert_with(|| {
            self.nodes.push((node, of));
            self.nodes.len() - 1
        });
        Tensor { recording: self.number, number }
    }

    fn tensor(&mut self, value: Value, like: Option<Kind>) -> Result<Tensor, String> {
        let (kind, number) = match value {
            Value::Tensor(tensor) if tensor.recording == self.number => return Ok(tensor),
            Value::Tensor(_) => return Err(OTHER.into()),
            Value::Bool(truth) => (Kind::Bool, i64::from(truth)),
            Value::Int(number) if like != Some(Kind::Float) => (Kind::Int, number),
            Value::Int(number) => (Kind::Float, float_bits(number as f64)?),
            Value::Float(number) => (Kind::Float, float_bits(number)?),
        };
        self.operation("constant", &[], &[kind as i64, number])
    }

    fn name(&self, name: &str) -> Result<usize, String> {
        self.names.iter().position(|(one, _)| one == name).ok_or_else(|| {
            let names: Vec<&str> = self.names.iter().map(|(one, _)| one.as_str()).collect();
            let given = if names.is_empty() { String::from("nothing") } else { names.join(", ") };
            format!("there is no state.{name}; the program was given {given}")
        })
    }

    fn read(&mut self, name: &str) -> Result<Tensor, String> {
        let number = self.name(name)?;
        Ok(self.changed.get(&number).copied().unwrap_or_else(|| self.given(number)))
    }

    fn given(&mut self, number: usize) -> Tensor {
        let of = self.names[number].1.clone();
        self.put(("state", Vec::new(), vec![number as i64]), of)
    }

    fn change(&mut self, name: &str, value: Value) -> Result<Tensor, String> {
        let number = self.name(name)?;
        let of = self.names[number].1.clone();
        let tensor = self.tensor(value, Some(of.kind))?;
        let becomes = self.type_of(tensor);
        if becomes != of {
            return Err(format!("state.{name} is {of}, and becomes {becomes}"));
        }
        self.changed.insert(number, tensor);
        Ok(tensor)
    }

    /// What was recorded, as far as the token (or what is kept) and the next state need it.
    fn finish(mut self, token: Tensor, stage: Stage) -> Result<Recorded, String> {
        if let Some(mistake) = self.mistake {
            return Err(mistake);
        }
        let token = self.tensor(token.into(), None)?;
        let of = self.type_of(token);
        let by_page = self.nodes.iter().any(|((operation, ..), _)| *operation == "scores");
        let (key, told, wanted) = match stage {
            Stage::Sample => ("token", "a program returns a token,", Type::new(Kind::Int, &[])),
            Stage::Attend => {
                let axis = if by_page { PAGES } else { TOKENS };
                let kept: &[i64] = if of.shape.len() == 2 { &[HEADS, axis] } else { &[axis] };
                ("keep", "what is kept is", Type::new(Kind::Bool, kept))
            }
        };
        if of != wanted {
            return Err(format!("the function returned {of}: {told} {wanted}"));
        }
        let changed = std::mem::take(&mut self.changed).into_iter();
        let changed: Vec<(usize, Tensor)> =
            changed.filter(|&(name, value)| self.given(name).number != value.number).collect();
        let mut order = Vec::new();
        let mut places = BTreeMap::new();
        for root in [token].into_iter().chain(changed.iter().map(|&(_, value)| value)) {
            self.visit(root.number, &mut order, &mut places);
        }
        let names = self.names.iter().map(|(name, of)| {
            format!("[{},{},{}]", quote(name), of.kind as u8, list(of.shape.iter()))
        });
        let nodes = order.iter().map(|&number| {
            let (operation, operands, attributes) = &self.nodes[number].0;
            let operands = operands.iter().map(|one| places[one]);
            format!("[\"{operation}\",{},{}]", list(operands), list(attributes.iter()))
        });
        let next = changed.iter().map(|(name, value)| list([*name, places[&value.number]]));
        let (names, nodes, next, token) =
            (list(names), list(nodes), list(next), places[&token.number]);
        let operations = order.iter().map(|&number| self.nodes[number].0 .0).collect();
        let others = order.iter().filter_map(|&number| match &self.nodes[number].0 {
            ("beside", _, attributes) => Some(attributes[0] as usize + 1),
            _ => None,
        });
        let beside = others.max().unwrap_or(0);
        let told = order.iter().find_map(|&number| match &self.nodes[number].0 {
            ("weights", _, attributes) if attributes[0] == 0 => Some(usize::MAX),
            ("weights", _, attributes) => Some(attributes[0] as usize),
            _ => None,
        });
        let told = told.unwrap_or(0);
        let text =
            format!("{{\"state\":{names},\"nodes\":{nodes},\"{key}\":{token},\"next\":{next}}}");
        Ok(Recorded { text, operations, beside, told })
    }

    /// Operands first; with a stack, for recordings are deep.
    fn visit(&self, root: usize, order: &mut Vec<usize>, places: &mut BTreeMap<usize, usize>) {
        let mut waiting = vec![(root, false)];
        while let Some((number, is_ready)) = waiting.pop() {
            if places.contains_key(&number) {
                continue;
            }
            if is_ready {
                places.insert(number, order.len());
                order.push(number);
                continue;
            }
            waiting.push((number, true));
            let (_, operands, _) = &self.nodes[number].0;
            waiting.extend(operands.iter().rev().map(|&one| (one, false)));
        }
    }
}

fn float_bits(number: f64) -> Result<i64, String> {
    let float = number as f32;
    match number.is_finite() && float.is_infinite() {
        true => Err(format!("{number:?} is too large for float32")),
        false => Ok(i64::from(float.to_bits())),
    }
}

fn list(parts: impl IntoIterator<Item = impl ToString>) -> String {
    let parts: Vec<String> = parts.into_iter().map(|part| part.to_string()).collect();
    format!("[{}]", parts.join(","))
}
