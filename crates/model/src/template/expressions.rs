//! Rebuilds expressions: see [`rebuild`](super::rebuild).

use std::collections::{BTreeMap, BTreeSet};

use minijinja::Value;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{
    BinOp, BinOpKind, Call, CallArg, CallType, Compare, CompareOpKind, Const, Expr, Filter, IfExpr,
    List, Map, Spanned, Tuple, UnaryOp, UnaryOpKind, Var,
};

use super::names::{
    ADD, ATTRIBUTE, CONCATENATE, DIVIDE, ELEMENT, EQUAL, FILTER, FLOOR, GREATER, GREATER_OR_EQUAL,
    HOLD, IN, ITERATE, LESS, LESS_OR_EQUAL, METHOD, MULTIPLY, NAMED, NEGATE, NOT_EQUAL, NOT_IN,
    PASSED, POWER, REFUSE, REMAINDER, SLICE, SUBTRACT, TEST, is_filter,
};
use super::{NAME, predicates};
use crate::error::{Error, ErrorKind, Result};

/// The names that are known at a place of a template.
pub(super) struct Builder<'s> {
    /// The parameters of macros that have a default, with their places.
    pub(super) defaults: BTreeMap<&'s str, Vec<(usize, &'s str)>>,
    pub(super) blocks: BTreeSet<&'s str>,
    /// Whether the place is within a condition: there, Jinja looks for filters only when it gets there.
    pub(super) is_conditional: bool,
    /// Whether the place is within a loop or another part with variables of its own.
    pub(super) is_inner: bool,
    pub(super) is_macro: bool,
}

pub(super) fn spanned<T>(node: T, span: Span) -> Spanned<T> {
    Spanned::new(node, span)
}

pub(super) fn constant<'s>(value: impl Into<Value>, span: Span) -> Expr<'s> {
    let value = value.into();
    Expr::Const(spanned(Const { value }, span))
}

/// Returns a call of one of our filters.
pub(super) fn filter<'s>(
    name: &'s str,
    value: Expr<'s>,
    arguments: impl IntoIterator<Item = Expr<'s>>,
    span: Span,
) -> Expr<'s> {
    let args = arguments.into_iter().map(CallArg::Pos).collect();
    let expr = Some(value);
    Expr::Filter(spanned(Filter { name, expr, args }, span))
}

pub(super) fn refusal<'s>(message: &str, span: Span) -> Expr<'s> {
    filter(REFUSE, constant(message, span), [], span)
}

pub(super) fn error(message: &str, span: Span) -> Error {
    let line = span.start_line;
    Error::new(
        ErrorKind::Template,
        format!("{NAME}, line {line}: {message}"),
    )
}

pub(super) fn variable<'s>(id: &'s str, span: Span) -> Expr<'s> {
    Expr::Var(spanned(Var { id }, span))
}

