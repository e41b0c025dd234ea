//! The layers after pooling in both kinds of files: those of classifiers, and dense layers of GGUF.

use std::collections::BTreeMap;

use serde_json::Value;

use super::config::Config;
use super::names::{self, Names};
use super::tensors::{Mapper, root_and_output};
use super::traits::{self, Family};
use super::{malformed, missing, unsupported};
use crate::description::{
    Classifier, Dense, DenseActivation, Head, ModelDescription, Pooling, ScoreActivation, limits,
};
use crate::error::Result;
use crate::gguf::Metadata;
use crate::tensor::TensorInfo;
use crate::tensor_map::{DenseTensors, LinearTensors, TensorSlice};

/// Returns the layers of a classifier, if the tensors of a Hugging Face checkpoint have them.
pub(super) fn head(
    family: &Family,
    description: &ModelDescription,
    config: &Value,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<Option<Head>> {
    // Classifiers of single tokens have tensors of the same names, and language models may have them for other purposes.
    let class = config["architectures"][0].as_str();
    let is_classifier = class.map_or(family.bidirectional, |class| {
        class.ends_with("ForSequenceClassification")
    });
    if !is_classifier {
        return Ok(None);
    }
    let (root, _) = root_and_output(&family.names, tensors);
    let Some(layers) = classifier(family, &family.names, (root, description), tensors)? else {
        return Ok(None);
    };
    let classes = layers.last().map_or(0, |last| last.out_features);
    let classifier = Classifier {
        pooling: classifier_pooling(family, &Config::new(config)?)?,
        labels: labels(config, classes)?,
        activation: score_activation(config, classes)?,
        is_regression: config["problem_type"] == "regression",
        padding: match family.bidirectional {
            true => None,
            false => padding(&Config::new(config)?)?,
        },
        ..Classifier::default()
    };
    Ok(Some(Head {
        layers,
        classifier: Some(classifier),
    }))
}

/// Returns the token after which the classifier of a language model takes no state.
fn padding(config: &Config<'_>) -> Result<Option<u32>> {
    let padding = config.count("pad_token_id")?;
    let to_token = |id: usize| {
        u32::try_from(id).map_err(|_| malformed("config.json: `pad_token_id` is no token"))
    };
    padding.map(to_token).transpose()
}

/// Returns how the hidden states become the input of a classifier.
fn classifier_pooling(family: &Family, config: &Config<'_>) -> Result<Pooling> {
    if !family.bidirectional {
        return Ok(Pooling::Last);
    }
    if inner_activation(family) != DenseActivation::Gelu {
        return Ok(Pooling::First);
    }
    let field = "classifier_activation";
    if let Some(other) = config.string(field)?.filter(|it| *it != "gelu") {
        return Err(unsupported(format!(
            "config.json: `{field}` is `{}`, expected gelu",
            other.chars().take(40).collect::<String>()
        )));
    }
    let field = "classifier_pooling";
    match config.string(field)? {
        None | Some("cls") => Ok(Pooling::First),
        Some("mean") => Ok(Pooling::Mean),
        Some(other) => Err(unsupported(format!(
            "config.json: `{field}` is `{}`, expected cls or mean",
            other.chars().take(40).collect::<String>()
        ))),
    }
}

/// Returns the names that `transformers` gives to classes without one.
fn nameless(classes: usize) -> Vec<String> {
    (0..classes).map(|class| format!("LABEL_{class}")).collect()
}

/// Returns the names of this many classes, if there are several.
fn labels(config: &Value, classes: usize) -> Result<Vec<String>> {
    let field = "id2label";
    let Value::Object(names) = &config[field] else {
        return Ok(nameless(classes));
    };
    if classes == 1 && names.len() != 1 {
        return Ok(nameless(classes));
    }
    let name = |class: usize| match names.get(&class.to_string())? {
        Value::String(name) => Some(name.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let found: Option<Vec<String>> = (0..classes).map(name).collect();
    found.filter(|found| found.len() == names.len()).ok_or_else(|| {
        malformed(format!(
            "config.json: `{field}` has {} entries, expected a name for each of the classes 0 to {}",
            names.len(),
            classes.saturating_sub(1)
        ))
    })
}

/// Returns the function of a classifier's outputs: for one, in the order in which `sentence-transformers` looks for it,
/// and for several as the pipelines of `transformers` choose it.
fn score_activation(config: &Value, classes: usize) -> Result<ScoreActivation> {
    let field = "problem_type";
    let of_several = match Config::new(config)?.string(field)? {
        None | Some("single_label_classification") => ScoreActivation::Softmax,
        Some("multi_label_classification") => ScoreActivation::Sigmoid,
        Some("regression") => ScoreActivation::Identity,
        Some(other) => {
            return Err(unsupported(format!(
                "config.json: `{field}` is `{}`, expected single_label_classification, multi_label_classification or \
                 regression",
                other.chars().take(40).collect::<String>()
            )));
        }
    };
    if classes > 1 {
        return Ok(of_several);
    }
    let fields = [
        (
            "sentence_transformers.activation_fn",
            &config["sentence_transformers"]["activation_fn"],
        ),
        (
            "sbert_ce_default_activation_function",
            &config["sbert_ce_default_activation_function"],
        ),
    ];
    match fields.into_iter().find(|(_, value)| !value.is_null()) {
        Some((field, value)) => torch_activation(&format!("config.json: `{field}`"), value),
        None => Ok(ScoreActivation::default()),
    }
}

/// Returns the function of a classifier's outputs that a field of a file names.
pub(crate) fn torch_activation(place: &str, value: &Value) -> Result<ScoreActivation> {
    let found = ScoreActivation::of_torch(value.as_str().unwrap_or_default());
    found.ok_or_else(|| {
        let value: String = value.to_string().chars().take(80).collect();
        unsupported(format!(
            "{place} is {value}, expected torch.nn.modules.activation.Sigmoid, \
             torch.nn.modules.linear.Identity or torch.nn.modules.activation.Tanh"
        ))
    })
}

/// Returns the layers after pooling of a GGUF file, if it has some.
pub(super) fn gguf_head(
    family: &Family,
    metadata: &Metadata,
    description: &ModelDescription,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<Option<Head>> {
    if !family.bidirectional {
        return gguf_words(family, metadata, tensors);
    }
    let names = &names::GGUF;
    if let Some(layers) = classifier(family, names, ("", description), tensors)? {
        let classes = layers.last().map_or(0, |last| last.out_features);
        let key = format!("{}.classifier.output_labels", description.family);
        let stated = metadata.strings(&key)?.unwrap_or_default();
        let classifier = Classifier {
            pooling: gguf_pooling(family, metadata)?,
            labels: match (classes, stated) {
                (_, []) => nameless(classes),
                (_, stated) => stated.to_vec(),
            },
            activation: match classes {
                1 => ScoreActivation::Sigmoid,
                _ => ScoreActivation::Softmax,
            },
            ..Classifier::default()
        };
        return Ok(Some(Head {
            layers,
            classifier: Some(classifier),
        }));
    }
    let mut layers = Vec::new();
    for layer in names::GGUF.dense {
        if !tensors.contains_key(&format!("{layer}.weight")) {
            continue;
        }
        let key = format!("{}.pooling_type", description.family);
        if family.added.is_some() && !matches!(metadata.integer(&key)?, Some(1..=3)) {
            return Err(unsupported(format!(
                "tensor `{layer}.weight` without a pooling, as of models with a vector for each token, which Triad does \
                 not support: expected 1 to 3 in metadata field `{key}`"
            )));
        }
        let dense = dense(tensors, layer, DenseActivation::Identity)?;
        for (end, width) in [("in", dense.in_features), ("out", dense.out_features)] {
            let key = format!("{}.{layer}_feat_{end}", description.family);
            if let Some(stated) = metadata.integer(&key)?
                && stated != width
            {
                return Err(malformed(format!(
                    "metadata field `{key}` is {stated}, but tensor `{layer}.weight` has {width}"
                )));
            }
        }
        layers.push(dense);
    }
    Ok((!layers.is_empty()).then_some(Head {
        layers,
        classifier: None,
    }))
}

/// Returns how the hidden states become the input of a classifier in GGUF.
fn gguf_pooling(family: &Family, metadata: &Metadata) -> Result<Pooling> {
    let (expected, default) = match inner_activation(family) {
        DenseActivation::Gelu => ("gelu", Pooling::Mean),
        _ => ("tanh", Pooling::First),
    };
    let key = format!("{}.classifier.activation", family.name);
    if let Some(other) = metadata.string(&key)?.filter(|it| *it != expected) {
        return Err(unsupported(format!(
            "metadata field `{key}` is `{}`, expected {expected}",
            other.chars().take(40).collect::<String>()
        )));
    }
    let key = format!("{}.classifier.pooling_type", family.name);
    match metadata.integer(&key)? {
        None => Ok(default),
        Some(1) => Ok(Pooling::Mean),
        Some(2) => Ok(Pooling::First),
        Some(3) => Ok(Pooling::Last),
        Some(other) => Err(unsupported(format!(
            "metadata field `{key}` is {other}, expected 1 to 3"
        ))),
    }
}

/// Returns the rows of the output matrix that score a pair of texts, if a GGUF file has a copy of them: those of yes and
/// no, the first of which llama.cpp's softmax returns.
fn gguf_words(
    family: &Family,
    metadata: &Metadata,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<Option<Head>> {
    /// `pooling_type` of files that rank.
    const RANK: usize = 4;
    let [_, outer] = names::GGUF.classifier;
    let key = format!("{}.pooling_type", family.name);
    // llama.cpp takes the state of the last token in this family alone.
    if family.name != traits::QWEN3.name || metadata.integer(&key)? != Some(RANK) {
        return Ok(None);
    }
    // Files from before llama.cpp had these rows are language models.
    if !tensors.contains_key(&format!("{outer}.weight")) {
        return Ok(None);
    }
    let layer = dense(tensors, outer, DenseActivation::Identity)?;
    let key = format!("{}.classifier.output_labels", family.name);
    let labels = metadata.strings(&key)?.unwrap_or_default();
    let is_right = labels.is_empty() || labels == ["yes", "no"];
    if layer.out_features != 2 || layer.bias || !is_right {
        return Err(unsupported(format!(
            "tensor `{outer}.weight` has {} rows for {} labels in metadata field `{key}`, expected 2 of the words yes and \
             no, without a bias",
            layer.out_features,
            labels.len()
        )));
    }
    let classifier = Classifier {
        pooling: Pooling::Last,
        of_words: true,
        compares: true,
        ..Classifier::default()
    };
    Ok(Some(Head {
        layers: vec![layer],
        classifier: Some(classifier),
    }))
}

/// Returns the function of the inner layer of a classifier: a norm follows ModernBERT's.
fn inner_activation(family: &Family) -> DenseActivation {
    match family.names.classifier_norm {
        "" => DenseActivation::Tanh,
        _ => DenseActivation::Gelu,
    }
}

/// Returns the layers of a classifier, if there is one.
fn classifier(
    family: &Family,
    names: &Names,
    (root, description): (&str, &ModelDescription),
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<Option<Vec<Dense>>> {
    let has = |layer: &str| tensors.contains_key(&format!("{layer}.weight"));
    let [inner, outer] = classifier_names(names, root, tensors);
    // Vectors of BERT have no use for its pooler.
    let is_there = !outer.is_empty() && (has(&outer) || names.inert.is_empty() && has(&inner));
    if !is_there {
        return Ok(None);
    }
    let outer = dense(tensors, &outer, DenseActivation::Identity)?;
    if outer.out_features > limits::CLASSES {
        return Err(malformed(format!(
            "a classifier of {} classes, expected at most {}",
            outer.out_features,
            limits::CLASSES
        )));
    }
    if inner.is_empty() {
        return Ok(Some(vec![outer]));
    }
    let norm = match inner_activation(family) {
        DenseActivation::Gelu => Some(description.output_norm),
        DenseActivation::Tanh | DenseActivation::Identity => None,
    };
    let inner = Dense {
        norm,
        ..dense(tensors, &inner, inner_activation(family))?
    };
    Ok(Some(vec![inner, outer]))
}

/// Returns the names of the two layers of a classifier, of which the inner one may be under the `root` of other tensors.
fn classifier_names(
    names: &Names,
    root: &str,
    tensors: &BTreeMap<String, TensorInfo>,
) -> [String; 2] {
    let [inner, outer] = names.classifier;
    let of_root = format!("{root}{inner}");
    let inner = match tensors.contains_key(&format!("{of_root}.weight")) {
        true if !inner.is_empty() => of_root,
        _ => inner.to_owned(),
    };
    [inner, outer.to_owned()]
}

/// Returns the layer with this name, from the shape of its weight.
pub(crate) fn dense(
    tensors: &BTreeMap<String, TensorInfo>,
    name: &str,
    activation: DenseActivation,
) -> Result<Dense> {
    let weight = format!("{name}.weight");
    let shape = tensors.get(&weight).map(|tensor| &tensor.shape[..]);
    match shape {
        Some(&[out_features, in_features]) => Ok(Dense {
            in_features,
            out_features,
            bias: tensors.contains_key(&format!("{name}.bias")),
            activation,
            norm: None,
        }),
        Some(other) => Err(malformed(format!(
            "tensor `{weight}` has shape {other:?}, expected a matrix"
        ))),
        None => Err(missing(format!(
            "tensor `{weight}` is missing, which the layers after pooling need"
        ))),
    }
}

impl Mapper<'_> {
    pub(super) fn head(&mut self) -> Result<Vec<DenseTensors>> {
        let (names, description) = (self.names, self.description);
        let Some(head) = &description.head else {
            return Ok(Vec::new());
        };
        let tensors = self.tensors;
        let has = |name: &&&str| tensors.contains_key(&format!("{name}.weight"));
        let norm_name = names.classifier_norm;
        let names: Vec<String> = match head.classifier {
            Some(_) => {
                let names = classifier_names(names, self.root, self.tensors);
                let is_there = |name: &String| !name.is_empty();
                let first = names.len() - head.layers.len().min(names.len());
                names.into_iter().skip(first).filter(is_there).collect()
            }
            None => {
                let dense = names.dense.iter().filter(has);
                dense.map(|name| (*name).to_owned()).collect()
            }
        };
        let layers = names.iter().zip(&head.layers);
        let layer = |(name, layer): (&String, &Dense)| {
            let shape = [layer.out_features, layer.in_features];
            let weight = self.tensor(&format!("{name}.weight"), &shape)?;
            let bias = match layer.bias {
                true => Some(self.tensor(&format!("{name}.bias"), &[layer.out_features])?),
                false => None,
            };
            let norm = layer.norm.as_ref();
            let norm = norm.map(|norm| self.norm(norm_name, norm, layer.out_features));
            Ok(DenseTensors {
                linear: LinearTensors {
                    weight: TensorSlice::whole(weight),
                    bias: bias.map(TensorSlice::whole),
                },
                norm: norm.transpose()?,
            })
        };
        layers.map(layer).collect()
    }
}
