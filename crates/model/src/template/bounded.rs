//! Limits for the memory of a rendering.
//!
//! Fuel limits the steps of a template, but a string that is doubled in forty steps has terabytes. So every step that
//! creates strings or lists first pays for it from a [`Budget`]: operators, which are compiled into the filters of
//! [`install`] in place of the engine's own instructions ([`rewrite`]); output, captured or not; filters, methods and
//! functions. Data that values share is paid for once; its text every time it is written.
//!
//! Further instructions between these check the clock and weigh the values that were built: see
//! [`steps`](super::steps).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::machinery::{CodeGenerator, Instruction, Instructions, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Value, functions};

use super::steps::{Clock, Place};

/// Bytes of a list element, in addition to its text, and of a map entry.
const ELEMENT: usize = 32;
const ENTRY: usize = 96;
/// Marks a filter that is looked up by its name each time.
const NO_LOCAL: u8 = !0;

/// The filters that [`rewrite`] substitutes for operators. No template can name them.
const ADD: &str = "+";
const CONCATENATE: &str = "~";
const MULTIPLY: &str = "*";
const SLICE: &str = "[:]";
/// Filters that check their argument and return it.
const TICK: &str = "!";
const HOLD: &str = "[]";
const HOLD_ARGUMENTS: &str = "()";
const HOLD_IN_NAMESPACE: &str = ".=";

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
/// Filters and methods that convert their arguments to lists, strings included.
const LISTS: [&str; 12] = [
    "chain", "list", "map", "max", "min", "reject", "reverse", "select", "sort", "sum", "unique",
    "zip",
];
/// Filters that compare each element with many others.
const SORTS: [&str; 6] = ["dictsort", "groupby", "max", "min", "sort", "unique"];
/// Tests whose time is proportional to the size of their arguments.
const TESTS: [&str; 22] = [
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
    "lt",
    "lessthan",
    "<",
    "le",
    "<=",
    "gt",
    "greaterthan",
    ">",
    "ge",
    ">=",
    "in",
    "lower",
    "upper",
    "startingwith",
    "endingwith",
    "sameas",
    "iterable",
];
/// Filters that accept lists and maps directly. The others first convert them to text.
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

/// The bytes that may still be built, shared by all users of the budget, and the clock.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    left: Arc<AtomicUsize>,
    clock: Clock,
}

impl Budget {
    /// Creates a budget of `bytes`, with the time limit of `clock`.
    pub(super) fn new(bytes: usize, clock: Clock) -> Self {
        Self {
            left: Arc::new(AtomicUsize::new(bytes)),
            clock,
        }
    }

    /// Pays for `bytes`.
    fn spend(&self, bytes: usize) -> Result<(), Error> {
        let spent = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(bytes)
            });
        spent.map(drop).map_err(|_| too_much())
    }

    /// Refuses bytes that exceed the budget.
    fn check(&self, bytes: usize) -> Result<(), Error> {
        if bytes <= self.left.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err(too_much())
        }
    }

    /// Pays for the text of `value`, and returns it. The text of a list that contains another one many times is far
    /// longer than its memory: no more is written than the budget allows.
    fn text(&self, value: &Value) -> Result<String, Error> {
        self.clock.check()?;
        let mut text = Text {
            text: String::new(),
            budget: self,
        };
        write!(text, "{value}").map_err(|_| too_much())?;
        Ok(text.text)
    }

    /// Pays for a value that was built. Lazy values are computed now: chains of them would be as deep as they are long.
    fn pay(&self, mut value: Value) -> Result<Value, Error> {
        self.clock.check()?;
        if value.kind() == ValueKind::Iterable {
            value = self.list(value.try_iter()?)?;
        }
        self.clock.hold(&value, Place::Any)?;
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

    /// Returns the result of an operator, which has already paid for it, as a list if it is iterable.
    fn pay_list(&self, value: Value) -> Result<Value, Error> {
        self.clock.check()?;
        let value = if value.kind() == ValueKind::Iterable {
            self.list(value.try_iter()?)?
        } else {
            value
        };
        self.clock.hold(&value, Place::Any)?;
        Ok(value)
    }

    /// Returns a list of `values`, as far as the budget allows.
    fn list(&self, values: impl Iterator<Item = Value>) -> Result<Value, Error> {
        let mut list = Vec::new();
        for value in values {
            self.check(ELEMENT.saturating_mul(list.len()))?;
            list.push(value);
        }
        Ok(Value::from(list))
    }
}

