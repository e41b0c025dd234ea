//! Forms that answers must have: `response_format` as OpenAI's API has it, `output_config` as Anthropic's, and
//! `structured_outputs` as vLLM's server has it, for what those lack.

use std::fmt::Write;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use triad_engine::constraint::Form;
use triad_engine::{Cancel, GenerateOptions};
use triad_grammar::{Error as GrammarError, GrammarSource};
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};
use crate::hosted::Hosted;
use crate::owner::Owner;
use crate::prepare::Work;
use crate::queue::Place;

/// Texts of `choice`, at most.
const MOST_TEXTS: usize = 1024;

/// The form of an answer.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    kind: String,
    /// For `json_schema`.
    json_schema: Option<NamedSchema>,
    /// For `json_object`, or `json_schema` without one: the schema, where llama.cpp's server has it.
    #[schema(value_type = Option<Object>)]
    schema: Option<Value>,
}

/// The form of an answer, as `/v1/responses` and `/v1/messages` have it.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct TextFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    kind: String,
    #[serde(flatten)]
    json_schema: NamedSchema,
}

/// A JSON schema with what belongs to it.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct NamedSchema {
    /// What the client calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The schema. Its properties come in its order.
    #[schema(value_type = Option<Object>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<Value>,
    /// Answers always keep to the schema, with `strict` and without.
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

/// The form of an answer: exactly one of these.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct StructuredOutputs {
    /// JSON of this schema.
    #[schema(value_type = Option<Object>)]
    json: Option<Value>,
    /// Any JSON object, if it is true.
    json_object: Option<bool>,
    /// A text that this regular expression matches as a whole, in the syntax of the Rust crate `regex`.
    regex: Option<String>,
    /// One of these texts.
    choice: Option<Vec<String>>,
    /// A text of this grammar, in llguidance's variant of Lark.
    grammar: Option<String>,
}

/// A form that was asked for, and in which field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AskedForm {
    pub(crate) field: &'static str,
    pub(crate) source: GrammarSource,
}

impl ResponseFormat {
    /// What is asked for; `None` for any text.
    ///
    /// # Errors
    /// If the type is unknown, or the schema is missing or none.
    pub(crate) fn form(&self) -> ApiResult<Option<AskedForm>> {
        let named = self
            .json_schema
            .as_ref()
            .and_then(|named| named.schema.as_ref());
        match (named, &self.schema) {
            (Some(_), Some(_)) => Err(ApiError::field(
                "response_format.schema",
                "expected either it or json_schema.schema, not both",
            )),
            (None, Some(schema)) => form(
                (&self.kind, Some(schema)),
                "response_format",
                "response_format.schema",
            ),
            (named, None) => form(
                (&self.kind, named),
                "response_format",
                "response_format.json_schema.schema",
            ),
        }
    }
}

impl TextFormat {
    /// As [`ResponseFormat::form`], of a format in `field` with its schema in `of_schema`.
    pub(crate) fn form(
        &self,
        field: &'static str,
        of_schema: &'static str,
    ) -> ApiResult<Option<AskedForm>> {
        form(
            (&self.kind, self.json_schema.schema.as_ref()),
            field,
            of_schema,
        )
    }
}

/// The form of the type `kind` in `field`, with a schema that may be in the field `of_schema`.
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

/// JSON of `schema`, which is in `field`.
fn json_schema(field: &str, schema: &Value) -> ApiResult<GrammarSource> {
    match schema {
        Value::Object(_) => Ok(GrammarSource::JsonSchema(schema.to_string())),
        // The text of one.
        Value::String(text) if text.trim_start().starts_with('{') => {
            Ok(GrammarSource::JsonSchema(text.clone()))
        }
        _ => Err(ApiError::field(field, "expected a JSON schema, an object")),
    }
}

impl StructuredOutputs {
    /// What is asked for.
    ///
    /// # Errors
    /// If that is not exactly one form, or it makes no sense.
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

/// A regular expression that matches each of `texts`, which are in `field`, and nothing else.
fn any_of(field: &str, texts: &[String]) -> ApiResult<String> {
    if texts.is_empty() || texts.len() > MOST_TEXTS || texts.iter().any(String::is_empty) {
        let message = format!(
            "{} texts, expected 1 to {MOST_TEXTS}, none of them empty",
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
                // Writing to a text doesn't fail.
                let _ = write!(regex, "\\x{{{:x}}}", u32::from(letter));
            }
        }
    }
    Ok(regex + ")")
}

