//! Classifiers: scores of documents for a query, which the model reads together, and classes of texts.

use serde_json::{Value, json};
use triad_engine::{Cancel, EncoderText, Engine, Error as EngineError, Model};
use triad_model::description::Classifier;
use triad_model::template::ChatTemplate;
use triad_model::tokenizer::{EncodeOptions, Pair};

pub use triad_model::description::ScoreActivation;

use crate::chat::{Conversation, PromptEnd, encode_by, encode_text};
use crate::embedding::{max_tokens, pool};
use crate::error::{Error, Result};

/// The texts of a request that the model reads in pairs.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    /// The text that the documents are compared with.
    pub query: &'a str,
    /// The documents.
    pub documents: &'a [String],
    /// The task, for models whose template has a place for one; `None`: that of the model's files, if they state one.
    pub instruction: Option<&'a str>,
}

/// The texts of a request that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The query.
    Query,
    /// The documents.
    Documents,
    /// The instruction.
    Instruction,
}

/// How two texts become one.
enum Join<'a> {
    /// By tokens around them.
    Tokens(&'a Pair),
    /// By a template, as messages of the roles `query` and `document`.
    Template(&'a ChatTemplate),
}

/// Returns the reason why a model scores no documents, if it does not.
pub fn unsupported(model: &Model) -> Option<String> {
    let Some(classifier) = model.description().classifier() else {
        return Some("it has no classifier of pairs of texts (a cross-encoder has)".into());
    };
    let classes = model.description().vector_width();
    if classes != 1 {
        return Some(format!(
            "its classifier has {classes} classes: ask for a prediction"
        ));
    }
    without_pairs(model, classifier).or_else(|| unsupported_texts(model))
}

/// Returns the part of the rules for texts because of which a model's scores and classes are refused, if there is one.
pub fn unsupported_texts(model: &Model) -> Option<String> {
    model.embedding_defaults().unsupported_scores.clone()
}

/// Returns the reason why a model joins no two texts, if it does not.
fn without_pairs(model: &Model, classifier: &Classifier) -> Option<String> {
    match join(model) {
        Some(_) => None,
        None if model.description().is_encoder() => {
            Some("its tokenizer does not state the tokens around two texts".into())
        }
        None if classifier.of_words => {
            Some("it has no template that reads the roles query and document".into())
        }
        None => Some("it has no template or tokens around a query and a document".into()),
    }
}

fn join(model: &Model) -> Option<Join<'_>> {
    if let Some(template) = model.pair_template() {
        return Some(Join::Template(template));
    }
    // The texts of a language model without a template are not those that it was trained with.
    if !model.description().is_encoder() {
        return None;
    }
    let pair = model.tokenizer().ok()?.pair()?;
    Some(Join::Tokens(pair))
}

/// Returns the tokens of the query together with each of the documents, by the rules of the model `name`. With
/// `parse_special`, names of control tokens in them are these tokens.
///
/// # Errors
/// If the model joins no two texts; if a pair has more tokens than the context or the model's authors allow; if there is an
/// instruction and no place for it; if `cancel` is set. The error comes with the texts that it is about.
pub fn pairs(
    model: &Model,
    name: &str,
    texts: &Texts<'_>,
    (parse_special, context): (bool, usize),
    cancel: &Cancel,
) -> Result<Vec<EncoderText>, (Part, Error)> {
    let most = max_tokens(model, context);
    // The template or the tokenizer states what is around the texts.
    let options = EncodeOptions {
        parse_special,
        add_special: false,
    };
    let of_documents = |error| (Part::Documents, error);
    let defaults = model.embedding_defaults();
    let stated = defaults.default_prompt.as_ref();
    let stated = stated.and_then(|name| defaults.prompts.get(name));
    match join(model) {
        None => Err(of_documents(unsupported_error(
            "the model joins no two texts",
        ))),
        Some(Join::Template(template)) => {
            let instruction = texts.instruction.or(stated.map(String::as_str));
            if let Some(text) = instruction {
                encode_text(model, text, options, (most, cancel))
                    .map_err(|error| (Part::Instruction, error))?;
            }
            // A query that does not fit alone fits with no document.
            encode_text(model, texts.query, options, (most, cancel))
                .map_err(|error| (Part::Query, error))?;
            let pair = |document: &String| {
                let message = |role: &str, text: &str| json!({"role": role, "content": text});
                let instruction = instruction.map(|text| message("system", text));
                let pair = [message("query", texts.query), message("document", document)];
                let messages: Vec<Value> = instruction.into_iter().chain(pair).collect();
                let conversation = Conversation {
                    messages: &messages,
                    end: PromptEnd::Messages,
                    keeps_letters: !parse_special,
                    ..Conversation::default()
                };
                let prompt = encode_by(
                    model,
                    (template, name),
                    &conversation,
                    (None, (most, cancel)),
                )?;
                Ok(EncoderText::from(prompt.tokens))
            };
            let pairs = texts.documents.iter().map(pair);
            pairs.collect::<Result<_>>().map_err(of_documents)
        }
        Some(Join::Tokens(around)) => {
            let query = match stated {
                Some(prompt) => format!("{prompt}{}", texts.query),
                None => texts.query.to_owned(),
            };
            let query = encode_text(model, &query, options, (most, cancel))
                .map_err(|error| (Part::Query, error))?;
            let pair = |document: &String| {
                joined(model, around, &query, document, (options, most), cancel)
            };
            let pairs = texts.documents.iter().map(pair);
            pairs.collect::<Result<_>>().map_err(of_documents)
        }
    }
}

