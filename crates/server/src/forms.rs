//! Structured output: `response_format` as in OpenAI's API, `output_config` as in Anthropic's, and vLLM's
//! `structured_outputs` for formats that these lack.

use std::fmt::Write;
use std::sync::Arc;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use triad_engine::constraint::ConstraintFactory;
use triad_engine::{Cancel, GenerateOptions};
use triad_grammar::{Error as GrammarError, GrammarSource};
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};
use crate::owner::Owner;
use crate::prepare::Work;
use crate::queue::Place;
use crate::sampling::one_of;
use crate::served::ServedModel;

/// Maximum number of strings in `choice`.
const MAX_TEXTS: usize = 1024;

/// The format of the output.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ResponseFormat {
    /// `text`, `json_object`, its alias `json`, or `json_schema`.
    #[serde(rename = "type")]
    kind: String,
    /// The schema, if `type` is `json_schema`.
    json_schema: Option<NamedSchema>,
    /// The schema, as in llama.cpp's server: for `json_object`, or for `json_schema` without the field `json_schema`.
    #[schema(value_type = Option<Object>)]
    schema: Option<Value>,
    /// Alias of `schema`, as in the server TGI.
    #[schema(value_type = Option<Object>)]
    value: Option<Value>,
}

/// The format of the output in `/v1/responses` and `/v1/messages`.
#[derive(Debug, PartialEq, Deserialize, Serialize, ToSchema)]
pub(crate) struct TextFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    kind: String,
    /// A name that the client chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The schema. Properties are generated in the schema's order.
    #[schema(value_type = Option<Object>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<Value>,
    /// Accepted, without effect: the output always conforms to the schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

/// A JSON schema with its name.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct NamedSchema {
    /// A name that the client chooses.
    #[serde(rename = "name")]
    #[schema(value_type = Option<String>)]
    _name: Option<IgnoredAny>,
    /// The schema. Properties are generated in the schema's order.
    #[schema(value_type = Option<Object>)]
    schema: Option<Value>,
    /// Accepted, without effect: the output always conforms to the schema.
    #[serde(rename = "strict")]
    #[schema(value_type = Option<bool>)]
    _strict: Option<IgnoredAny>,
}

/// A constraint on the output. Exactly one field must be set.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct StructuredOutputs {
    /// A JSON schema of the output.
    #[schema(value_type = Option<Object>)]
    json: Option<Value>,
    /// If true, any JSON object.
    json_object: Option<bool>,
    /// A regular expression that matches the whole output, in the syntax of the Rust crate `regex`.
    regex: Option<String>,
    /// A list of strings, one of which is the output.
    choice: Option<Vec<String>>,
    /// A grammar of the output, in llguidance's variant of Lark.
    grammar: Option<String>,
}

/// A requested constraint, and the field that requests it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AskedForm {
    pub(crate) field: &'static str,
    pub(crate) source: GrammarSource,
}

impl ResponseFormat {
    /// Returns the requested constraint, or `None` for plain text.
    ///
    /// # Errors
    /// If the type is unknown, or the schema is missing or invalid.
    pub(crate) fn form(&self) -> ApiResult<Option<AskedForm>> {
        let named = self
            .json_schema
            .as_ref()
            .and_then(|named| named.schema.as_ref());
        let kind = match self.kind.as_str() {
            "json" => "json_object",
            kind => kind,
        };
        let (value, schema) = ("response_format.value", "response_format.schema");
        let of_schema = if self.schema.is_none() && self.value.is_some() {
            value
        } else {
            schema
        };
        let plain = one_of((value, self.value.as_ref()), (schema, self.schema.as_ref()))?;
        match (named, plain) {
            (Some(_), Some(_)) => Err(ApiError::field(
                of_schema,
                "expected either this or json_schema.schema, not both",
            )),
            (None, Some(plain)) => form((kind, Some(plain)), "response_format", of_schema),
            (named, None) => form(
                (kind, named),
                "response_format",
                "response_format.json_schema.schema",
            ),
        }
    }
}

impl TextFormat {
    /// Like [`ResponseFormat::form`], for a format in `field` whose schema is in `of_schema`.
    pub(crate) fn form(
        &self,
        field: &'static str,
        of_schema: &'static str,
    ) -> ApiResult<Option<AskedForm>> {
        form((&self.kind, self.schema.as_ref()), field, of_schema)
    }
}

/// Returns the constraint of the type `kind` in `field`. Its schema, if any, is in the field `of_schema`.
fn form(
    (kind, schema): (&str, Option<&Value>),
    field: &'static str,
    of_schema: &'static str,
) -> ApiResult<Option<AskedForm>> {
    Ok(match kind {
        "text" => None,
        "json_object" if schema.is_none() => Some(AskedForm {
            field,
            source: GrammarSource::JsonObject,
        }),
        "json_object" | "json_schema" => {
            let schema = schema.ok_or_else(|| ApiError::field(of_schema, "it is missing"))?;
            Some(AskedForm {
                field: of_schema,
                source: json_schema(of_schema, schema)?,
            })
        }
        kind => {
            let message =
                format!("{kind:?} is not known: expected text, json_object or json_schema");
            return Err(ApiError::unsupported(&format!("{field}.type"), message));
        }
    })
}