fn too_much() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        "it builds more text than any conversation needs",
    )
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

/// Does the same as [`Text`] for serializers.
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

/// Compiles `source`; errors use `name` for it.
pub(super) fn compile<'s>(
    name: &'s str,
    source: &'s str,
    syntax: SyntaxConfig,
) -> Result<Compiled<'s>, Error> {
    let tree = parse(source, name, syntax)?;
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&tree);
    let (instructions, blocks) = generator.finish();
    let blocks = blocks
        .into_iter()
        .map(|(block, instructions)| Ok((block, rewrite(&instructions)?)));
    Ok((
        rewrite(&instructions)?,
        blocks.collect::<Result<_, Error>>()?,
    ))
}

/// Returns the same instructions, with operators and plain text that pay, and with steps in between that check the
/// clock and the built values.
fn rewrite<'s>(instructions: &Instructions<'s>) -> Result<Instructions<'s>, Error> {
    let all: Vec<_> = (0..).map_while(|index| instructions.get(index)).collect();
    let targets: BTreeSet<_> = all
        .iter()
        .filter_map(|instruction| target(instruction))
        .collect();
    let mut before = vec![None; all.len()];
    for (index, instruction) in all.iter().enumerate() {
        let is_constant =
            index > 0 && !targets.contains(&(index as u32)) && is_scalar(all[index - 1]);
        match instruction {
            Instruction::StoreLocal(_) | Instruction::PushLoop(_) | Instruction::MergeKwargs(_) => {
                before[index] = Some(TICK);
            }
            Instruction::Eq
            | Instruction::Ne
            | Instruction::Gt
            | Instruction::Gte
            | Instruction::Lt
            | Instruction::Lte
            | Instruction::In
            | Instruction::CompareAndPreserve(_)
            | Instruction::GetItem
            | Instruction::UnpackList(_)
            | Instruction::BuildMap(1..)
            | Instruction::PerformTest(..)
            | Instruction::CallMethod(..)
                if !is_constant =>
            {
                before[index] = Some(TICK);
            }
            Instruction::SetAttr(_) => {
                // The value is pushed before the lookup of the namespace.
                let lookup = (0..index)
                    .rev()
                    .find(|place| !matches!(all[*place], Instruction::GetAttr(_)));
                let lookup = lookup.filter(|place| matches!(all[*place], Instruction::Lookup(_)));
                let unknown = || {
                    Error::new(
                        ErrorKind::SyntaxError,
                        "expected the name of a namespace before =",
                    )
                };
                before[lookup.ok_or_else(unknown)?] = Some(HOLD_IN_NAMESPACE);
            }
            Instruction::UnpackLists(_) => {
                let message =
                    "a call with the elements of a list as arguments (*list) is not supported";
                return Err(Error::new(ErrorKind::SyntaxError, message));
            }
            _ => {}
        }
    }
    let after = |instruction: &Instruction| match instruction {
        Instruction::BuildList(_) | Instruction::BuildTuple(_) | Instruction::BuildMap(_) => {
            Some(HOLD)
        }
        Instruction::BuildKwargs(_) | Instruction::MergeKwargs(_) => Some(HOLD_ARGUMENTS),
        _ => None,
    };
    let mut places = vec![0];
    for (instruction, before) in all.iter().zip(&before) {
        // Plain text becomes two instructions.
        let text = usize::from(matches!(instruction, Instruction::EmitRaw(_)));
        let width =
            1 + text + usize::from(before.is_some()) + usize::from(after(instruction).is_some());
        places.push(places.last().copied().unwrap_or(0) + width as u32);
    }
    let place = |target: u32| places.get(target as usize).copied().unwrap_or(target);
    let filter = |name, arguments| Instruction::ApplyFilter(name, Some(arguments), NO_LOCAL);
    let mut rewritten = Instructions::new(instructions.name(), instructions.source());
    for (index, instruction) in all.iter().enumerate() {
        let (span, line) = (
            instructions.get_span(index as u32),
            instructions.get_line(index as u32),
        );
        let mut add = |instruction| match (span, line) {
            (Some(span), _) => rewritten.add_with_span(instruction, span),
            (None, Some(line)) => {
                rewritten.add_with_line(instruction, line.try_into().unwrap_or(u16::MAX))
            }
            (None, None) => rewritten.add(instruction),
        };
        if let Some(name) = before[index] {
            add(filter(name, 1));
        }
        match (*instruction).clone() {
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
            Instruction::JumpIfFalseOrPop(target) => {
                add(Instruction::JumpIfFalseOrPop(place(target)))
            }
            Instruction::JumpIfTrueOrPop(target) => {
                add(Instruction::JumpIfTrueOrPop(place(target)))
            }
            Instruction::Iterate(target) => add(Instruction::Iterate(place(target))),
            Instruction::BuildMacro(name, target, flags) => {
                add(Instruction::BuildMacro(name, place(target), flags))
            }
            other => add(other),
        };
        if let Some(name) = after(instruction) {
            add(filter(name, 1));
        }
    }
    Ok(rewritten)
}

