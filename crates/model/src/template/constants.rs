//! Limits for the constants of a template.
//!
//! The compiler replaces operators on constants by their result, before any limit of a rendering applies:
//! `{{ 'x' * 99999999 }}` takes 100 MB even where it is never reached. So the cost of each result is computed first, in
//! the order in which the compiler computes it, and a template that exceeds the limit is refused.

use minijinja::Value;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{BinOpKind, Call, CallArg, Expr, Macro, Stmt, UnaryOpKind};

use super::budget::{ELEMENT, TOO_MUCH, elements, repeated};
use super::steps::{Clock, Place};
use super::{NAME, python};
use crate::error::{Error, ErrorKind, Result};

/// Maximum cost of all constants of a template: a byte of text, or an operator, costs 1. Templates in use reach a few
/// hundred.
const MAX_COST: usize = 1 << 24;
/// Maximum bytes of the text of a number or a byte of text within a list.
const LONGEST_NUMBER: usize = 352;
const LONGEST_ESCAPE: usize = 10;

/// Refuses a template whose constants cost too much.
pub(super) fn check(template: &Stmt<'_>) -> Result<()> {
    let mut constants = Constants {
        left: MAX_COST,
        clock: Clock::start(None),
    };
    constants.statements(std::slice::from_ref(template))
}

struct Constants {
    left: usize,
    clock: Clock,
}

/// The result of the compiler's attempt to compute an expression.
struct Folded {
    /// `None` for an expression that only a rendering can compute.
    value: Option<Value>,
    /// The cost of the attempt.
    cost: usize,
}

impl Constants {
    fn statements(&mut self, statements: &[Stmt<'_>]) -> Result<()> {
        for statement in statements {
            let (expressions, bodies) = parts_of_statement(statement);
            for expression in expressions {
                let folded = self.fold(expression)?;
                self.spend(folded.cost, expression.span())?;
            }
            bodies
                .into_iter()
                .try_for_each(|body| self.statements(body))?;
        }
        Ok(())
    }

    /// Pays for everything that the compiler computes below `expression`, and returns its value if it is a constant.
    fn fold(&mut self, expression: &Expr<'_>) -> Result<Folded> {
        let parts = parts(expression);
        let folded = parts.iter().map(|part| self.fold(part));
        let folded = folded.collect::<Result<Vec<_>>>()?;
        let cost_of_parts = folded.iter().map(|part| part.cost).sum::<usize>();
        let is_operator = matches!(
            expression,
            Expr::UnaryOp(_) | Expr::BinOp(_) | Expr::Compare(_)
        );
        let values = folded.iter().map(|part| part.value.as_ref());
        let values = values.collect::<Option<Vec<_>>>();
        let (value, cost) = match (expression, values) {
            (Expr::Const(constant), _) => (Some(constant.value.clone()), 1),
            (Expr::List(_) | Expr::Tuple(_) | Expr::Map(_), Some(values)) => {
                (expression.as_const(), ELEMENT * (1 + values.len()))
            }
            (_, Some(values)) if is_operator => {
                let cost = cost_of_parts.saturating_add(cost(expression, &values));
                // The value is computed here, and by the compiler.
                self.spend(cost, expression.span())?;
                self.check_python(expression, &values)?;
                let value = expression.as_const();
                if let Some(value) = value.as_ref().filter(|value| value.as_object().is_some()) {
                    let held = self.clock.hold(value, Place::Any);
                    held.map_err(|error| {
                        refused(error.detail().unwrap_or_default(), expression.span())
                    })?;
                }
                (value, cost)
            }
            _ if is_operator => (None, 1 + cost_of_parts),
            _ => (None, 0),
        };
        if value.is_none() {
            // The compiler goes on with the parts.
            self.spend(cost_of_parts, expression.span())?;
        }
        Ok(Folded { value, cost })
    }

    fn spend(&mut self, cost: usize, span: Span) -> Result<()> {
        self.left = self
            .left
            .checked_sub(cost)
            .ok_or_else(|| refused(TOO_MUCH, span))?;
        Ok(())
    }

    /// Refuses operators that the compiler computes otherwise than Python.
    fn check_python(&self, expression: &Expr<'_>, values: &[&Value]) -> Result<()> {
        let Expr::BinOp(operator) = expression else {
            return Ok(());
        };
        let differs = |value: &&&Value| python::text(value) != value.to_string();
        match operator.op {
            BinOpKind::Concat => match values.iter().find(differs) {
                Some(value) => {
                    let message = format!("`~` is not supported for the constant {value}");
                    Err(refused(&message, expression.span()))
                }
                None => Ok(()),
            },
            BinOpKind::Lt | BinOpKind::Lte | BinOpKind::Gt | BinOpKind::Gte => {
                let is_ordered = python::check_order(values[0], values[1]);
                is_ordered
                    .map_err(|error| refused(error.detail().unwrap_or_default(), expression.span()))
            }
            _ => Ok(()),
        }
    }
}

/// Returns an upper bound of the cost of one operator on `values`.
fn cost(expression: &Expr<'_>, values: &[&Value]) -> usize {
    let size = |value: &&Value| value.as_str().map_or_else(|| weight(value), str::len);
    let sizes = || values.iter().map(size).sum::<usize>();
    1 + match (expression, values) {
        (Expr::UnaryOp(operator), _) if matches!(operator.op, UnaryOpKind::Not) => 0,
        (Expr::BinOp(operator), [a, b]) => match operator.op {
            BinOpKind::Mul => repeated(a, b),
            BinOpKind::Concat => length_of_text(a) + length_of_text(b),
            _ => sizes(),
        },
        _ => sizes(),
    }
}

/// Returns the size of a list or map, with the texts in it.
fn weight(value: &Value) -> usize {
    let texts = value.try_iter().into_iter().flatten();
    let texts = texts.map(|item| item.as_str().map_or(0, str::len));
    match elements(value) {
        0 => 0,
        count => ELEMENT * count + texts.sum::<usize>(),
    }
}

/// Returns an upper bound of the length of the text of `value`.
fn length_of_text(value: &Value) -> usize {
    match (value.as_str(), elements(value)) {
        (Some(text), _) => text.len(),
        (None, 0) => LONGEST_NUMBER,
        (None, count) => LONGEST_NUMBER * count + LONGEST_ESCAPE * weight(value),
    }
}

fn refused(reason: &str, span: Span) -> Error {
    Error::new(
        ErrorKind::Template,
        format!("{NAME}, line {}: {reason}", span.start_line),
    )
}

/// Returns the expressions of which `expression` consists.
fn parts<'e, 's>(expression: &'e Expr<'s>) -> Vec<&'e Expr<'s>> {
    match expression {
        Expr::Var(_) | Expr::Const(_) => Vec::new(),
        Expr::Slice(slice) => [&slice.start, &slice.stop, &slice.step]
            .into_iter()
            .flatten()
            .chain([&slice.expr])
            .collect(),
        Expr::UnaryOp(operator) => vec![&operator.expr],
        Expr::BinOp(operator) => vec![&operator.left, &operator.right],
        Expr::Compare(compare) => {
            let others = compare.ops.iter().map(|operator| &operator.expr);
            [&compare.expr].into_iter().chain(others).collect()
        }
        Expr::IfExpr(choice) => [&choice.test_expr, &choice.true_expr]
            .into_iter()
            .chain(&choice.false_expr)
            .collect(),
        Expr::Filter(filter) => filter.expr.iter().chain(arguments(&filter.args)).collect(),
        Expr::Test(test) => [&test.expr]
            .into_iter()
            .chain(arguments(&test.args))
            .collect(),
        Expr::GetAttr(attribute) => vec![&attribute.expr],
        Expr::GetItem(item) => vec![&item.expr, &item.subscript_expr],
        Expr::Call(call) => parts_of_call(call),
        Expr::List(list) => list.items.iter().collect(),
        Expr::Tuple(tuple) => tuple.items.iter().collect(),
        Expr::Map(map) => map.keys.iter().chain(&map.values).collect(),
    }
}

fn arguments<'e, 's>(arguments: &'e [CallArg<'s>]) -> impl Iterator<Item = &'e Expr<'s>> {
    arguments.iter().map(|argument| match argument {
        CallArg::Pos(value)
        | CallArg::Kwarg(_, value)
        | CallArg::PosSplat(value)
        | CallArg::KwargSplat(value) => value,
    })
}