/// Returns whether the model's template has a place for an instruction.
pub fn reads_instructions(model: &Model) -> bool {
    model
        .pair_template()
        .is_some_and(ChatTemplate::reads_instructions)
}

/// Returns the tokens of a text that is classified, or of two.
///
/// # Errors
/// As [`pairs`].
pub fn classified(
    model: &Model,
    (text, second): (&str, Option<&str>),
    (parse_special, context): (bool, usize),
    cancel: &Cancel,
) -> Result<EncoderText> {
    let most = max_tokens(model, context);
    let Some(second) = second else {
        let whole = EncodeOptions {
            parse_special,
            add_special: true,
        };
        let tokens = encode_text(model, text, whole, (most, cancel))?;
        return Ok(tokens.into());
    };
    let Some(around) = model.tokenizer()?.pair() else {
        return Err(unsupported_error(
            "the tokenizer does not state the tokens around two texts",
        ));
    };
    let options = EncodeOptions {
        parse_special,
        add_special: false,
    };
    let first = encode_text(model, text, options, (most, cancel))?;
    joined(model, around, &first, second, (options, most), cancel)
}

/// Returns a text, given by its tokens, and a second one, with the tokens around them.
fn joined(
    model: &Model,
    around: &Pair,
    first: &[u32],
    second: &str,
    (options, most): (EncodeOptions, usize),
    cancel: &Cancel,
) -> Result<EncoderText> {
    let second = encode_text(model, second, options, (most, cancel))?;
    let (tokens, second) = around.join(first, &second);
    if tokens.len() > most {
        return Err(Error::PromptTooLong {
            tokens: tokens.len(),
            more: false,
            context: most,
        });
    }
    let has_types = model.description().added_inputs.token_types > 1;
    Ok(EncoderText {
        tokens,
        second: second.filter(|_| has_types),
    })
}

fn unsupported_error(message: &str) -> Error {
    let error = triad_model::Error::new(triad_model::ErrorKind::Unsupported, message);
    EngineError::from(error).into()
}

/// Returns the function that makes scores of the classifier's outputs, which is a sigmoid of one output and a softmax of
/// several unless the model states another.
pub fn activation(model: &Model) -> ScoreActivation {
    let classifier = model.description().classifier();
    let stated = model.embedding_defaults().activation;
    // What `sentence-transformers` states is for one output.
    let stated = stated.filter(|_| model.description().vector_width() == 1);
    stated.unwrap_or_else(|| classifier.map_or_else(Default::default, |it| it.activation))
}

/// Returns the outputs of the classifier for each of `texts`, one text after the other. Texts are computed together if
/// their keys and values fit into `most_pages` pages; encoders need none.
///
/// # Errors
/// If the model has no classifier; if it computes numbers that are not finite; if `cancel` is set.
pub fn scores(
    engine: &Engine,
    texts: &[EncoderText],
    most_pages: usize,
    cancel: &Cancel,
) -> Result<Vec<f32>> {
    let model = engine.model();
    let Some(classifier) = model.description().classifier() else {
        return Err(unsupported_error("the model has no classifier"));
    };
    // A state of a language model depends on no later token.
    let unpadded = classifier.padding.map(|padding| {
        let text = |text: &EncoderText| {
            let mut text = text.clone();
            while text.tokens.len() > 1 && text.tokens.last() == Some(&padding) {
                text.tokens.pop();
            }
            text
        };
        texts.iter().map(text).collect::<Vec<_>>()
    });
    let texts = unpadded.as_deref().unwrap_or(texts);
    let pooled = pool(engine, texts, (classifier.pooling, most_pages), cancel)?;
    let scores = model.head(pooled);
    match scores.iter().all(|score| score.is_finite()) {
        true => Ok(scores),
        false => Err(EngineError::NotFinite.into()),
    }
}