/// Returns the constraint of a JSON `schema` in `field`.
fn json_schema(field: &str, schema: &Value) -> ApiResult<GrammarSource> {
    match schema {
        Value::Object(_) => Ok(GrammarSource::JsonSchema(schema.to_string())),
        // A schema may also be given as a string that contains JSON.
        Value::String(text) if text.trim_start().starts_with('{') => {
            Ok(GrammarSource::JsonSchema(text.clone()))
        }
        _ => Err(ApiError::field(field, "expected a JSON schema, an object")),
    }
}

impl StructuredOutputs {
    /// Returns the requested constraint.
    ///
    /// # Errors
    /// If not exactly one field is set, or its value is invalid.
    pub(crate) fn form(&self) -> ApiResult<AskedForm> {
        let mut forms = Vec::new();
        let mut add = |field, source| forms.push(AskedForm { field, source });
        if let Some(schema) = &self.json {
            add(
                "structured_outputs.json",
                json_schema("structured_outputs.json", schema)?,
            );
        }
        if self.json_object == Some(true) {
            add("structured_outputs.json_object", GrammarSource::JsonObject);
        }
        if let Some(regex) = &self.regex {
            add(
                "structured_outputs.regex",
                GrammarSource::Regex(regex.clone()),
            );
        }
        if let Some(texts) = &self.choice {
            let field = "structured_outputs.choice";
            add(field, GrammarSource::Regex(any_of(field, texts)?));
        }
        if let Some(grammar) = &self.grammar {
            add(
                "structured_outputs.grammar",
                GrammarSource::Lark(grammar.clone()),
            );
        }
        match <[AskedForm; 1]>::try_from(forms) {
            Ok([form]) => Ok(form),
            Err(forms) => {
                let message = format!(
                    "{} forms, expected exactly one of json, json_object, regex, choice and grammar",
                    forms.len()
                );
                Err(ApiError::field("structured_outputs", message))
            }
        }
    }
}

/// Returns a regular expression that matches exactly the strings `texts`, which are the value of `field`.
fn any_of(field: &str, texts: &[String]) -> ApiResult<String> {
    if texts.is_empty() || texts.len() > MAX_TEXTS || texts.iter().any(String::is_empty) {
        let message = format!(
            "{} texts, expected 1 to {MAX_TEXTS}, none of them empty",
            texts.len()
        );
        return Err(ApiError::field(field, message));
    }
    let mut regex = String::new();
    for text in texts {
        regex.push_str(if regex.is_empty() { "(" } else { "|" });
        for letter in text.chars() {
            if letter.is_ascii_alphanumeric() {
                regex.push(letter);
            } else {
                // Writing to a `String` doesn't fail.
                let _ = write!(regex, "\\x{{{:x}}}", u32::from(letter));
            }
        }
    }
    Ok(regex + ")")
}

/// Request fields for structured output. At most one of them may be set.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct FormFields {
    /// The format of the output.
    response_format: Option<ResponseFormat>,
    /// A constraint on the output, for formats that `response_format` lacks. An extension, as in vLLM's server.
    structured_outputs: Option<StructuredOutputs>,
    /// A JSON schema of the output, as in llama.cpp's server.
    #[schema(value_type = Option<Object>)]
    json_schema: Option<Value>,
    /// Alias of `structured_outputs.json`.
    #[schema(value_type = Option<Object>)]
    guided_json: Option<Value>,
    /// Alias of `structured_outputs.regex`.
    guided_regex: Option<String>,
    /// Alias of `structured_outputs.choice`.
    guided_choice: Option<Vec<String>>,
    /// Alias of `structured_outputs.grammar`.
    guided_grammar: Option<String>,
}

