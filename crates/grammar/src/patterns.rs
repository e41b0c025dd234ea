//! Patterns of strings whose classes keep their meaning in JSON.
//!
//! For a class that contains all control characters, derivre (0.3.13, `json_quote`) allows every short escape, `\"` and
//! `\\` among them, whether the class contains these two characters or not. A class that lacks one of the two therefore
//! loses U+0001: fewer strings match, and all of them match the pattern.

use llguidance::regex_to_lark;
use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{Ast, Visitor, visit};
use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::objects;

/// Escapes that mean ASCII characters alone in patterns, as llguidance reads them.
pub(crate) const ASCII: &str = "dw";

/// Adapts all patterns in `schema`, but not literal values.
///
/// # Errors
/// If parts of a pattern have such a class only together.
pub(crate) fn adapt(schema: &mut Value) -> Result<()> {
    match schema {
        Value::Array(items) => items.iter_mut().try_for_each(adapt)?,
        Value::Object(keywords) => {
            if let Some(Value::String(pattern)) = keywords.get_mut("pattern") {
                *pattern = exact(pattern)?;
            }
            if let Some(Value::Object(patterns)) = keywords.get_mut("patternProperties") {
                let adapted = std::mem::take(patterns).into_iter();
                *patterns = adapted
                    .map(|(pattern, part)| Ok((exact(&pattern)?, part)))
                    .collect::<Result<_>>()?;
            }
            objects::parts_mut(keywords).try_for_each(|(_, part)| adapt(part))?;
        }
        _ => {}
    }
    Ok(())
}

/// Returns `pattern` without U+0001 in classes that lack `"` or `\`. Invalid patterns are left to the compiler.
///
/// # Errors
/// If parts of the pattern have such a class only together.
fn exact(pattern: &str) -> Result<String> {
    let Ok(ast) = Parser::new().parse(pattern) else {
        return Ok(pattern.to_owned());
    };
    let places = visit(&ast, Classes::default()).unwrap_or_default();
    let (mut adapted, mut end) = (String::new(), 0);
    for (start, next) in places {
        let class = &pattern[start..next];
        if parsed(class).is_some_and(|hir| is_affected(&hir)) {
            adapted += &pattern[end..start];
            adapted += &format!(r"[{class}--\x01]");
            end = next;
        }
    }
    adapted += &pattern[end..];
    if parsed(&adapted).is_some_and(|hir| has_affected(&hir)) {
        return Err(Error::Unsupported {
            kind: Kind::JsonSchema,
            problem: format!(
                "the pattern {pattern:?}: alternatives that are one class together, of control characters and without \" \
                 or \\"
            ),
        });
    }
    Ok(adapted)
}

fn parsed(pattern: &str) -> Option<Hir> {
    regex_syntax::parse(&regex_to_lark(pattern, ASCII)).ok()
}

/// Returns whether an expression has a class that [`is_affected`], or U+0001 as an alternative, which derivre joins with
/// the classes next to it.
fn has_affected(hir: &Hir) -> bool {
    let is_alternative = match hir.kind() {
        HirKind::Alternation(parts) => parts.iter().any(is_control),
        _ => false,
    };
    is_alternative || is_affected(hir) || hir.kind().subs().iter().any(has_affected)
}

fn is_control(hir: &Hir) -> bool {
    matches!(hir.kind(), HirKind::Literal(letter) if *letter.0 == *b"\x01")
}

/// Returns whether an expression is a class that contains U+0001 and lacks `"` or `\`.
fn is_affected(hir: &Hir) -> bool {
    let HirKind::Class(Class::Unicode(class)) = hir.kind() else {
        return false;
    };
    let contains = |letter| {
        let mut ranges = class.iter();
        ranges.any(|range| (range.start()..=range.end()).contains(&letter))
    };
    contains('\u{1}') && !(contains('"') && contains('\\'))
}

/// The places of classes.
#[derive(Default)]
struct Classes(Vec<(usize, usize)>);

impl Visitor for Classes {
    type Output = Vec<(usize, usize)>;
    type Err = ();

    fn finish(self) -> Result<Self::Output, ()> {
        Ok(self.0)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), ()> {
        let span = match ast {
            Ast::ClassBracketed(class) => &class.span,
            Ast::ClassUnicode(class) => &class.span,
            Ast::ClassPerl(class) => &class.span,
            _ => return Ok(()),
        };
        self.0.push((span.start.offset, span.end.offset));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn classes_that_lack_a_quote_or_a_backslash_lose_one_control_character() {
        for (pattern, adapted) in [
            (r#"^[^"]+$"#, r#"^[[^"]--\x01]+$"#),
            (r"[^\\/]{3}x[a-z]", r"[[^\\/]--\x01]{3}x[a-z]"),
            (
                r"([\x00-\x1f]|é[^\w\\])",
                r"([[\x00-\x1f]--\x01]|é[[^\w\\]--\x01])",
            ),
            (r"^\P{P}{3}$", r"^[\P{P}--\x01]{3}$"),
            // These classes have both, or no control characters.
            (r"^[^/]*.\D[\d\w -]$", r"^[^/]*.\D[\d\w -]$"),
            (r"[", r"["),
        ] {
            assert_eq!(exact(pattern).unwrap(), adapted, "{pattern}");
        }
        assert!(exact(r"^(\x01|[\x00\x02-\x1f])$").is_err());
    }

    #[test]
    fn patterns_are_adapted_where_they_are_and_literal_values_are_not() {
        let mut schema = json!({
            "properties": {"pattern": {"type": "string", "pattern": "[^\"]"}},
            "patternProperties": {"^[^\"]$": {"items": {"pattern": "[^\"]"}}},
            "const": {"pattern": "[^\"]"},
        });
        adapt(&mut schema).unwrap();
        let adapted = r#"[[^"]--\x01]"#;
        assert_eq!(
            schema,
            json!({
                "properties": {"pattern": {"type": "string", "pattern": adapted}},
                "patternProperties": {format!("^{adapted}$"): {"items": {"pattern": adapted}}},
                "const": {"pattern": "[^\"]"},
            })
        );
    }
}
