//! Closing of objects: a schema that names properties and does not say whether others are allowed allows no others.
//!
//! If a model may add arbitrary keys, it often does so until the token limit, and the libraries that write schemas
//! leave `additionalProperties` out. Servers of other engines close such objects as well. All schemas that apply to one
//! place determine the properties of an object there. An object with its own `properties` and also `allOf`, `$ref` or
//! `anyOf` is therefore closed once, with the names of all of them. Its parts stay open, since each closed part would
//! forbid what another part requires. A definition that is a part in one place and the whole object in another gets a
//! second, open copy.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_json::{Map, Value, json};

/// Maximum number of names that are visited and added. No known schema has a tenth of them.
const MAX_NAMES: usize = 1 << 18;
/// Keywords whose schemas apply to the same place as the schema that contains them.
const IN_PLACE: [&str; 4] = ["$ref", "allOf", "anyOf", "oneOf"];
/// Keywords whose value maps names, which are not keywords, to schemas.
pub(crate) const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords that are refused later, so that their contents don't matter.
const REFUSED: [&str; 6] = [
    "not",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "dependencies",
];

/// The error of a schema whose parts have too many names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooManyNames;

impl TooManyNames {
    pub(crate) const TEXT: &'static str = "allOf, anyOf and $ref combine objects with too many names: set additionalProperties in each part";
}

/// Returns `schema` with closed objects.
///
/// # Errors
/// If this takes too many names.
pub(crate) fn closed(schema: &Value) -> Result<Value, TooManyNames> {
    let mut closer = Closer {
        root: schema,
        copies: BTreeMap::new(),
        wanted: Vec::new(),
        left: MAX_NAMES,
        objects: 0,
    };
    let mut made = closer.closed(schema)?;
    let mut copies = Vec::new();
    while let Some((name, part, object)) = closer.wanted.pop() {
        copies.push((name, closer.open(part, &object)?));
    }
    if let Some(keywords) = made.as_object_mut().filter(|_| !copies.is_empty()) {
        let definitions = keywords.entry("$defs").or_insert_with(|| json!({}));
        match definitions {
            Value::Object(definitions) => definitions.extend(copies),
            definitions => *definitions = Value::Object(copies.into_iter().collect()),
        }
    }
    Ok(made)
}

/// The names of an object's properties, by all schemas that apply to its place.
#[derive(Clone, Debug, Default)]
struct Names {
    properties: Map<String, Value>,
    patterns: Map<String, Value>,
    /// Whether there are `properties` or `patternProperties`. `required` alone does not describe an object.
    has_properties: bool,
    /// Whether one of the schemas itself says which other properties are allowed.
    is_explicit: bool,
    /// Minimum number of properties.
    least: u64,
}

impl Names {
    /// Adds the names that `keywords` itself contains.
    fn add(&mut self, keywords: &Map<String, Value>) {
        for (keyword, names) in [
            ("properties", &mut self.properties),
            ("patternProperties", &mut self.patterns),
        ] {
            if let Some(Value::Object(given)) = keywords.get(keyword) {
                self.has_properties = true;
                names.extend(given.keys().map(|name| (name.clone(), Value::Bool(true))));
            }
        }
        let required = keywords
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        for name in required.filter_map(Value::as_str) {
            self.properties.entry(name).or_insert(Value::Bool(true));
        }
        self.is_explicit |= keywords.contains_key("additionalProperties")
            || keywords.contains_key("unevaluatedProperties");
        self.least = self.least.max(
            keywords
                .get("minProperties")
                .and_then(Value::as_u64)
                .unwrap_or(0),
        );
    }

    /// Returns whether an object with these names can be closed.
    fn can_close(&self) -> bool {
        let enough = self.least <= self.properties.len() as u64 || !self.patterns.is_empty();
        self.has_properties && !self.is_explicit && enough
    }

    /// Adds the names of `more`.
    fn extend(&mut self, more: Self) {
        self.properties.extend(more.properties);
        self.patterns.extend(more.patterns);
    }

    fn len(&self) -> usize {
        self.properties.len() + self.patterns.len()
    }

    /// Returns a schema that allows only these names, with any values.
    fn schema(&self) -> Value {
        let mut schema = json!({ "properties": self.properties, "additionalProperties": false });
        if !self.patterns.is_empty() {
            schema["patternProperties"] = Value::Object(self.patterns.clone());
        }
        schema
    }
}

