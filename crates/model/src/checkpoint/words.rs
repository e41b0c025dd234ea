//! Language models that score a pair of texts by the words with which they would answer, in the layout of
//! `sentence-transformers`: a module `LogitScore` names the tokens.

use std::path::Path;

use serde_json::Value;

use super::Checkpoint;
use super::embedding_defaults::kind_of;
use super::json;
use super::source::SENTENCE_MODULES;
use crate::description::{Classifier, Dense, DenseActivation, Head, Pooling};
use crate::error::{Error, ErrorKind, Result};
use crate::tensor_map::{DenseTensors, LinearTensors, Part, Run, TensorSlice};

/// Adds the rows of the output matrix that `modules.json` of `folder` asks for.
pub(super) fn add(checkpoint: &mut Checkpoint, folder: &Path) -> Result<()> {
    let modules_path = folder.join(SENTENCE_MODULES);
    let modules = json::read_any(&modules_path)?;
    let modules = modules.iter().filter_map(Value::as_array).flatten();
    let Some(module) = modules.into_iter().find(|it| kind_of(it) == "LogitScore") else {
        return Ok(());
    };
    let unsupported = |message: &str| Error::new(ErrorKind::Unsupported, message);
    let name = module["path"].as_str().unwrap_or_default();
    let is_plain = name
        .bytes()
        .all(|it| it.is_ascii_alphanumeric() || it == b'_');
    if name.is_empty() || !is_plain {
        let message = "a module LogitScore in another place than a folder of the model";
        return Err(unsupported(message).at(modules_path));
    }
    let path = folder.join(name).join("config.json");
    let description = &checkpoint.description;
    if description.is_encoder() || description.head.is_some() {
        let message =
            "a module LogitScore of a model that writes no text or has layers after pooling";
        return Err(unsupported(message).at(modules_path));
    }
    if description.output_bias
        || description.logit_scale != 1.0
        || description.logit_soft_cap.is_some()
    {
        let message =
            "a module LogitScore of a model whose logits have a bias, a factor or a soft cap";
        return Err(unsupported(message).at(modules_path));
    }
    let config = json::read(&path)?
        .ok_or_else(|| Error::new(ErrorKind::Missing, "the file is missing").at(&path))?;
    let words = words(&config, description.vocab).map_err(|error| error.at(&path))?;
    let output = &checkpoint.tensor_map.output.weight;
    if output.part.is_some() {
        let message = "a module LogitScore of a model whose output matrix is a part of a tensor";
        return Err(unsupported(message).at(modules_path));
    }
    let row = |word: usize| Run {
        first: word,
        length: 1,
        period: 1,
        count: 1,
    };
    let rows = match words {
        (yes, Some(no)) => [row(yes), row(no)].into(),
        (yes, None) => [row(yes)].into(),
    };
    let compares = words.1.is_some();
    checkpoint.tensor_map.head.push(DenseTensors {
        linear: LinearTensors {
            weight: TensorSlice {
                name: output.name.clone(),
                part: Some(Part::Rows(rows)),
            },
            bias: None,
        },
        norm: None,
    });
    checkpoint.description.head = Some(Head {
        layers: vec![Dense {
            in_features: description.hidden,
            out_features: if compares { 2 } else { 1 },
            bias: false,
            activation: DenseActivation::Identity,
            norm: None,
        }],
        classifier: Some(Classifier {
            pooling: Pooling::Last,
            of_words: true,
            compares,
            ..Classifier::default()
        }),
    });
    checkpoint
        .description
        .check()
        .map_err(|error| error.at(path))
}

/// Returns the token that stands for a match, and that which stands for none, if the score is a difference.
fn words(config: &Value, vocab: usize) -> Result<(usize, Option<usize>)> {
    let malformed = |message: String| Error::new(ErrorKind::Malformed, message);
    let token = |field: &str| {
        let token = config[field]
            .as_u64()
            .and_then(|it| usize::try_from(it).ok());
        token.filter(|token| *token < vocab).ok_or_else(|| {
            malformed(format!(
                "field `{field}` is {}, expected a token below {vocab}",
                config[field]
            ))
        })
    };
    let (yes, no) = ("true_token_id", "false_token_id");
    let input = &config["module_input_name"];
    if !input.is_null() && input != "causal_logits" {
        return Err(malformed(format!(
            "field `module_input_name` is {input}, expected causal_logits"
        )));
    }
    let no = match &config[no] {
        Value::Null => None,
        _ => Some(token(no)?),
    };
    Ok((token(yes)?, no))
}
