//! The modules that a configuration excludes from quantization.

use regex::Regex;

use super::config::Fields;
use crate::error::Result;

/// The prefix of a regular expression in a list of compressed-tensors.
const EXPRESSION: &str = "re:";

/// Lists of modules. The stored tensors decide whether a module is quantized: the lists only tell whether a matrix
/// that is not quantized may be so.
#[derive(Debug)]
pub(super) struct Skipped {
    /// The field, for errors.
    pub(super) field: String,
    names: Vec<String>,
    expressions: Vec<Regex>,
    /// The end of the names of all quantized modules, if they are listed.
    only: Option<Vec<String>>,
}

impl Skipped {
    /// Reads the lists in fields `keys`.
    pub(super) fn new(fields: &Fields, keys: &[&str]) -> Result<Self> {
        let mut skipped = Self {
            field: fields.path(keys[0]),
            names: Vec::new(),
            expressions: Vec::new(),
            only: None,
        };
        for key in keys {
            for name in fields.strings(key)?.unwrap_or_default() {
                let Some(expression) = name.strip_prefix(EXPRESSION) else {
                    skipped.names.push(name.to_owned());
                    continue;
                };
                // Python's `re.match` matches at the beginning.
                match Regex::new(&format!("^(?:{expression})")) {
                    Ok(expression) => skipped.expressions.push(expression),
                    Err(_) => {
                        return Err(
                            fields.unsupported(key, "a regular expression that Triad can read")
                        );
                    }
                }
            }
        }
        Ok(skipped)
    }

    /// Restricts quantization to modules with these ends of their names.
    pub(super) fn only(self, ends: Option<Vec<String>>) -> Self {
        Self { only: ends, ..self }
    }

    /// Returns whether a list has the full name of `module`.
    pub(super) fn names_exactly(&self, module: &str) -> bool {
        self.names.iter().any(|name| name == module)
    }

    /// Returns whether a list excludes `module`, as any program interprets it: by whole names, by parts of names, or by
    /// expressions.
    pub(super) fn may_name(&self, module: &str) -> bool {
        let is_left_out = self
            .only
            .as_ref()
            .is_some_and(|ends| !ends.iter().any(|end| module.ends_with(end.as_str())));
        is_left_out
            || self.names.iter().any(|name| module.contains(name.as_str()))
            || self
                .expressions
                .iter()
                .any(|expression| expression.is_match(module))
    }
}