/// An object that several schemas describe in one place.
struct Object<'a> {
    /// The object's index among such objects.
    index: usize,
    schema: &'a Value,
    is_closed: bool,
}

struct Closer<'a> {
    root: &'a Value,
    /// The names of the open copies of definitions, by the object that they are a part of and by their pointer.
    copies: BTreeMap<(usize, String), String>,
    /// The copies that are not created yet: the name, the original, and the object that the copy is a part of.
    wanted: Vec<(String, &'a Value, Rc<Object<'a>>)>,
    /// Number of names that may still be visited or added.
    left: usize,
    /// Number of objects so far that several schemas describe.
    objects: usize,
}

impl<'a> Closer<'a> {
    fn spend(&mut self, names: usize) -> Result<(), TooManyNames> {
        self.left = self.left.checked_sub(names).ok_or(TooManyNames)?;
        Ok(())
    }

    /// Returns the closed form of a schema that alone describes its place.
    fn closed(&mut self, schema: &'a Value) -> Result<Value, TooManyNames> {
        let keywords = match schema {
            Value::Object(keywords) => keywords,
            Value::Array(items) => return items.iter().map(|item| self.closed(item)).collect(),
            schema => return Ok(schema.clone()),
        };
        let mut own = Names::default();
        own.add(keywords);
        self.spend(1 + own.len())?;
        let parts = |keyword: &str| {
            keywords
                .get(keyword)
                .and_then(Value::as_array)
                .map_or(0, Vec::len)
        };
        let in_place: Vec<_> = IN_PLACE
            .into_iter()
            .filter(|keyword| keywords.contains_key(*keyword))
            .collect();
        match in_place[..] {
            [] => {
                let mut made = self.children(keywords)?;
                if own.can_close() {
                    if let Some(Value::Object(properties)) = made.get_mut("properties") {
                        // Add names that are required but have no schema.
                        for (name, any) in own.properties {
                            properties.entry(name).or_insert(any);
                        }
                    }
                    made.insert("additionalProperties".into(), false.into());
                }
                Ok(Value::Object(made))
            }
            // The object is described by one schema, or by one of several.
            [keyword]
                if own.len() == 0
                    && !own.is_explicit
                    && (keyword != "allOf" || parts(keyword) == 1) =>
            {
                let mut made = self.children(keywords)?;
                if keyword != "$ref" {
                    made.insert(keyword.into(), self.closed(&keywords[keyword])?);
                }
                Ok(Value::Object(made))
            }
            _ => {
                let names = self.names(schema, None)?;
                self.objects += 1;
                let object = Rc::new(Object {
                    index: self.objects,
                    schema,
                    is_closed: names.can_close(),
                });
                let mut made = self.open(schema, &object)?;
                if object.is_closed {
                    self.add_part(&mut made, &names)?;
                }
                Ok(made)
            }
        }
    }

    /// Returns a part of `object`. Schemas of other places are closed, and each alternative is closed with the names of
    /// the other parts.
    fn open(&mut self, schema: &'a Value, object: &Rc<Object<'a>>) -> Result<Value, TooManyNames> {
        let Value::Object(keywords) = schema else {
            return Ok(schema.clone());
        };
        self.spend(1)?;
        let mut made = self.children(keywords)?;
        for keyword in IN_PLACE {
            let part = match (keyword, keywords.get(keyword)) {
                ("$ref", Some(Value::String(reference))) => self.copy(reference, object).into(),
                ("allOf", Some(Value::Array(parts))) => Value::Array(
                    parts
                        .iter()
                        .map(|part| self.open(part, object))
                        .collect::<Result<_, _>>()?,
                ),
                (_, Some(Value::Array(options))) => Value::Array(
                    options
                        .iter()
                        .map(|option| self.option(option, options, object))
                        .collect::<Result<_, _>>()?,
                ),
                _ => continue,
            };
            made.insert(keyword.into(), part);
        }
        Ok(Value::Object(made))
    }

    /// Returns `option`, one of the alternatives `options` of `object`. It allows its own names and those of the rest
    /// of the object.
    fn option(
        &mut self,
        option: &'a Value,
        options: &'a [Value],
        object: &Rc<Object<'a>>,
    ) -> Result<Value, TooManyNames> {
        let mut made = self.open(option, object)?;
        if object.is_closed && made.is_object() {
            let mut names = self.names(object.schema, Some(options))?;
            names.extend(self.names(option, None)?);
            self.add_part(&mut made, &names)?;
        }
        Ok(made)
    }