impl<'s> Builder<'s> {
    pub(super) fn conditional<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let outer = std::mem::replace(&mut self.is_conditional, true);
        let result = work(self);
        self.is_conditional = outer;
        result
    }

    fn expressions(&mut self, all: &[Expr<'s>]) -> Result<Vec<Expr<'s>>> {
        all.iter()
            .map(|expression| self.expression(expression))
            .collect()
    }

    pub(super) fn expression(&mut self, expression: &Expr<'s>) -> Result<Expr<'s>> {
        let span = expression.span();
        Ok(match expression {
            Expr::Var(name) if self.is_macro && matches!(name.id, "varargs" | "kwargs") => {
                refusal(&format!("{} of a macro is not supported", name.id), span)
            }
            Expr::Var(name) if name.id == "self" => refusal("`self` is not supported", span),
            Expr::Var(name) => variable(name.id, span),
            Expr::Const(found) => constant(found.value.clone(), span),
            Expr::Slice(slice) => {
                let mut limits = Vec::new();
                for limit in [&slice.start, &slice.stop, &slice.step] {
                    limits.push(match limit {
                        Some(limit) => self.expression(limit)?,
                        None => constant((), span),
                    });
                }
                filter(SLICE, self.expression(&slice.expr)?, limits, span)
            }
            Expr::UnaryOp(operator) => {
                let expr = self.expression(&operator.expr)?;
                match operator.op {
                    UnaryOpKind::Not => {
                        let op = UnaryOpKind::Not;
                        Expr::UnaryOp(spanned(UnaryOp { op, expr }, span))
                    }
                    UnaryOpKind::Neg => filter(NEGATE, expr, [], span),
                }
            }
            Expr::BinOp(operator) => {
                let left = self.expression(&operator.left)?;
                let right = self.expression(&operator.right)?;
                let name = match operator.op {
                    BinOpKind::ScAnd | BinOpKind::ScOr => {
                        let op = operator.op;
                        return Ok(Expr::BinOp(spanned(BinOp { op, left, right }, span)));
                    }
                    BinOpKind::Eq => EQUAL,
                    BinOpKind::Ne => NOT_EQUAL,
                    BinOpKind::Lt => LESS,
                    BinOpKind::Lte => LESS_OR_EQUAL,
                    BinOpKind::Gt => GREATER,
                    BinOpKind::Gte => GREATER_OR_EQUAL,
                    BinOpKind::Add => ADD,
                    BinOpKind::Sub => SUBTRACT,
                    BinOpKind::Mul => MULTIPLY,
                    BinOpKind::Div => DIVIDE,
                    BinOpKind::FloorDiv => FLOOR,
                    BinOpKind::Rem => REMAINDER,
                    BinOpKind::Pow => POWER,
                    BinOpKind::Concat => CONCATENATE,
                    BinOpKind::In => IN,
                };
                filter(name, left, [right], span)
            }
            Expr::Compare(compare) => self.compare(compare)?,
            Expr::IfExpr(choice) => {
                let test_expr = self.expression(&choice.test_expr)?;
                let true_expr = self.conditional(|this| this.expression(&choice.true_expr))?;
                let false_expr = choice.false_expr.as_ref();
                let false_expr =
                    false_expr.map(|expr| self.conditional(|this| this.expression(expr)));
                let false_expr = false_expr.transpose()?;
                let rebuilt = IfExpr {
                    test_expr,
                    true_expr,
                    false_expr,
                };
                Expr::IfExpr(spanned(rebuilt, span))
            }
            Expr::Filter(found) => {
                if !is_filter(found.name) && !self.is_conditional {
                    return Err(error(&format!("filter {} is unknown", found.name), span));
                }
                let expr = found
                    .expr
                    .as_ref()
                    .map(|expr| self.expression(expr))
                    .transpose()?;
                let args = self.named(found.name, &found.args, span)?;
                let name = FILTER;
                Expr::Filter(spanned(Filter { name, expr, args }, span))
            }
            Expr::Test(found) => {
                if !predicates::exists(found.name) && !self.is_conditional {
                    return Err(error(&format!("test {} is unknown", found.name), span));
                }
                let expr = Some(self.expression(&found.expr)?);
                let args = self.named(found.name, &found.args, span)?;
                let name = TEST;
                Expr::Filter(spanned(Filter { name, expr, args }, span))
            }
            Expr::GetAttr(found) => {
                let name = constant(found.name, span);
                filter(ATTRIBUTE, self.expression(&found.expr)?, [name], span)
            }
            Expr::GetItem(found) => {
                let key = self.expression(&found.subscript_expr)?;
                filter(ELEMENT, self.expression(&found.expr)?, [key], span)
            }
            Expr::Call(call) => match call.identify_call() {
                CallType::Function("super") | CallType::Block(_) => {
                    refusal("a call of another block is not supported", span)
                }
                CallType::Function("loop") => {
                    let [CallArg::Pos(argument)] = call.args.as_slice() else {
                        return Ok(refusal("loop: expected one argument", span));
                    };
                    let argument = filter(ITERATE, self.expression(argument)?, [], span);
                    let args = vec![CallArg::Pos(argument)];
                    let expr = variable("loop", span);
                    Expr::Call(spanned(Call { expr, args }, span))
                }
                CallType::Method(value, method) => {
                    let expr = Some(self.expression(value)?);
                    let args = self.named(method, &call.args, span)?;
                    let name = METHOD;
                    Expr::Filter(spanned(Filter { name, expr, args }, span))
                }
                CallType::Function(_) | CallType::Object(_) => Expr::Call(self.call(call)?),
            },
            Expr::List(list) => {
                let items = self.expressions(&list.items)?;
                let list = Expr::List(spanned(List { items }, span));
                filter(HOLD, list, [], span)
            }
            Expr::Tuple(list) => {
                let items = self.expressions(&list.items)?;
                let tuple = Expr::Tuple(spanned(Tuple { items }, span));
                filter(HOLD, tuple, [], span)
            }
            Expr::Map(map) => {
                let (keys, values) = (self.expressions(&map.keys)?, self.expressions(&map.values)?);
                let map = Expr::Map(spanned(Map { keys, values }, span));
                filter(HOLD, map, [], span)
            }
        })
    }

    /// Rebuilds `a < b < c` as `a < b and b < c`.
    fn compare(&mut self, compare: &Spanned<Compare<'s>>) -> Result<Expr<'s>> {
        let span = compare.span();
        let mut all = None;
        let mut left = &compare.expr;
        for (place, operator) in compare.ops.iter().enumerate() {
            let is_middle = place + 1 < compare.ops.len();
            if is_middle && !matches!(operator.expr, Expr::Var(_) | Expr::Const(_)) {
                let message = "a chain of comparisons with anything but a variable or a constant in the middle is not supported";
                return Ok(refusal(message, span));
            }
            let name = match operator.op {
                CompareOpKind::Eq => EQUAL,
                CompareOpKind::Ne => NOT_EQUAL,
                CompareOpKind::Lt => LESS,
                CompareOpKind::Lte => LESS_OR_EQUAL,
                CompareOpKind::Gt => GREATER,
                CompareOpKind::Gte => GREATER_OR_EQUAL,
                CompareOpKind::In => IN,
                CompareOpKind::NotIn => NOT_IN,
            };
            let (first, second) = (self.expression(left)?, self.expression(&operator.expr)?);
            let this = filter(name, first, [second], span);
            all = Some(match all {
                None => this,
                Some(before) => {
                    let (op, left, right) = (BinOpKind::ScAnd, before, this);
                    Expr::BinOp(spanned(BinOp { op, left, right }, span))
                }
            });
            left = &operator.expr;
        }
        all.ok_or_else(|| error("a comparison without an operator", span))
    }

    pub(super) fn call(&mut self, call: &Spanned<Call<'s>>) -> Result<Spanned<Call<'s>>> {
        let mut args = self.arguments(&call.args, call.span())?;
        if let Expr::Var(name) = &call.expr
            && let Some(defaults) = self.defaults.get(name.id)
        {
            // The engine computes the default for an argument that is undefined, too.
            for (place, argument) in args.iter_mut().enumerate() {
                let has_default = defaults.iter().any(|(of, name)| match argument {
                    CallArg::Kwarg(given, _) => given == name,
                    _ => *of == place,
                });
                if has_default {
                    let given =
                        std::mem::replace(argument, CallArg::Pos(constant((), call.span())));
                    *argument = match given {
                        CallArg::Pos(value) => CallArg::Pos(filter(PASSED, value, [], call.span())),
                        CallArg::Kwarg(name, value) => {
                            CallArg::Kwarg(name, filter(PASSED, value, [], call.span()))
                        }
                        other => other,
                    };
                }
            }
        }
        let expr = self.expression(&call.expr)?;
        Ok(spanned(Call { expr, args }, call.span()))
    }

    /// Returns the arguments of a filter, a test or a method, after its name.
    fn named(
        &mut self,
        name: &'s str,
        given: &[CallArg<'s>],
        span: Span,
    ) -> Result<Vec<CallArg<'s>>> {
        let mut args = vec![CallArg::Pos(constant(name, span))];
        args.extend(self.arguments(given, span)?);
        Ok(args)
    }

    fn arguments(&mut self, given: &[CallArg<'s>], span: Span) -> Result<Vec<CallArg<'s>>> {
        let is_named = |argument: &&CallArg<'s>| {
            matches!(argument, CallArg::Kwarg(..) | CallArg::KwargSplat(_))
        };
        let is_alone = given.iter().filter(is_named).count() == 1;
        let mut args = Vec::new();
        for argument in given {
            args.push(match argument {
                CallArg::Pos(value) => CallArg::Pos(self.expression(value)?),
                CallArg::Kwarg(name, value) => CallArg::Kwarg(name, self.expression(value)?),
                CallArg::KwargSplat(value) if is_alone => {
                    CallArg::KwargSplat(filter(NAMED, self.expression(value)?, [], span))
                }
                CallArg::KwargSplat(_) => {
                    let message = "a call with named arguments and those of a mapping (**mapping) is not supported";
                    return Err(error(message, span));
                }
                CallArg::PosSplat(_) => {
                    let message = "a call with the elements of a list as arguments (*list) is not supported";
                    return Err(error(message, span));
                }
            });
        }
        Ok(args)
    }
}