/// Fields with the form of answers.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct FormFields {
    /// The form of the answers.
    response_format: Option<ResponseFormat>,
    /// The form of the answers, for what `response_format` lacks: an extension by the name of vLLM's server.
    structured_outputs: Option<StructuredOutputs>,
    /// A JSON schema of the answers, as llama.cpp's server has it.
    #[schema(value_type = Option<Object>)]
    json_schema: Option<Value>,
    /// As `structured_outputs.json`.
    #[schema(value_type = Option<Object>)]
    guided_json: Option<Value>,
    /// As `structured_outputs.regex`.
    guided_regex: Option<String>,
    /// As `structured_outputs.choice`.
    guided_choice: Option<Vec<String>>,
    /// As `structured_outputs.grammar`.
    guided_grammar: Option<String>,
}

impl FormFields {
    /// Returns the one form that is asked for.
    ///
    /// # Errors
    /// If several fields ask for one; as [`ResponseFormat::form`] and [`StructuredOutputs::form`].
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
        match (forms.next(), forms.next()) {
            (Some(first), Some(second)) => {
                // A form within a field is named by the field.
                let name = |form: &AskedForm| form.field.split('.').next().unwrap_or_default();
                let message = format!("expected either it or {}, not both", name(&first));
                Err(ApiError::field(name(&second), message))
            }
            (form, _) => Ok(form),
        }
    }
}

impl AskedForm {
    /// The JSON schema, if it is one.
    pub(crate) fn schema(&self) -> Option<Value> {
        match &self.source {
            GrammarSource::JsonObject => Some(json!({"type": "object"})),
            GrammarSource::JsonSchema(text) => serde_json::from_str(text).ok(),
            GrammarSource::Regex(_) | GrammarSource::Lark(_) => None,
        }
    }

    /// Compiles it for the tokens of a model: up to ten seconds.
    ///
    /// # Errors
    /// If it has a mistake, holds what is not supported, or exceeds a limit; if too many are being compiled.
    pub(crate) fn compile(&self, asker: Asker<'_>) -> ApiResult<Arc<dyn Form>> {
        compile(asker, self.field, &self.source)
    }
}

/// Whose answers of a model have a form. What was compiled for one owner is compiled again for another: else the time would
/// tell what others asked for.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    pub(crate) model: &'a Hosted,
    pub(crate) owner: Owner,
    /// Set once the client went away.
    pub(crate) cancel: &'a Cancel,
}

/// Compiles `source`, which is in `field`.
///
/// # Errors
/// As [`AskedForm::compile`].
pub(crate) fn compile(
    asker: Asker<'_>,
    field: &str,
    source: &GrammarSource,
) -> ApiResult<Arc<dyn Form>> {
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
        GrammarError::Busy { .. } | GrammarError::NoThread { .. } | GrammarError::Cancelled => {
            ApiError::unavailable(error.to_string())
        }
        GrammarError::Checker { .. } => ApiError::failed("the grammar can't be checked", error),
        error => ApiError::field(field, error.to_string()),
    }
}

/// Compiles the form of answers with `options`, for a request that has a `place`.
///
/// # Errors
/// As [`AskedForm::compile`]; if the answers are to go on behind their end.
pub(crate) async fn prepare(
    (model, place, owner): (&Arc<Hosted>, &Place, Owner),
    form: Option<AskedForm>,
    options: &GenerateOptions,
) -> ApiResult<Option<Arc<dyn Form>>> {
    let Some(form) = form else { return Ok(None) };
    check_end(options)?;
    let work = Work::Form(form.source.text().len());
    model
        .preparers()
        .prepare((model, place), work, move |model: &Hosted, cancel| {
            form.compile(Asker {
                model,
                owner,
                cancel,
            })
        })
        .await
        .map(Some)
}

/// Refuses answers that have a form and are to go on behind their end, where no token is allowed.
///
/// # Errors
/// If `options` have it.
pub(crate) fn check_end(options: &GenerateOptions) -> ApiResult<()> {
    if options.ignores_end_tokens {
        return Err(ApiError::field(
            "ignore_eos",
            "an answer that has a form, or calls tools, ends where its form does",
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
