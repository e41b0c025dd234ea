//! What a rendering may build in memory.
//!
//! Fuel bounds the steps of a template, but a text that is doubled in forty steps has as many terabytes. So every step
//! that makes text or lists pays for it from a [`Budget`] before it is done: operators, which are compiled into the filters
//! of [`install`] in place of the engine's own instructions ([`rewrite`]); what is written, captured or not; filters,
//! methods and functions. What a value holds in common with others is paid for once, what is written of it every time.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::machinery::{CodeGenerator, Instruction, Instructions, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Value, functions};

/// Bytes that an element of a list takes beside its text, and an entry of a map.
const ELEMENT: usize = 32;
const ENTRY: usize = 96;
/// A filter that is looked up by its name each time.
const NO_LOCAL: u8 = !0;

/// The instructions that [`rewrite`] puts in place of operators are these filters. No template can name them.
const ADD: &str = "+";
const CONCATENATE: &str = "~";
const MULTIPLY: &str = "*";
const SLICE: &str = "[:]";

/// Filters whose result is about as large as their input.
const FILTERS: [&str; 39] = [
    "abs",
    "attr",
    "bool",
    "capitalize",
    "chain",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "groupby",
    "int",
    "items",
    "last",
    "length",
    "lines",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "sort",
    "split",
    "string",
    "sum",
    "title",
    "trim",
    "unique",
    "upper",
];
/// Those of them, and methods, that make lists of what they are given, texts included.
const LISTS: [&str; 12] =
    ["chain", "list", "map", "max", "min", "reject", "reverse", "select", "sort", "sum", "unique", "zip"];
/// Those of them that take lists and maps as such. The others write them as text first.
const TAKE_LISTS: [&str; 29] = [
    "attr",
    "bool",
    "chain",
    "count",
    "d",
    "default",
    "dictsort",
    "first",
    "get",
    "groupby",
    "items",
    "join",
    "keys",
    "last",
    "length",
    "list",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "reverse",
    "select",
    "selectattr",
    "sort",
    "sum",
    "tojson",
    "unique",
    "values",
];

/// Bytes that may still be built, shared by all that build.
#[derive(Clone, Debug)]
pub(super) struct Budget(Arc<AtomicUsize>);

impl Budget {
    /// A budget of `bytes`.
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// Pays for `bytes`.
    fn spend(&self, bytes: usize) -> Result<(), Error> {
        let spent = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        spent.map(drop).map_err(|_| too_much())
    }

    /// Refuses what could not be paid for.
    fn check(&self, bytes: usize) -> Result<(), Error> {
        if bytes <= self.0.load(Ordering::Relaxed) { Ok(()) } else { Err(too_much()) }
    }

    /// Pays for the text of `value`, and returns it. Lists that hold themselves many times over have far longer texts than
    /// they take memory: no more is written than is left.
    fn text(&self, value: &Value) -> Result<String, Error> {
        let mut text = Text { text: String::new(), budget: self };
        write!(text, "{value}").map_err(|_| too_much())?;
        Ok(text.text)
    }

    /// Pays for a value that was built.
    fn pay(&self, value: Value) -> Result<Value, Error> {
        let bytes = match value.kind() {
            ValueKind::String => value.as_str().map_or(0, str::len),
            ValueKind::Seq => {
                let length = |value: Value| ELEMENT + value.as_str().map_or(0, str::len);
                value.try_iter()?.map(length).sum()
            }
            ValueKind::Map => ENTRY * value.len().unwrap_or(0),
            _ => 0,
        };
        self.spend(bytes)?;
        Ok(value)
    }
}

fn too_much() -> Error {
    Error::new(ErrorKind::InvalidOperation, "it builds more text than any conversation needs")
}

/// Text that is paid for as it is written.
struct Text<'a> {
    text: String,
    budget: &'a Budget,
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.budget.spend(text.len()).map_err(|_| fmt::Error)?;
        self.text.push_str(text);
        Ok(())
    }
}

/// As [`Text`], for serializers.
pub(super) struct Bytes {
    pub(super) bytes: Vec<u8>,
    pub(super) budget: Budget,
}

impl io::Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.budget.spend(bytes.len()).map_err(io::Error::other)?;
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A compiled template: its instructions, and those of its blocks.
pub(super) type Compiled<'s> = (Instructions<'s>, BTreeMap<&'s str, Instructions<'s>>);

/// Compiles `source`, which errors call `name`.
pub(super) fn compile<'s>(name: &'s str, source: &'s str, syntax: SyntaxConfig) -> Result<Compiled<'s>, Error> {
    let tree = parse(source, name, syntax)?;
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&tree);
    let (instructions, blocks) = generator.finish();
    let blocks = blocks.into_iter().map(|(block, instructions)| (block, rewrite(&instructions))).collect();
    Ok((rewrite(&instructions), blocks))
}

