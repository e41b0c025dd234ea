//! The parts of encoders in both kinds of files: learned embeddings, and the layers after pooling.

use std::collections::BTreeMap;

use serde_json::Value;

use super::config::Config;
use super::gguf::Reader;
use super::kinds::{AddedTraits, FirstPosition};
use super::names::{self, Names};
use super::tensors::{Mapper, root_and_output};
use super::traits::Family;
use super::{malformed, missing, unsupported};
use crate::description::{
    AddedInputs, Dense, Head, ModelDescription, Positions, ScoreActivation, limits,
};
use crate::error::Result;
use crate::gguf::Metadata;
use crate::tensor::TensorInfo;
use crate::tensor_map::{AddedInputsTensors, LinearTensors, TensorSlice};

/// Refuses fields of a `config.json` that make an encoder compute something else.
pub(super) fn refuse(family: &Family, config: &Config<'_>) -> Result<()> {
    if family.added.is_none() {
        return Ok(());
    }
    config.refuse(&["is_decoder", "add_cross_attention"])?;
    let field = "position_embedding_type";
    match config.string(field)? {
        None | Some("absolute") => Ok(()),
        Some(other) => Err(unsupported(format!(
            "config.json: `{field}` is `{}`, expected absolute",
            other.chars().take(40).collect::<String>()
        ))),
    }
}

/// Refuses another reach of attention than the family's. `transformers` treats null as false; only its version 5 reads
/// the field in encoders.
pub(super) fn refuse_bidirectional(family: &Family, config: &Config<'_>) -> Result<()> {
    let field = "is_causal";
    if family.bidirectional {
        return config.refuse(&[field]);
    }
    if config.has(field) && config.bool(field)? != Some(true) {
        return Err(unsupported(format!(
            "config.json sets `{field}` to other than true, which Triad does not support"
        )));
    }
    Ok(())
}

/// Returns the learned embeddings of a model with this many rows of positions, and its context.
pub(super) fn inputs(
    family: &Family,
    config: &Config<'_>,
    rows: usize,
) -> Result<(AddedInputs, usize)> {
    let Some(AddedTraits {
        positions,
        token_types,
    }) = family.added
    else {
        return Ok((AddedInputs::default(), rows));
    };
    let (first, padding) = match positions {
        Some(FirstPosition::AfterPadding(default)) => {
            let padding = config.count("pad_token_id")?.map_or(Ok(default), |id| {
                let id = u32::try_from(id).ok().filter(|id| (*id as usize) < rows);
                id.ok_or_else(|| {
                    malformed(format!(
                        "config.json: `pad_token_id` is not below `max_position_embeddings`, which is {rows}"
                    ))
                })
            })?;
            (padding as usize + 1, Some(padding))
        }
        Some(FirstPosition::Zero) | None => (0, None),
    };
    if first >= rows {
        return Err(malformed(format!(
            "config.json: `max_position_embeddings` is {rows}, expected more than {first}"
        )));
    }
    let positions = positions.map(|_| Positions {
        rows,
        first,
        padding,
    });
    let types = config.size("type_vocab_size", limits::VOCAB)?;
    let inputs = AddedInputs {
        positions,
        token_types: types.unwrap_or(token_types),
    };
    Ok((inputs, rows - first))
}

/// Returns the layers of a classifier of pairs of texts, if the tensors of a Hugging Face checkpoint have them.
pub(super) fn head(
    family: &Family,
    config: &Value,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<Option<Head>> {
    let (root, _) = root_and_output(&family.names, tensors);
    let Some(mut head) = classifier(&family.names, root, tensors)? else {
        return Ok(None);
    };
    head.activation = score_activation(config)?;
    Ok(Some(head))
}

/// Returns the function of a classifier's output, in the order in which `sentence-transformers` looks for it.
fn score_activation(config: &Value) -> Result<ScoreActivation> {
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
    let Some((field, value)) = fields.into_iter().find(|(_, value)| !value.is_null()) else {
        return Ok(ScoreActivation::default());
    };
    match value.as_str().unwrap_or_default() {
        "torch.nn.modules.activation.Sigmoid" => Ok(ScoreActivation::Sigmoid),
        "torch.nn.modules.linear.Identity" => Ok(ScoreActivation::Identity),
        "torch.nn.modules.activation.Tanh" => Ok(ScoreActivation::Tanh),
        _ => {
            let value: String = value.to_string().chars().take(80).collect();
            Err(unsupported(format!(
                "config.json: `{field}` is {value}, expected torch.nn.modules.activation.Sigmoid, \
                 torch.nn.modules.linear.Identity or torch.nn.modules.activation.Tanh"
            )))
        }
    }
}

/// Returns the layers after pooling of a GGUF file, if it has some.
pub(super) fn gguf_head(
    metadata: &Metadata,
    description: &ModelDescription,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<Option<Head>> {
    if !description.is_encoder() {
        return Ok(None);
    }
    if let Some(head) = classifier(&names::GGUF, "", tensors)? {
        return Ok(Some(head));
    }
    let mut layers = Vec::new();
    for layer in names::GGUF.dense {
        if !tensors.contains_key(&format!("{layer}.weight")) {
            continue;
        }
        let dense = dense(tensors, layer, false)?;
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
        scores: false,
        activation: ScoreActivation::default(),
    }))
}

