//! Finds variables in expressions.

use minijinja::machinery::ast::{CallArg, Expr};

/// Returns whether an expression reads one of the variables.
pub(super) fn mentions(expression: &Expr<'_>, names: &[&str]) -> bool {
    match expression {
        Expr::Var(name) => names.contains(&name.id),
        _ => parts(expression)
            .into_iter()
            .any(|part| mentions(part, names)),
    }
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
        Expr::Call(call) => [&call.expr]
            .into_iter()
            .chain(arguments(&call.args))
            .collect(),
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