    /// Forbids all other names in `schema`.
    fn add_part(&mut self, schema: &mut Value, names: &Names) -> Result<(), TooManyNames> {
        self.spend(names.len())?;
        if let Some(keywords) = schema.as_object_mut() {
            let parts = keywords.entry("allOf").or_insert_with(|| json!([]));
            if let Value::Array(parts) = parts {
                parts.push(names.schema());
            }
        }
        Ok(())
    }

    /// Returns a reference to the open copy of `reference` for `object`.
    fn copy(&mut self, reference: &str, object: &Rc<Object<'a>>) -> String {
        let root = self.root;
        let found = pointer(reference).and_then(|pointer| Some((root.pointer(&pointer)?, pointer)));
        let Some((original, pointer)) = found else {
            return reference.to_owned();
        };
        let (next, wanted) = (self.copies.len(), &mut self.wanted);
        let name = self
            .copies
            .entry((object.index, pointer))
            .or_insert_with(|| {
                let is_taken = |name: &String| root["$defs"].get(name).is_some();
                let name = |underlines| format!("part{}{next}", "_".repeat(underlines));
                let name = (0..)
                    .map(name)
                    .find(|name| !is_taken(name))
                    .unwrap_or_default();
                wanted.push((name.clone(), original, Rc::clone(object)));
                name
            });
        format!("#/$defs/{name}")
    }

    /// Returns the keywords with closed schemas of other places. Schemas of the same place are unchanged.
    fn children(
        &mut self,
        keywords: &'a Map<String, Value>,
    ) -> Result<Map<String, Value>, TooManyNames> {
        let mut made = Map::new();
        for (keyword, value) in keywords {
            let is_kept =
                is_value(keyword) || IN_PLACE.iter().chain(&REFUSED).any(|kept| kept == keyword);
            let value = match value {
                value if is_kept => value.clone(),
                Value::Object(schemas) if NAMED.contains(&keyword.as_str()) => {
                    let each = schemas
                        .iter()
                        .map(|(name, schema)| Ok((name.clone(), self.closed(schema)?)));
                    Value::Object(each.collect::<Result<_, _>>()?)
                }
                // Other keywords may contain definitions anywhere.
                value => self.closed(value)?,
            };
            made.insert(keyword.clone(), value);
        }
        Ok(made)
    }

    /// Returns the names by all schemas that apply to the same place as `schema`, except those in the alternatives
    /// `without`.
    fn names(
        &mut self,
        schema: &'a Value,
        without: Option<&'a [Value]>,
    ) -> Result<Names, TooManyNames> {
        let (mut names, mut seen, mut left) = (Names::default(), BTreeSet::new(), vec![schema]);
        while let Some(schema) = left.pop() {
            let Value::Object(keywords) = schema else {
                continue;
            };
            names.add(keywords);
            self.spend(
                1 + keywords
                    .get("properties")
                    .and_then(Value::as_object)
                    .map_or(0, Map::len),
            )?;
            if let Some(pointer) = keywords
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(pointer)
            {
                left.extend(
                    self.root
                        .pointer(&pointer)
                        .filter(|_| seen.insert(pointer.clone())),
                );
            }
            for parts in ["allOf", "anyOf", "oneOf"]
                .iter()
                .filter_map(|keyword| keywords.get(*keyword)?.as_array())
            {
                if !without.is_some_and(|without| std::ptr::eq(without, parts.as_slice())) {
                    left.extend(parts);
                }
            }
        }
        Ok(names)
    }
}

/// Returns the JSON pointer of a reference within the schema.
fn pointer(reference: &str) -> Option<String> {
    let pointer = reference.strip_prefix('#')?;
    (pointer.is_empty() || pointer.starts_with('/')).then(|| pointer.to_owned())
}

/// Returns the schemas in a schema with these keywords, each with its keyword; lists of schemas as they are. A property may
/// have the name of a keyword, such as `default`.
pub(crate) fn parts(keywords: &Map<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
    let schemas = keywords.iter().filter(|(keyword, _)| !is_value(keyword));
    schemas.flat_map(|(keyword, part)| {
        let named = part.as_object().filter(|_| is_named(keyword));
        let is_one = named.is_none();
        let named = named.into_iter().flat_map(Map::values);
        named
            .chain(is_one.then_some(part))
            .map(move |part| (keyword.as_str(), part))
    })
}

