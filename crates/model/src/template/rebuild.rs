//! Puts our own operations in place of the engine's.
//!
//! The engine parses templates and runs their statements. Each expression is rebuilt, so that its operators, attributes,
//! elements, filters, tests and methods are calls of the filters that [`bounded`](super::bounded) installs: these compute
//! what Python does, and pay for what they build. So the compiler has no operator left that it could compute itself.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::Value;
use minijinja::machinery::ast::{
    BinOp, BinOpKind, Block, Call, CallArg, CallBlock, CallType, Compare, CompareOpKind, Const,
    EmitExpr, Expr, Filter, FilterBlock, ForLoop, GetAttr, IfCond, IfExpr, List, Macro, Map, Set,
    SetBlock, Spanned, Stmt, Template, Tuple, UnaryOp, UnaryOpKind, Var, WithBlock,
};
use minijinja::machinery::{CodeGenerator, Instructions, Span, parse};
use minijinja::syntax::SyntaxConfig;

use super::mentions::mentions;
use super::names::{
    ADD, ATTRIBUTE, CONCATENATE, DIVIDE, ELEMENT, EQUAL, FILTER, FLOOR, GREATER, GREATER_OR_EQUAL,
    HOLD, HOLD_IN_NAMESPACE, IN, ITERATE, LESS, LESS_OR_EQUAL, METHOD, MULTIPLY, NAMED, NEGATE,
    NOT_EQUAL, NOT_IN, PASSED, POWER, REFUSE, REMAINDER, SLICE, SUBTRACT, TEST, UNPACK, is_filter,
};
use super::{NAME, predicates, template_error};
use crate::error::{Error, ErrorKind, Result};

/// A compiled template: its instructions, and those of its blocks.
pub(super) type Compiled<'s> = (Instructions<'s>, BTreeMap<&'s str, Instructions<'s>>);

/// Compiles `source`; errors use `name` for it.
///
/// # Errors
/// For invalid Jinja, and for filters and tests that do not exist.
pub(super) fn compile<'s>(
    name: &'s str,
    source: &'s str,
    syntax: SyntaxConfig,
) -> Result<Compiled<'s>> {
    let tree = parse(source, name, syntax).map_err(template_error)?;
    let mut builder = Builder {
        defaults: BTreeMap::new(),
        blocks: BTreeSet::new(),
        is_conditional: false,
        is_inner: false,
        is_macro: false,
    };
    builder.find_defaults(std::slice::from_ref(&tree));
    let rebuilt = builder.statement(&tree)?;
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&rebuilt);
    Ok(generator.finish())
}

struct Builder<'s> {
    /// The parameters of macros that have a default, with their places.
    defaults: BTreeMap<&'s str, Vec<(usize, &'s str)>>,
    blocks: BTreeSet<&'s str>,
    /// Whether the place is within a condition: there, Jinja looks for filters only when it gets there.
    is_conditional: bool,
    /// Whether the place is within a loop or another part with variables of its own.
    is_inner: bool,
    is_macro: bool,
}

fn spanned<T>(node: T, span: Span) -> Spanned<T> {
    Spanned::new(node, span)
}

fn constant<'s>(value: impl Into<Value>, span: Span) -> Expr<'s> {
    let value = value.into();
    Expr::Const(spanned(Const { value }, span))
}

/// Returns a call of one of our filters.
fn filter<'s>(
    name: &'s str,
    value: Expr<'s>,
    arguments: impl IntoIterator<Item = Expr<'s>>,
    span: Span,
) -> Expr<'s> {
    let args = arguments.into_iter().map(CallArg::Pos).collect();
    let expr = Some(value);
    Expr::Filter(spanned(Filter { name, expr, args }, span))
}

fn refusal<'s>(message: &str, span: Span) -> Expr<'s> {
    filter(REFUSE, constant(message, span), [], span)
}

fn error(message: &str, span: Span) -> Error {
    let line = span.start_line;
    Error::new(
        ErrorKind::Template,
        format!("{NAME}, line {line}: {message}"),
    )
}

fn variable<'s>(id: &'s str, span: Span) -> Expr<'s> {
    Expr::Var(spanned(Var { id }, span))
}