/// The same instructions, with operators and plain text that pay.
fn rewrite<'s>(instructions: &Instructions<'s>) -> Instructions<'s> {
    let all = || (0..).map_while(|index| Some((index, instructions.get(index)?)));
    // Plain text becomes two instructions, so that what is behind it moves.
    let mut places = vec![0];
    for (_, instruction) in all() {
        let width = if matches!(instruction, Instruction::EmitRaw(_)) { 2 } else { 1 };
        places.push(places.last().copied().unwrap_or(0) + width);
    }
    let place = |target: u32| places.get(target as usize).copied().unwrap_or(target);
    let filter = |name, arguments| Instruction::ApplyFilter(name, Some(arguments), NO_LOCAL);
    let mut rewritten = Instructions::new(instructions.name(), instructions.source());
    for (index, instruction) in all() {
        let mut add = |instruction| match (instructions.get_span(index), instructions.get_line(index)) {
            (Some(span), _) => rewritten.add_with_span(instruction, span),
            (None, Some(line)) => rewritten.add_with_line(instruction, line.try_into().unwrap_or(u16::MAX)),
            (None, None) => rewritten.add(instruction),
        };
        match instruction.clone() {
            Instruction::EmitRaw(text) => {
                add(Instruction::LoadConst(Value::from(text)));
                add(Instruction::Emit)
            }
            Instruction::Add => add(filter(ADD, 2)),
            Instruction::StringConcat => add(filter(CONCATENATE, 2)),
            Instruction::Mul => add(filter(MULTIPLY, 2)),
            Instruction::Slice => add(filter(SLICE, 4)),
            Instruction::Jump(target) => add(Instruction::Jump(place(target))),
            Instruction::JumpIfFalse(target) => add(Instruction::JumpIfFalse(place(target))),
            Instruction::JumpIfFalseOrPop(target) => add(Instruction::JumpIfFalseOrPop(place(target))),
            Instruction::JumpIfTrueOrPop(target) => add(Instruction::JumpIfTrueOrPop(place(target))),
            Instruction::Iterate(target) => add(Instruction::Iterate(place(target))),
            Instruction::BuildMacro(name, target, flags) => add(Instruction::BuildMacro(name, place(target), flags)),
            other => add(other),
        };
    }
    rewritten
}

/// Lets everything in `environment` that builds text or lists pay from `budget`.
pub(super) fn install(environment: &mut Environment<'static>, budget: &Budget) {
    let plain = Arc::new(environment.clone());
    install_operators(environment, &plain, budget);
    let paying = budget.clone();
    environment.set_formatter(move |out, _, value| match value.as_str() {
        Some(text) => {
            paying.spend(text.len())?;
            Ok(out.write_str(text)?)
        }
        None => Ok(out.write_str(&paying.text(value)?)?),
    });
    // Filters that apply others by name (`map`) find those that pay, too.
    for round in [&FILTERS[..], &["map"]] {
        let before = Arc::new(environment.clone());
        for name in round.iter().copied() {
            let (before, budget) = (Arc::clone(&before), budget.clone());
            environment.add_filter(name, move |arguments: Rest<ValueOrKwargs>| {
                let arguments = arguments.into_values();
                check_arguments(&budget, name, &arguments)?;
                budget.pay(before.empty_state().apply_filter(name, &arguments)?)
            });
        }
        if round.len() > 1 {
            install_growing(environment, &plain, budget);
        }
    }
    let paying = budget.clone();
    environment.set_unknown_method_callback(move |state, value, method, arguments| {
        let all: Vec<_> = [value].into_iter().chain(arguments).cloned().collect();
        match method {
            "replace" => pay_replace(&paying, &all)?,
            "join" => pay_join(&paying, arguments.first(), value)?,
            "split" | "splitlines" => pay_split(&paying, &all)?,
            _ => check_arguments(&paying, method, &all)?,
        }
        let result = super::python::method(state, value, method, arguments)?;
        if matches!(method, "replace" | "join") { Ok(result) } else { paying.pay(result) }
    });
    let paying = budget.clone();
    environment.add_function("dict", move |value: Option<Value>, more: Kwargs| {
        paying.spend(ENTRY * value.as_ref().and_then(Value::len).unwrap_or(0))?;
        functions::dict(value, more)
    });
}