/// Returns the jump target of an instruction, if it has one.
fn target(instruction: &Instruction) -> Option<u32> {
    match instruction {
        Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::Iterate(target)
        | Instruction::BuildMacro(_, target, _) => Some(*target),
        _ => None,
    }
}

/// Returns whether an instruction loads a number, a short string or another scalar.
fn is_scalar(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::LoadConst(value) if value.as_object().is_none())
}

/// Makes everything in `environment` that builds text or lists pay from `budget`.
pub(super) fn install(environment: &mut Environment<'static>, budget: &Budget) {
    // It writes all variables, however large.
    environment.remove_global("debug");
    let plain = Arc::new(environment.clone());
    install_operators(environment, &plain, budget);
    install_steps(environment, &plain, budget);
    let paying = budget.clone();
    environment.set_formatter(move |out, _, value| match value.as_str() {
        Some(text) => {
            paying.spend(text.len())?;
            Ok(out.write_str(text)?)
        }
        None => Ok(out.write_str(&paying.text(value)?)?),
    });
    // Filters that apply others by name (`map`) must also find those that pay.
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
        if matches!(method, "replace" | "join") {
            Ok(result)
        } else {
            paying.pay(result)
        }
    });
    let paying = budget.clone();
    environment.add_function("dict", move |value: Option<Value>, more: Kwargs| {
        paying.spend(ENTRY * value.as_ref().and_then(Value::len).unwrap_or(0))?;
        let made = functions::dict(value, more)?;
        paying.clock.hold(&made, Place::Any)?;
        Ok::<_, Error>(made)
    });
    let paying = budget.clone();
    environment.add_function("namespace", move |values: Option<ValueOrKwargs>| {
        let made = functions::namespace(values)?;
        paying.clock.hold(&made, Place::Any)?;
        Ok::<_, Error>(made)
    });
}

/// Installs the filters that [`rewrite`] puts between instructions, and tests that check the clock.
fn install_steps(
    environment: &mut Environment<'static>,
    plain: &Arc<Environment<'static>>,
    budget: &Budget,
) {
    let clock = budget.clock.clone();
    environment.add_filter(TICK, move |value: ValueOrKwargs| {
        clock.check().map(|()| value.into_value())
    });
    for (name, place) in [
        (HOLD, Place::Any),
        (HOLD_ARGUMENTS, Place::Arguments),
        (HOLD_IN_NAMESPACE, Place::Namespace),
    ] {
        let clock = budget.clock.clone();
        environment.add_filter(name, move |value: ValueOrKwargs| {
            let value = value.into_value();
            clock.hold(&value, place).map(|_| value)
        });
    }
    for name in TESTS {
        let (clock, plain) = (budget.clock.clone(), Arc::clone(plain));
        environment.add_test(name, move |arguments: Rest<ValueOrKwargs>| {
            clock.check()?;
            plain
                .empty_state()
                .perform_test(name, &arguments.into_values())
        });
    }
}