impl<'s> Builder<'s> {
    /// Finds the macros with defaults.
    fn find_defaults(&mut self, statements: &[Stmt<'s>]) {
        for statement in statements {
            match statement {
                Stmt::Macro(found) => {
                    let first = found.args.len() - found.defaults.len().min(found.args.len());
                    let with_default = found.args.iter().enumerate().skip(first);
                    let names = with_default.filter_map(|(place, name)| match name {
                        Expr::Var(name) => Some((place, name.id)),
                        _ => None,
                    });
                    self.defaults.entry(found.name).or_default().extend(names);
                    self.find_defaults(&found.body);
                }
                Stmt::Template(inner) => self.find_defaults(&inner.children),
                Stmt::IfCond(inner) => {
                    self.find_defaults(&inner.true_body);
                    self.find_defaults(&inner.false_body);
                }
                Stmt::ForLoop(inner) => {
                    self.find_defaults(&inner.body);
                    self.find_defaults(&inner.else_body);
                }
                Stmt::WithBlock(inner) => self.find_defaults(&inner.body),
                Stmt::Block(inner) => self.find_defaults(&inner.body),
                Stmt::SetBlock(inner) => self.find_defaults(&inner.body),
                Stmt::FilterBlock(inner) => self.find_defaults(&inner.body),
                Stmt::CallBlock(inner) => self.find_defaults(&inner.macro_decl.body),
                _ => {}
            }
        }
    }

    fn statements(&mut self, statements: &[Stmt<'s>]) -> Result<Vec<Stmt<'s>>> {
        statements
            .iter()
            .map(|statement| self.statement(statement))
            .collect()
    }

    /// Rebuilds the statements of a part with variables of its own.
    fn inner(&mut self, statements: &[Stmt<'s>]) -> Result<Vec<Stmt<'s>>> {
        let outer = (self.is_inner, self.is_conditional);
        // Jinja forgets there that it is within a condition.
        (self.is_inner, self.is_conditional) = (true, false);
        let inner = self.statements(statements);
        (self.is_inner, self.is_conditional) = outer;
        inner
    }

    /// Rebuilds the statements of a part whose variables end with it, in place.
    fn scope(&mut self, statements: &[Stmt<'s>], span: Span) -> Result<Vec<Stmt<'s>>> {
        let (assignments, body) = (Vec::new(), self.inner(statements)?);
        Ok(vec![Stmt::WithBlock(spanned(
            WithBlock { assignments, body },
            span,
        ))])
    }

    fn conditional<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let outer = std::mem::replace(&mut self.is_conditional, true);
        let result = work(self);
        self.is_conditional = outer;
        result
    }

    fn statement(&mut self, statement: &Stmt<'s>) -> Result<Stmt<'s>> {
        let emit = |expr, span| Stmt::EmitExpr(spanned(EmitExpr { expr }, span));
        Ok(match statement {
            Stmt::Template(inner) => {
                let children = self.statements(&inner.children)?;
                Stmt::Template(spanned(Template { children }, inner.span()))
            }
            Stmt::EmitExpr(emitted) => emit(self.expression(&emitted.expr)?, emitted.span()),
            // The text is paid for as all output is.
            Stmt::EmitRaw(raw) => emit(constant(raw.raw, raw.span()), raw.span()),
            Stmt::ForLoop(inner) => self.for_loop(inner)?,
            Stmt::IfCond(choice) => {
                let expr = self.expression(&choice.expr)?;
                let true_body = self.conditional(|this| this.statements(&choice.true_body))?;
                let false_body = self.conditional(|this| this.statements(&choice.false_body))?;
                let choice_of = IfCond {
                    expr,
                    true_body,
                    false_body,
                };
                Stmt::IfCond(spanned(choice_of, choice.span()))
            }
            Stmt::WithBlock(with) => {
                let mut assignments = Vec::new();
                let mut names: Vec<&str> = Vec::new();
                for (target, value) in &with.assignments {
                    if mentions(value, &names) {
                        let message =
                            "a value of `with` that reads another variable of it is not supported";
                        return Err(error(message, with.span()));
                    }
                    assignments.push((self.target(target, false)?, self.assigned(target, value)?));
                    names.extend(targets(target));
                }
                let body = self.inner(&with.body)?;
                Stmt::WithBlock(spanned(WithBlock { assignments, body }, with.span()))
            }
            Stmt::Set(set) => {
                let target = self.target(&set.target, true)?;
                let expr = self.assigned(&set.target, &set.expr)?;
                Stmt::Set(spanned(Set { target, expr }, set.span()))
            }
            Stmt::SetBlock(set) => {
                let target = self.target(&set.target, true)?;
                let filter = set
                    .filter
                    .as_ref()
                    .map(|filter| self.expression(filter))
                    .transpose()?;
                let body = self.scope(&set.body, set.span())?;
                Stmt::SetBlock(spanned(
                    SetBlock {
                        target,
                        filter,
                        body,
                    },
                    set.span(),
                ))
            }
            Stmt::AutoEscape(escape) => match &escape.enabled {
                Expr::Const(is_enabled) if !is_enabled.value.is_true() => {
                    let (assignments, body) = (Vec::new(), self.inner(&escape.body)?);
                    Stmt::WithBlock(spanned(WithBlock { assignments, body }, escape.span()))
                }
                _ => emit(
                    refusal("autoescape is not supported", escape.span()),
                    escape.span(),
                ),
            },
            Stmt::FilterBlock(block) => {
                let filter = self.expression(&block.filter)?;
                let body = self.scope(&block.body, block.span())?;
                Stmt::FilterBlock(spanned(FilterBlock { filter, body }, block.span()))
            }
            Stmt::Block(block) => {
                if self.is_inner || block.required || !self.blocks.insert(block.name) {
                    let message = "a block within a loop or another part with variables of its own, a required one, or \
                                   one that is there twice is not supported";
                    return Err(error(message, block.span()));
                }
                let body = self.scope(&block.body, block.span())?;
                let (name, required) = (block.name, false);
                Stmt::Block(spanned(
                    Block {
                        name,
                        required,
                        body,
                    },
                    block.span(),
                ))
            }
            Stmt::Macro(found) => Stmt::Macro(self.macro_of(found)?),
            Stmt::CallBlock(block) => {
                let macro_decl = self.macro_of(&block.macro_decl)?;
                if !matches!(block.call.identify_call(), CallType::Function(name) if name != "loop" && name != "super")
                {
                    return Err(error(
                        "a call block of anything but a macro is not supported",
                        block.span(),
                    ));
                }
                let call = self.call(&block.call)?;
                Stmt::CallBlock(spanned(CallBlock { call, macro_decl }, block.span()))
            }
            Stmt::Continue(inner) => {
                Stmt::Continue(spanned(minijinja::machinery::ast::Continue, inner.span()))
            }
            Stmt::Break(inner) => {
                Stmt::Break(spanned(minijinja::machinery::ast::Break, inner.span()))
            }
            Stmt::Do(done) => return Err(error("the tag do is not supported", done.span())),
            Stmt::Import(inner) => emit(other_template(inner.span()), inner.span()),
            Stmt::FromImport(inner) => emit(other_template(inner.span()), inner.span()),
            Stmt::Extends(inner) => emit(other_template(inner.span()), inner.span()),
            Stmt::Include(inner) => emit(other_template(inner.span()), inner.span()),
        })
    }

    fn for_loop(&mut self, of: &Spanned<ForLoop<'s>>) -> Result<Stmt<'s>> {
        let span = of.span();
        let target = self.target(&of.target, false)?;
        let iter = filter(ITERATE, self.expression(&of.iter)?, [], of.iter.span());
        let filter_expr = match &of.filter_expr {
            Some(condition) if mentions(condition, &["loop"]) => {
                return Err(error(
                    "a condition of a loop that reads `loop` is not supported",
                    span,
                ));
            }
            Some(condition) => Some(self.expression(condition)?),
            None => None,
        };
        let body = self.inner(&of.body)?;
        let else_body = self.inner(&of.else_body)?;
        let recursive = of.recursive;
        let rebuilt = ForLoop {
            target,
            iter,
            filter_expr,
            recursive,
            body,
            else_body,
        };
        Ok(Stmt::ForLoop(spanned(rebuilt, span)))
    }

    /// Rebuilds a macro. Defaults are computed in the body, from the first to the last, since the engine computes them from
    /// the last to the first and before it assigns parameters.
    fn macro_of(&mut self, of: &Spanned<Macro<'s>>) -> Result<Spanned<Macro<'s>>> {
        let span = of.span();
        let names = targets_of(&of.args);
        let reads_parameters = of.defaults.iter().any(|default| mentions(default, &names));
        let is_outer_macro = std::mem::replace(&mut self.is_macro, true);
        let mut defaults = Vec::new();
        let mut body = Vec::new();
        let first = of.args.len() - of.defaults.len().min(of.args.len());
        for (name, default) in names[first..].iter().zip(&of.defaults) {
            let default = self.expression(default)?;
            if !reads_parameters {
                defaults.push(default);
                continue;
            }
            let undefined = constant("undefined", span);
            let target = variable(name, span);
            let set = Stmt::Set(spanned(
                Set {
                    target,
                    expr: default,
                },
                span,
            ));
            let expr = filter(TEST, variable(name, span), [undefined], span);
            let choice = IfCond {
                expr,
                true_body: vec![set],
                false_body: Vec::new(),
            };
            body.push(Stmt::IfCond(spanned(choice, span)));
        }
        body.extend(self.inner(&of.body)?);
        self.is_macro = is_outer_macro;
        let args = names.iter().map(|name| variable(name, span)).collect();
        let name = of.name;
        Ok(spanned(
            Macro {
                name,
                args,
                defaults,
                body,
            },
            span,
        ))
    }

    /// Rebuilds the target of an assignment, which may be an attribute of a namespace.
    fn target(&self, target: &Expr<'s>, may_be_attribute: bool) -> Result<Expr<'s>> {
        let span = target.span();
        Ok(match target {
            Expr::Var(name) => variable(name.id, span),
            Expr::List(list) => self.targets(&list.items, may_be_attribute, span)?,
            Expr::Tuple(list) => self.targets(&list.items, may_be_attribute, span)?,
            Expr::GetAttr(attribute) if may_be_attribute && !attribute.name.starts_with('_') => {
                let Expr::Var(owner) = &attribute.expr else {
                    return Err(error("expected the name of a namespace before =", span));
                };
                let (expr, name) = (variable(owner.id, span), attribute.name);
                Expr::GetAttr(spanned(GetAttr { expr, name }, span))
            }
            _ => return Err(error("this target of an assignment is not supported", span)),
        })
    }

    fn targets(&self, items: &[Expr<'s>], may_be_attribute: bool, span: Span) -> Result<Expr<'s>> {
        let items = items.iter().map(|item| self.target(item, may_be_attribute));
        let items = items.collect::<Result<_>>()?;
        Ok(Expr::List(spanned(List { items }, span)))
    }

    /// Rebuilds a value that is assigned to a target.
    fn assigned(&mut self, target: &Expr<'s>, value: &Expr<'s>) -> Result<Expr<'s>> {
        let (span, value) = (value.span(), self.expression(value)?);
        Ok(match target {
            Expr::Var(_) => value,
            Expr::GetAttr(_) => filter(HOLD_IN_NAMESPACE, value, [], span),
            _ => filter(HOLD_IN_NAMESPACE, filter(UNPACK, value, [], span), [], span),
        })
    }

    fn expressions(&mut self, all: &[Expr<'s>]) -> Result<Vec<Expr<'s>>> {
        all.iter()
            .map(|expression| self.expression(expression))
            .collect()
    }

    fn expression(&mut self, expression: &Expr<'s>) -> Result<Expr<'s>> {
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

    fn call(&mut self, call: &Spanned<Call<'s>>) -> Result<Spanned<Call<'s>>> {
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

fn other_template<'s>(span: Span) -> Expr<'s> {
    refusal(
        "there is no other template that can be included or imported",
        span,
    )
}

/// Returns the variables to which a target assigns.
fn targets<'s>(target: &Expr<'s>) -> Vec<&'s str> {
    match target {
        Expr::Var(name) => vec![name.id],
        Expr::List(list) => targets_of(&list.items),
        Expr::Tuple(list) => targets_of(&list.items),
        _ => Vec::new(),
    }
}

fn targets_of<'s>(items: &[Expr<'s>]) -> Vec<&'s str> {
    items.iter().flat_map(targets).collect()
}
