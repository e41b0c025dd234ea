//! Compiles templates, with instructions that pay for what they build.
//!
//! Operators become filters that [`bounded`](super::bounded) installs. Further filters check the clock and weigh the
//! values that were built: see [`steps`](super::steps).

use std::collections::{BTreeMap, BTreeSet};

use minijinja::machinery::ast::Stmt;
use minijinja::machinery::{CodeGenerator, Instruction, Instructions, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind, Value};

use super::{constants, template_error};

/// Marks a filter that is looked up by its name each time.
const NO_LOCAL: u8 = !0;

/// The filters that [`rewrite`] substitutes for operators. No template can name them.
pub(super) const ADD: &str = "+";
pub(super) const CONCATENATE: &str = "~";
pub(super) const MULTIPLY: &str = "*";
pub(super) const SLICE: &str = "[:]";
pub(super) const LESS: &str = "<";
pub(super) const LESS_OR_EQUAL: &str = "<=";
pub(super) const GREATER: &str = ">";
pub(super) const GREATER_OR_EQUAL: &str = ">=";
/// Filters that check their argument and return it.
pub(super) const TICK: &str = "!";
pub(super) const HOLD: &str = "[]";
pub(super) const HOLD_ARGUMENTS: &str = "()";
pub(super) const HOLD_IN_NAMESPACE: &str = ".=";
/// A filter that fails with its argument as the reason.
pub(super) const REFUSE: &str = "?";

/// A compiled template: its instructions, and those of its blocks.
pub(super) type Compiled<'s> = (Instructions<'s>, BTreeMap<&'s str, Instructions<'s>>);

/// Compiles `source`; errors use `name` for it.
pub(super) fn compile<'s>(
    name: &'s str,
    source: &'s str,
    syntax: SyntaxConfig,
) -> crate::Result<Compiled<'s>> {
    let tree = parse(source, name, syntax).map_err(template_error)?;
    constants::check(&tree)?;
    generate(name, source, &tree).map_err(template_error)
}

fn generate<'s>(name: &'s str, source: &'s str, tree: &Stmt<'s>) -> Result<Compiled<'s>, Error> {
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(tree);
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
    let refused = lookups_in_defaults(&all);
    let mut places = vec![0];
    for (index, (instruction, before)) in all.iter().zip(&before).enumerate() {
        // Plain text becomes two instructions, and so does the reason of a refusal.
        let text = usize::from(matches!(instruction, Instruction::EmitRaw(_)));
        let reason = if refused.contains_key(&index) { 2 } else { 0 };
        let filters = usize::from(before.is_some()) + usize::from(after(instruction).is_some());
        let width = 1 + text + reason + filters;
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
        if let Some(reason) = refused.get(&index) {
            add(Instruction::LoadConst(reason.as_str().into()));
            add(filter(REFUSE, 1));
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
            Instruction::Lt => add(filter(LESS, 2)),
            Instruction::Lte => add(filter(LESS_OR_EQUAL, 2)),
            Instruction::Gt => add(filter(GREATER, 2)),
            Instruction::Gte => add(filter(GREATER_OR_EQUAL, 2)),
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

/// Returns the places where the default of a macro's parameter reads a parameter of the macro, each with an error
/// message. The engine computes defaults from the last parameter to the first one, before it assigns them, so that such
/// a lookup finds another variable or none.
fn lookups_in_defaults(all: &[&Instruction]) -> BTreeMap<usize, String> {
    let mut lookups = BTreeMap::new();
    for (index, instruction) in all.iter().enumerate() {
        let (Instruction::BuildMacro(name, start, _), Some(Instruction::LoadConst(names))) = (
            instruction,
            index.checked_sub(1).and_then(|index| all.get(index)),
        ) else {
            continue;
        };
        let names: Vec<Value> = names.try_iter().into_iter().flatten().collect();
        let is_parameter = |read: &str| names.iter().any(|name| name.as_str() == Some(read));
        let mut place = *start as usize;
        // Each parameter, the last one first: its default if it has one, and its assignment.
        for _ in &names {
            let default = match all.get(place..place + 3) {
                Some(
                    [
                        Instruction::DupTop,
                        Instruction::IsUndefined,
                        Instruction::JumpIfFalse(end),
                    ],
                ) => place + 3..*end as usize,
                _ => place..place,
            };
            for index in default.clone() {
                if let Some(Instruction::Lookup(read)) = all.get(index)
                    && is_parameter(read)
                {
                    let message = format!(
                        "macro {name}: a default that reads the parameter {read} is not supported"
                    );
                    lookups.insert(index, message);
                }
            }
            place = default.end + 1;
        }
    }
    lookups
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