impl FormFields {
    /// Returns the requested constraint, if there is one.
    ///
    /// # Errors
    /// If several fields request different ones; and as [`ResponseFormat::form`] and [`StructuredOutputs::form`].
    pub(crate) fn form(&self) -> ApiResult<Option<AskedForm>> {
        let mut forms = Vec::new();
        forms.extend(
            self.response_format
                .as_ref()
                .map(ResponseFormat::form)
                .transpose()?
                .flatten(),
        );
        forms.extend(
            self.structured_outputs
                .as_ref()
                .map(StructuredOutputs::form)
                .transpose()?,
        );
        for (field, schema) in [
            ("json_schema", &self.json_schema),
            ("guided_json", &self.guided_json),
        ] {
            if let Some(schema) = schema {
                forms.push(AskedForm {
                    field,
                    source: json_schema(field, schema)?,
                });
            }
        }
        let mut add = |field, source| forms.push(AskedForm { field, source });
        if let Some(regex) = &self.guided_regex {
            add("guided_regex", GrammarSource::Regex(regex.clone()));
        }
        if let Some(texts) = &self.guided_choice {
            add(
                "guided_choice",
                GrammarSource::Regex(any_of("guided_choice", texts)?),
            );
        }
        if let Some(grammar) = &self.guided_grammar {
            add("guided_grammar", GrammarSource::Lark(grammar.clone()));
        }
        let mut forms = forms.into_iter();
        let Some(first) = forms.next() else {
            return Ok(None);
        };
        // Clients for several versions of vLLM send a form by its older and by its newer name.
        match forms.find(|form| form.source != first.source) {
            None => Ok(Some(first)),
            Some(other) => {
                // The error names the outermost field.
                let name = |form: &AskedForm| form.field.split('.').next().unwrap_or_default();
                let message = format!("expected either this or {}, not both", name(&first));
                Err(ApiError::field(name(&other), message))
            }
        }
    }
}

impl AskedForm {
    /// Returns the JSON schema, if the constraint is one.
    pub(crate) fn schema(&self) -> Option<Value> {
        match &self.source {
            GrammarSource::JsonObject => Some(json!({"type": "object"})),
            GrammarSource::JsonSchema(text) => serde_json::from_str(text).ok(),
            GrammarSource::Regex(_) | GrammarSource::Lark(_) => None,
        }
    }

    /// Compiles the constraint for a model's vocabulary, which takes up to ten seconds.
    ///
    /// # Errors
    /// If the source is invalid, unsupported, or exceeds a limit; or if too many compilations are running.
    pub(crate) fn compile(&self, asker: Asker<'_>) -> ApiResult<Arc<dyn ConstraintFactory>> {
        compile(asker, self.field, &self.source)
    }
}

/// The context of a compilation. Compiled grammars are cached per owner: otherwise the compile time would reveal what
/// other clients requested.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    pub(crate) model: &'a ServedModel,
    pub(crate) owner: Owner,
    /// Set when the client disconnects.
    pub(crate) cancel: &'a Cancel,
}

/// Compiles `source`, which is the value of `field`.
///
/// # Errors
/// As [`AskedForm::compile`].
pub(crate) fn compile(
    asker: Asker<'_>,
    field: &str,
    source: &GrammarSource,
) -> ApiResult<Arc<dyn ConstraintFactory>> {
    let grammars = asker
        .model
        .grammars()
        .map_err(|error| ApiError::unsupported(field, error.to_string()))?;
    match grammars.compile_for(asker.owner.id(), source, asker.cancel) {
        Ok(grammar) => Ok(grammar),
        Err(error) => Err(refused(field, &error)),
    }
}

fn refused(field: &str, error: &GrammarError) -> ApiError {
    match error {
        GrammarError::Busy { .. }
        | GrammarError::Starved
        | GrammarError::NoThread { .. }
        | GrammarError::Cancelled => ApiError::unavailable(error.to_string()),
        GrammarError::Checker { .. } => ApiError::failed("the grammar can't be checked", error),
        error => ApiError::field(field, error.to_string()),
    }
}

/// Compiles the constraint of a request that has a `place`.
///
/// # Errors
/// As [`AskedForm::compile`]; and if `options` continue generation after the end token.
pub(crate) async fn prepare(
    (model, place, owner): (&Arc<ServedModel>, &Place, Owner),
    form: Option<AskedForm>,
    options: &GenerateOptions,
) -> ApiResult<Option<Arc<dyn ConstraintFactory>>> {
    let Some(form) = form else { return Ok(None) };
    check_end(options)?;
    let work = Work::Form(form.source.text().len());
    model
        .preparers()
        .prepare((model, place), work, move |model: &ServedModel, cancel| {
            form.compile(Asker {
                model,
                owner,
                cancel,
            })
        })
        .await
        .map(Some)
}

/// Refuses options that continue generation after the end token: a constrained completion allows no token there.
///
/// # Errors
/// If `options` ignore end tokens.
pub(crate) fn check_end(options: &GenerateOptions) -> ApiResult<()> {
    if options.ignores_end_tokens {
        return Err(ApiError::field(
            "ignore_eos",
            "structured output and tool calls can't continue after the end token",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::http::header::RETRY_AFTER;
    use axum::response::IntoResponse;

    use super::*;

    #[test]
    fn a_compiler_that_is_busy_is_no_fault_of_the_request() {
        let busy = refused("tools", &GrammarError::Busy { count: 8 }).into_response();
        assert_eq!(busy.status(), 503);
        assert!(busy.headers().contains_key(RETRY_AFTER));
        let wrong = refused(
            "tools",
            &GrammarError::Json {
                line: 1,
                column: 2,
                problem: "x".into(),
            },
        );
        assert_eq!(
            (wrong.status.as_u16(), wrong.detail.param.as_deref()),
            (400, Some("tools"))
        );
    }
}