fn install_operators(
    environment: &mut Environment<'static>,
    plain: &Arc<Environment<'static>>,
    budget: &Budget,
) {
    let compute = |expression: &'static str, plain: &Arc<Environment<'static>>| {
        let plain = Arc::clone(plain);
        move |values: &[Value]| {
            let names = ["a", "b", "c", "d"];
            let context = Value::from_pairs(names.into_iter().zip(values.iter().cloned()));
            // The line in the template is appended later, and the filter's name is none that the template uses.
            let anonymous = |error: Error| {
                let detail = error.detail().unwrap_or_default();
                Error::new(
                    error.kind(),
                    detail.split(" (`").next().unwrap_or_default().to_owned(),
                )
            };
            plain
                .compile_expression(expression)?
                .eval(context)
                .map_err(anonymous)
        }
    };
    let (paying, add) = (budget.clone(), compute("a + b", plain));
    environment.add_filter(ADD, move |a: Value, b: Value| {
        match (a.as_str(), b.as_str()) {
            (Some(a), Some(b)) => paying.spend(a.len() + b.len())?,
            _ => paying.spend(ELEMENT * (elements(&a) + elements(&b)))?,
        }
        paying.pay_list(add(&[a, b])?)
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
            (None, Some(count)) => ELEMENT
                .saturating_mul(elements(value))
                .saturating_mul(count),
            _ => 0,
        };
        paying.spend(times(&a, &b).max(times(&b, &a)))?;
        paying.pay_list(multiply(&[a, b])?)
    });
    let (paying, slice) = (budget.clone(), compute("a[b:c:d]", plain));
    environment.add_filter(SLICE, move |a: Value, b: Value, c: Value, d: Value| {
        paying.spend(a.as_str().map_or_else(|| ELEMENT * elements(&a), str::len))?;
        paying.pay_list(slice(&[a, b, c, d])?)
    });
}

/// Installs filters whose result may be larger than all of their input.
fn install_growing(
    environment: &mut Environment<'static>,
    plain: &Arc<Environment<'static>>,
    budget: &Budget,
) {
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
            pay_join(
                &paying,
                Some(value),
                rest.first().unwrap_or(&Value::UNDEFINED),
            )?;
        }
        before.empty_state().apply_filter("join", &arguments)
    });
    let paying = budget.clone();
    environment.add_filter(
        "tojson",
        move |value: &Value, arguments: Rest<ValueOrKwargs>| {
            let mut bytes = Bytes {
                bytes: Vec::new(),
                budget: paying.clone(),
            };
            super::json::write(value, &arguments.into_values(), &mut bytes)?;
            String::from_utf8(bytes.bytes)
                .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
        },
    );
}

/// Returns the number of elements of a list or map; 0 for anything else.
fn elements(value: &Value) -> usize {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => value.len().unwrap_or(0),
        _ => 0,
    }
}

/// Refuses arguments of `name`, a filter or a method, that would need more than the remaining budget during the call.
fn check_arguments(budget: &Budget, name: &str, arguments: &[Value]) -> Result<(), Error> {
    budget.clock.check()?;
    if let Some(value) = arguments.first().filter(|_| SORTS.contains(&name)) {
        budget.clock.hold_sorted(value)?;
    }
    if name == "sum" {
        check_sum(arguments)?;
    }
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

/// Refuses sums that start with a string or a list, which would be copied for every element.
fn check_sum(arguments: &[Value]) -> Result<(), Error> {
    let named = arguments.last().and_then(|last| {
        Kwargs::try_from(last.clone())
            .ok()?
            .get::<Value>("start")
            .ok()
    });
    match named.or_else(|| arguments.get(2).cloned()) {
        Some(start) if !start.is_number() => Err(Error::new(
            ErrorKind::InvalidOperation,
            "sum: expected a number to begin with",
        )),
        _ => Ok(()),
    }
}

/// Pays for `arguments[0]` with each `arguments[1]` replaced by `arguments[2]`.
fn pay_replace(budget: &Budget, arguments: &[Value]) -> Result<(), Error> {
    let [Some(text), Some(from), Some(to)] =
        [0, 1, 2].map(|index| arguments.get(index).and_then(Value::as_str))
    else {
        return arguments
            .iter()
            .try_for_each(|value| budget.text(value).map(drop));
    };
    budget.spend(
        text.len()
            .saturating_add(text.matches(from).count().saturating_mul(to.len())),
    )
}

/// Pays for the elements of `values` joined by `between`.
fn pay_join(budget: &Budget, values: Option<&Value>, between: &Value) -> Result<(), Error> {
    let between = between.as_str().map_or(0, str::len);
    for value in values
        .and_then(|values| values.try_iter().ok())
        .into_iter()
        .flatten()
    {
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
    let Some(text) = arguments.first().and_then(Value::as_str) else {
        return Ok(());
    };
    let parts = match arguments.get(1).and_then(Value::as_str) {
        Some(between) if !between.is_empty() => text.matches(between).count(),
        _ => text.matches(char::is_whitespace).count(),
    };
    budget.check(text.len().saturating_add(ELEMENT.saturating_mul(parts + 1)))
}
