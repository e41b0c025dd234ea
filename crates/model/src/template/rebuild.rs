//! Puts our own operations in place of the engine's.
//!
//! The engine parses templates and runs their statements. Each expression is rebuilt, so that its operators, attributes,
//! elements, filters, tests and methods are calls of the filters that [`bounded`](super::bounded) installs: these compute
//! what Python does, and pay for what they build. So the compiler has no operator left that it could compute itself.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::machinery::ast::{
    Block, CallBlock, CallType, EmitExpr, Expr, FilterBlock, ForLoop, GetAttr, IfCond, List, Macro,
    Set, SetBlock, Spanned, Stmt, Template, WithBlock,
};
use minijinja::machinery::{CodeGenerator, Instructions, Span, parse};
use minijinja::syntax::SyntaxConfig;

use super::expressions::{Builder, constant, error, filter, refusal, spanned, variable};
use super::mentions::mentions;
use super::names::{HOLD_IN_NAMESPACE, ITERATE, TEST, UNPACK};
use super::template_error;
use crate::error::Result;

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