fn parts_of_call<'e, 's>(call: &'e Call<'s>) -> Vec<&'e Expr<'s>> {
    [&call.expr]
        .into_iter()
        .chain(arguments(&call.args))
        .collect()
}

/// The expressions of a statement, and the statements in it.
type Parts<'e, 's> = (Vec<&'e Expr<'s>>, Vec<&'e [Stmt<'s>]>);

fn parts_of_statement<'e, 's>(statement: &'e Stmt<'s>) -> Parts<'e, 's> {
    match statement {
        Stmt::Template(template) => (Vec::new(), vec![&template.children]),
        Stmt::EmitExpr(emitted) => (vec![&emitted.expr], Vec::new()),
        Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => (Vec::new(), Vec::new()),
        Stmt::ForLoop(repeated) => (
            [&repeated.target, &repeated.iter]
                .into_iter()
                .chain(&repeated.filter_expr)
                .collect(),
            vec![&repeated.body, &repeated.else_body],
        ),
        Stmt::IfCond(choice) => (
            vec![&choice.expr],
            vec![&choice.true_body, &choice.false_body],
        ),
        Stmt::WithBlock(with) => {
            let values = with.assignments.iter().map(|(_, value)| value);
            (values.collect(), vec![&with.body])
        }
        Stmt::Set(set) => (vec![&set.target, &set.expr], Vec::new()),
        Stmt::SetBlock(set) => (
            [&set.target].into_iter().chain(&set.filter).collect(),
            vec![&set.body],
        ),
        Stmt::AutoEscape(escape) => (vec![&escape.enabled], vec![&escape.body]),
        Stmt::FilterBlock(filter) => (vec![&filter.filter], vec![&filter.body]),
        Stmt::Block(block) => (Vec::new(), vec![&block.body]),
        Stmt::Import(import) => (vec![&import.expr], Vec::new()),
        Stmt::FromImport(import) => (vec![&import.expr], Vec::new()),
        Stmt::Extends(extends) => (vec![&extends.name], Vec::new()),
        Stmt::Include(include) => (vec![&include.name], Vec::new()),
        Stmt::Macro(defined) => parts_of_macro(defined),
        Stmt::CallBlock(block) => {
            let (mut expressions, bodies) = parts_of_macro(&block.macro_decl);
            expressions.extend(parts_of_call(&block.call));
            (expressions, bodies)
        }
        Stmt::Do(done) => (parts_of_call(&done.call), Vec::new()),
    }
}

fn parts_of_macro<'e, 's>(defined: &'e Macro<'s>) -> Parts<'e, 's> {
    (defined.defaults.iter().collect(), vec![&defined.body])
}