fn install_operators(environment: &mut Environment<'static>, plain: &Arc<Environment<'static>>, budget: &Budget) {
    let compute = |expression: &'static str, plain: &Arc<Environment<'static>>| {
        let plain = Arc::clone(plain);
        move |values: &[Value]| {
            let names = ["a", "b", "c", "d"];
            let context = Value::from_pairs(names.into_iter().zip(values.iter().cloned()));
            // The line in the template is added behind this, and the names are none of the template's.
            let anonymous = |error: Error| {
                let detail = error.detail().unwrap_or_default();
                Error::new(error.kind(), detail.split(" (`").next().unwrap_or_default().to_owned())
            };
            plain.compile_expression(expression)?.eval(context).map_err(anonymous)
        }
    };
    let (paying, add) = (budget.clone(), compute("a + b", plain));
    environment.add_filter(ADD, move |a: Value, b: Value| {
        match (a.as_str(), b.as_str()) {
            (Some(a), Some(b)) => paying.spend(a.len() + b.len())?,
            _ => paying.spend(ELEMENT * (elements(&a) + elements(&b)))?,
        }
        add(&[a, b])
    });
    let paying = budget.clone();
    environment.add_filter(CONCATENATE, move |a: Value, b: Value| {
        let mut text = paying.text(&a)?;
        text.push_str(&paying.text(&b)?);
        Ok::<_, Error>(Value::from(text))
    });
    let (paying, multiply) = (budget.clone(), compute("a * b", plain));
    environment.add_filter(MULTIPLY, move |a: Value, b: Value| {
        let times = |value: &Value, count: &Value| match (value.as_str(), count.as_usize()) {
            (Some(text), Some(count)) => text.len().saturating_mul(count),
            (None, Some(count)) => ELEMENT.saturating_mul(elements(value)).saturating_mul(count),
            _ => 0,
        };
        paying.spend(times(&a, &b).max(times(&b, &a)))?;
        multiply(&[a, b])
    });
    let (paying, slice) = (budget.clone(), compute("a[b:c:d]", plain));
    environment.add_filter(SLICE, move |a: Value, b: Value, c: Value, d: Value| {
        paying.spend(a.as_str().map_or_else(|| ELEMENT * elements(&a), str::len))?;
        slice(&[a, b, c, d])
    });
}

/// Filters whose result may be larger than all of their input.
fn install_growing(environment: &mut Environment<'static>, plain: &Arc<Environment<'static>>, budget: &Budget) {
    let (before, paying) = (Arc::clone(plain), budget.clone());
    environment.add_filter("replace", move |arguments: Rest<ValueOrKwargs>| {
        let arguments = arguments.into_values();
        pay_replace(&paying, &arguments)?;
        before.empty_state().apply_filter("replace", &arguments)
    });
    let (before, paying) = (Arc::clone(plain), budget.clone());
    environment.add_filter("join", move |arguments: Rest<ValueOrKwargs>| {
        let arguments = arguments.into_values();
        if let [value, rest @ ..] = &arguments[..] {
            pay_join(&paying, Some(value), rest.first().unwrap_or(&Value::UNDEFINED))?;
        }
        before.empty_state().apply_filter("join", &arguments)
    });
    let paying = budget.clone();
    environment.add_filter("tojson", move |value: &Value, arguments: Rest<ValueOrKwargs>| {
        let mut bytes = Bytes { bytes: Vec::new(), budget: paying.clone() };
        super::json::write(value, &arguments.into_values(), &mut bytes)?;
        String::from_utf8(bytes.bytes).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
    });
}

/// Elements of a list or map; 0 of anything else.
fn elements(value: &Value) -> usize {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => value.len().unwrap_or(0),
        _ => 0,
    }
}

/// Refuses arguments of `name`, a filter or a method, that would take more than is left while it works.
fn check_arguments(budget: &Budget, name: &str, arguments: &[Value]) -> Result<(), Error> {
    for value in arguments {
        if LISTS.contains(&name) {
            budget.check(ELEMENT.saturating_mul(value.len().unwrap_or(0)))?;
        }
        if !TAKE_LISTS.contains(&name) && elements(value) > 0 {
            drop(budget.text(value)?);
        }
        if matches!(name, "split" | "lines") {
            return pay_split(budget, arguments);
        }
    }
    Ok(())
}

/// Pays for `arguments[0]` with each `arguments[1]` replaced by `arguments[2]`.
fn pay_replace(budget: &Budget, arguments: &[Value]) -> Result<(), Error> {
    let [Some(text), Some(from), Some(to)] = [0, 1, 2].map(|index| arguments.get(index).and_then(Value::as_str)) else {
        return arguments.iter().try_for_each(|value| budget.text(value).map(drop));
    };
    budget.spend(text.len().saturating_add(text.matches(from).count().saturating_mul(to.len())))
}

/// Pays for the elements of `values` with `between` between them.
fn pay_join(budget: &Budget, values: Option<&Value>, between: &Value) -> Result<(), Error> {
    let between = between.as_str().map_or(0, str::len);
    for value in values.and_then(|values| values.try_iter().ok()).into_iter().flatten() {
        budget.spend(between)?;
        match value.as_str() {
            Some(text) => budget.spend(text.len())?,
            None => drop(budget.text(&value)?),
        }
    }
    Ok(())
}

/// Pays for the parts of `arguments[0]` between each `arguments[1]`, or between spaces or lines.
fn pay_split(budget: &Budget, arguments: &[Value]) -> Result<(), Error> {
    let Some(text) = arguments.first().and_then(Value::as_str) else { return Ok(()) };
    let parts = match arguments.get(1).and_then(Value::as_str) {
        Some(between) if !between.is_empty() => text.matches(between).count(),
        _ => text.matches(char::is_whitespace).count(),
    };
    budget.check(text.len().saturating_add(ELEMENT.saturating_mul(parts + 1)))
}