/// Returns the two layers of a classifier, if there is one.
fn classifier(
    names: &Names,
    root: &str,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<Option<Head>> {
    let has = |layer: &str| tensors.contains_key(&format!("{layer}.weight"));
    let [inner, outer] = classifier_names(names, root, tensors);
    // Vectors of BERT have no use for its pooler.
    let is_there = !outer.is_empty() && (has(&outer) || names.inert.is_empty() && has(&inner));
    if !is_there {
        return Ok(None);
    }
    let layers = vec![
        dense(tensors, &inner, true)?,
        dense(tensors, &outer, false)?,
    ];
    Ok(Some(Head {
        layers,
        scores: true,
        activation: ScoreActivation::default(),
    }))
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
        true => of_root,
        false => inner.to_owned(),
    };
    [inner, outer.to_owned()]
}

/// Returns the layer with this name, from the shape of its weight.
pub(crate) fn dense(
    tensors: &BTreeMap<String, TensorInfo>,
    name: &str,
    tanh: bool,
) -> Result<Dense> {
    let weight = format!("{name}.weight");
    let shape = tensors.get(&weight).map(|tensor| &tensor.shape[..]);
    match shape {
        Some(&[out_features, in_features]) => Ok(Dense {
            in_features,
            out_features,
            bias: tensors.contains_key(&format!("{name}.bias")),
            tanh,
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
    /// Returns the name of the norm before the attention of a block whose norms replace the residual stream: that after
    /// the block before, or of the embedding.
    pub(super) fn replacing_norm_name(&self, index: usize) -> String {
        let (root, names) = (self.root, self.names);
        match index.checked_sub(1) {
            None => format!("{root}{}", names.embedding_norm),
            Some(before) => {
                format!(
                    "{root}{}{before}.{}",
                    names.block, names.feed_forward_post_norm
                )
            }
        }
    }

    /// Returns the name of the norm after the last block.
    pub(super) fn output_norm_name(&self) -> String {
        let blocks = &self.description.blocks;
        match blocks.last().map(|last| last.residual) {
            Some(residual) if residual.replaces() => self.replacing_norm_name(blocks.len()),
            _ => format!("{}{}", self.root, self.names.output_norm),
        }
    }

    pub(super) fn added_inputs(&mut self) -> Result<AddedInputsTensors> {
        let AddedInputs {
            positions,
            token_types,
        } = self.description.added_inputs;
        let (hidden, names, root) = (self.description.hidden, self.names, self.root);
        let mut table = |name: &str, rows: usize| match rows {
            0 => Ok(None),
            rows => {
                let name = self.tensor(&format!("{root}{name}.weight"), &[rows, hidden])?;
                Ok(Some(TensorSlice::whole(name)))
            }
        };
        Ok(AddedInputsTensors {
            positions: table(names.positions, positions.map_or(0, |it| it.rows))?,
            token_types: table(names.token_types, token_types)?,
        })
    }

    pub(super) fn head(&mut self) -> Result<Vec<LinearTensors>> {
        let (names, description) = (self.names, self.description);
        let Some(head) = &description.head else {
            return Ok(Vec::new());
        };
        let tensors = self.tensors;
        let has = |name: &&&str| tensors.contains_key(&format!("{name}.weight"));
        let names: Vec<String> = match head.scores {
            true => classifier_names(names, self.root, self.tensors).into(),
            false => {
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
            Ok(LinearTensors {
                weight: TensorSlice::whole(weight),
                bias: bias.map(TensorSlice::whole),
            })
        };
        layers.map(layer).collect()
    }
}

impl Reader<'_> {
    /// Checks that attention reads the positions that the family's does.
    pub(super) fn check_causal(&self) -> Result<()> {
        let key = self.key("attention.causal");
        let is_causal = self.metadata.bool(&key)?;
        let expected = match (self.family.bidirectional, is_causal) {
            (false, Some(false)) => "which Triad does not support",
            // llama.cpp reads no field for EmbeddingGemma, and has an order of tokens in the others without it.
            (true, None | Some(true)) if self.family.added.is_some() => "expected false",
            _ => return Ok(()),
        };
        let is_causal = is_causal.map_or("missing".to_owned(), |it| it.to_string());
        Err(unsupported(format!(
            "metadata field `{key}` is {is_causal}, {expected}"
        )))
    }

    /// Returns the learned embeddings, whose tables are as large as their tensors.
    pub(super) fn added_inputs(&self) -> Result<AddedInputs> {
        let Some(AddedTraits { positions, .. }) = self.family.added else {
            return Ok(AddedInputs::default());
        };
        let rows = |name: &str| {
            let weight = format!("{name}.weight");
            let rows = self.tensors.get(&weight).map(|it| it.shape.first());
            rows.map(|rows| rows.copied().unwrap_or(0))
        };
        let positions = match (positions, rows(names::GGUF.positions)) {
            (None, _) => None,
            (Some(_), Some(rows)) => Some(Positions {
                rows,
                first: 0,
                padding: None,
            }),
            (Some(_), None) => {
                return Err(missing(format!(
                    "tensor `{}.weight` is missing",
                    names::GGUF.positions
                )));
            }
        };
        Ok(AddedInputs {
            positions,
            token_types: rows(names::GGUF.token_types).unwrap_or(0),
        })
    }
}