/// Like [`parts`], to change them.
pub(crate) fn parts_mut(
    keywords: &mut Map<String, Value>,
) -> impl Iterator<Item = (&str, &mut Value)> {
    let schemas = keywords
        .iter_mut()
        .filter(|(keyword, _)| !is_value(keyword));
    schemas.flat_map(|(keyword, part)| {
        let keyword = keyword.as_str();
        let parts: Vec<_> = if is_named(keyword) && part.is_object() {
            part.as_object_mut()
                .into_iter()
                .flat_map(Map::values_mut)
                .collect()
        } else {
            vec![part]
        };
        parts.into_iter().map(move |part| (keyword, part))
    })
}

fn is_named(keyword: &str) -> bool {
    NAMED.contains(&keyword)
}

/// Returns whether a keyword's value is not a schema but a literal value.
pub(crate) fn is_value(keyword: &str) -> bool {
    matches!(keyword, "const" | "enum" | "default" | "examples")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_name_properties_are_closed_where_all_of_them_are_known() {
        let any = json!({"type": "object"});
        for (schema, expected) in [
            (any.clone(), any.clone()),
            (
                json!({"properties": {"a": any}}),
                json!({"properties": {"a": any}, "additionalProperties": false}),
            ),
            // A required property must stay allowed.
            (
                json!({"properties": {}, "required": ["b"]}),
                json!({"properties": {"b": true}, "required": ["b"], "additionalProperties": false}),
            ),
            (
                json!({"properties": {"a": {}}, "additionalProperties": true}),
                json!({"properties": {"a": {}}, "additionalProperties": true}),
            ),
            (
                json!({"properties": {"a": {}}, "minProperties": 2}),
                json!({"properties": {"a": {}}, "minProperties": 2}),
            ),
            (
                json!({"const": {"properties": {"a": 1}}}),
                json!({"const": {"properties": {"a": 1}}}),
            ),
            (
                json!({"anyOf": [{"items": {"properties": {"properties": {}}}}, {"type": "null"}]}),
                json!({"anyOf": [
                    {"items": {"properties": {"properties": {}}, "additionalProperties": false}}, {"type": "null"}
                ]}),
            ),
            (
                json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}),
                json!({"allOf": [
                    {"properties": {"a": {}}}, {"properties": {"b": {}}},
                    {"properties": {"b": true, "a": true}, "additionalProperties": false}
                ]}),
            ),
            (
                json!({"allOf": [{"properties": {"a": {}}}, {"additionalProperties": {"type": "null"}}]}),
                json!({"allOf": [{"properties": {"a": {}}}, {"additionalProperties": {"type": "null"}}]}),
            ),
        ] {
            assert_eq!(closed(&schema).unwrap(), expected, "{schema}");
        }
    }

    #[test]
    fn a_definition_that_is_whole_here_and_a_part_there_has_an_open_copy_there() {
        let node = json!({"properties": {"next": {"$ref": "#/$defs/node"}}});
        let schema = json!({
            "$ref": "#/$defs/node", "properties": {"name": {}, "first": {"$ref": "#/$defs/node"}},
            "$defs": {"node": node, "part0": true},
        });
        let made = closed(&schema).unwrap();
        assert_eq!(made["$ref"], "#/$defs/part_0");
        assert_eq!(made["properties"]["first"]["$ref"], "#/$defs/node");
        assert_eq!(made["$defs"]["node"]["additionalProperties"], false);
        assert_eq!(made["$defs"]["part_0"], node);
        let names = json!({"name": true, "first": true, "next": true});
        assert_eq!(
            made["allOf"],
            json!([{"properties": names, "additionalProperties": false}])
        );
    }

    #[test]
    fn names_that_multiply_are_refused() {
        let many: Map<_, _> = (0..2000)
            .map(|name| (name.to_string(), json!({})))
            .collect();
        let parts: Vec<_> = (0..2000)
            .map(|_| json!({"$ref": "#/$defs/many", "required": ["a"]}))
            .collect();
        let schema = json!({"prefixItems": parts, "$defs": {"many": {"properties": many}}});
        assert!(closed(&schema).is_err());
        // Circular references terminate.
        let circle =
            json!({"allOf": [{"$ref": "#"}, {"$ref": "#/allOf/0"}], "properties": {"a": {}}});
        assert!(closed(&circle).is_ok());
    }
}
