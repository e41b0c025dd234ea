//! The parts of encoders in both kinds of files: what they refuse, learned embeddings, and norms.

use super::config::Config;
use super::gguf::Reader;
use super::kinds::{AddedTraits, FirstPosition};
use super::names;
use super::tensors::Mapper;
use super::traits::Family;
use super::{malformed, missing, unsupported};
use crate::description::{AddedInputs, NormKind, Positions, limits};
use crate::error::Result;
use crate::tensor_map::{AddedInputsTensors, TensorSlice};

/// Refuses fields of a `config.json` that make an encoder compute something else.
pub(super) fn refuse(family: &Family, config: &Config<'_>) -> Result<()> {
    if family.added.is_none() {
        return Ok(());
    }
    config.refuse(&["is_decoder", "add_cross_attention"])?;
    if family.norm == NormKind::Centered {
        // Versions of `transformers` differ in the blocks that `rope_scaling` changes.
        config.refuse(&["norm_bias", "rope_scaling"])?;
        // Version 5 takes twice this number in place of `local_attention`.
        let half = config.size("sliding_window", limits::CONTEXT)?;
        if half.is_some_and(|half| config.raw("local_attention") != Some(&(2 * half).into())) {
            return Err(unsupported(
                "config.json: `sliding_window` is other than half of `local_attention`, which Triad does not support",
            ));
        }
        for field in family.rope_fields {
            // Version 4 takes null for the other base.
            if config.has(field) {
                config.required(field, config.raw(field))?;
            }
        }
    }
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
