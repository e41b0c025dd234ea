//! References with escapes. llguidance compares the parts of a pointer with names as they are written, so a name with `/`
//! or `~` can't be reached; RFC 6901 escapes these, and a fragment also escapes others as `%20`.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use crate::objects;

/// Maximum bytes of all definitions that are copied. References to others stay as they are, and the compiler refuses
/// them.
const MAX_COPIED: usize = 1 << 18;

/// Returns `schema` with references that need no escapes. Definitions whose pointers need some are copied into `$defs`
/// under other names.
pub(crate) fn without_escapes(mut schema: Value) -> Value {
    let mut escaped = BTreeMap::new();
    visit(&mut schema, &mut |reference| {
        if reference.starts_with("#/") && reference.contains(['~', '%']) {
            escaped.insert(reference.clone(), String::new());
        }
    });
    let mut copies = Copies::default();
    escaped.retain(|reference, simple| {
        let decoded = percent_decode_str(reference).decode_utf8().ok();
        let found = decoded.and_then(|decoded| copies.simple(&schema, &decoded));
        *simple = found.unwrap_or_default();
        !simple.is_empty()
    });
    if escaped.is_empty() {
        return schema;
    }
    if let Some(keywords) = schema.as_object_mut()
        && !copies.made.is_empty()
    {
        let definitions = keywords.entry("$defs").or_insert_with(|| json!({}));
        if let Some(definitions) = definitions.as_object_mut() {
            definitions.extend(copies.made);
        }
    }
    visit(&mut schema, &mut |reference| {
        if let Some(simple) = escaped.get(reference) {
            reference.clone_from(simple);
        }
    });
    schema
}

#[derive(Default)]
struct Copies {
    /// The new references of the pointers that are copied; `None` for those that are not.
    names: BTreeMap<String, Option<String>>,
    made: Map<String, Value>,
    bytes: usize,
}

impl Copies {
    /// Returns a reference without escapes to the schema at a reference whose `%` are decoded; `None` if there is none,
    /// or the copies would be too large.
    fn simple(&mut self, root: &Value, decoded: &str) -> Option<String> {
        let pointer = decoded.strip_prefix('#')?;
        let target = root.pointer(pointer)?;
        if !pointer.contains('~') {
            return Some(decoded.to_owned());
        }
        if let Some(known) = self.names.get(pointer) {
            return known.clone();
        }
        let made = self.copy(root, target);
        self.names.insert(pointer.to_owned(), made.clone());
        made
    }

    /// Copies `target`, and returns a reference to the copy.
    fn copy(&mut self, root: &Value, target: &Value) -> Option<String> {
        let definitions = root.get("$defs");
        let is_unusable = definitions.is_some_and(|definitions| !definitions.is_object());
        if is_unusable || self.bytes > MAX_COPIED {
            return None;
        }
        self.bytes += target.to_string().len();
        if self.bytes > MAX_COPIED {
            return None;
        }
        let is_taken = |name: &String| definitions.and_then(|all| all.get(name)).is_some();
        let count = self.made.len();
        let mut names = (0..).map(|more| format!("escaped{}{count}", "_".repeat(more)));
        let name = names.find(|name| !is_taken(name))?;
        self.made.insert(name.clone(), target.clone());
        Some(format!("#/$defs/{name}"))
    }
}

/// Calls `change` with each reference of a schema.
fn visit(schema: &mut Value, change: &mut impl FnMut(&mut String)) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, change)),
        Value::Object(keywords) => {
            for (keyword, value) in keywords {
                match value {
                    Value::String(reference) if keyword == "$ref" => change(reference),
                    _ if objects::is_value(keyword) => {}
                    // The keys of this value are names, not keywords.
                    Value::Object(schemas) if objects::NAMED.contains(&keyword.as_str()) => {
                        schemas
                            .values_mut()
                            .for_each(|schema| visit(schema, change));
                    }
                    value => visit(value, change),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_escapes_are_reached() {
        let schema = json!({
            "anyOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/c~0d"}, {"$ref": "#/$defs/e%20f"}, {"$ref": "#/$defs/a%7E1b"}],
            "$defs": {"a/b": {"$ref": "#/$defs/c~0d"}, "c~d": {"type": "null"}, "e f": {}},
        });
        let expected = json!({
            "anyOf": [
                {"$ref": "#/$defs/escaped0"}, {"$ref": "#/$defs/escaped1"}, {"$ref": "#/$defs/e f"}, {"$ref": "#/$defs/escaped0"},
            ],
            "$defs": {
                "a/b": {"$ref": "#/$defs/escaped1"}, "c~d": {"type": "null"}, "e f": {},
                "escaped0": {"$ref": "#/$defs/escaped1"}, "escaped1": {"type": "null"},
            },
        });
        assert_eq!(without_escapes(schema), expected);
    }

    #[test]
    fn values_names_and_references_to_nothing_stay() {
        for schema in [
            json!({"const": {"$ref": "#/a~1b"}, "a/b": {}}),
            json!({"properties": {"$ref": {"type": "null"}}}),
            json!({"$ref": "#/$defs/a~1b"}),
            json!({"$ref": "#/$defs/a~1b", "$defs": 3}),
            json!({"$ref": "#/%FF"}),
        ] {
            assert_eq!(without_escapes(schema.clone()), schema);
        }
    }

    #[test]
    fn copies_are_bounded() {
        let mut schema = json!({"long": "x".repeat(MAX_COPIED / 3)});
        for _ in 0..4 {
            schema = json!({"/": schema});
        }
        let references = (1..5).map(|depth| json!({"$ref": format!("#{}", "/~1".repeat(depth))}));
        schema["anyOf"] = references.collect();
        let copies = without_escapes(schema);
        assert!(copies.to_string().len() < 3 * MAX_COPIED);
    }
}
