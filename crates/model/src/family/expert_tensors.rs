//! The tensors of experts: one for each matrix, or one with those of all experts of a block.

use super::expert_names::Stacking;
use super::tensors::Mapper;
use super::{malformed, missing, unsupported};
use crate::description::{Experts, Linear, LinearShape, Norm};
use crate::error::Result;
use crate::tensor_map::{BranchTensors, LinearTensors, Part, RouterTensors, Run, TensorSlice};

impl Mapper<'_> {
    /// Returns the tensors that choose among experts of a block with this kind of norms.
    pub(super) fn router(
        &mut self,
        prefix: &str,
        experts: &Experts,
        norm: &Norm,
    ) -> Result<RouterTensors> {
        let (names, hidden) = (self.names.experts, self.description.hidden);
        // GGUF drops the dimension of one row.
        let gate_name = format!("{}.weight", names.shared_gate);
        let gate = self.tensors.get(&format!("{prefix}{gate_name}"));
        let gate_shape: &[usize] = match gate {
            Some(gate) if gate.shape.len() == 1 => &[hidden],
            _ => &[1, hidden],
        };
        let correction = self.tensors.get(&format!("{prefix}{}", names.correction));
        let correction_shape: &[usize] = match correction {
            Some(correction) if correction.shape.len() == 2 => &[1, experts.count],
            _ => &[experts.count],
        };
        let mut whole = |name: &str, shape: &[usize]| {
            let name = self.tensor(&format!("{prefix}{name}"), shape)?;
            Ok(TensorSlice::whole(name))
        };
        let [channels, factors, dense_norm, before, after] = names.branch;
        let scales = match experts.branch {
            true => Some([
                whole(channels, &[hidden])?,
                whole(factors, &[experts.count])?,
            ]),
            false => None,
        };
        let mut router = RouterTensors {
            linear: LinearTensors {
                weight: whole(
                    &format!("{}.weight", names.router),
                    &[experts.count, hidden],
                )?,
                bias: match experts.bias {
                    true => Some(whole(&format!("{}.bias", names.router), &[experts.count])?),
                    false => None,
                },
            },
            correction: match experts.correction {
                true => Some(whole(names.correction, correction_shape)?),
                false => None,
            },
            shared_gate: match experts.shared_gate {
                true => Some(whole(&gate_name, gate_shape)?),
                false => None,
            },
            branch: None,
        };
        if let Some([channels, factors]) = scales {
            let mut norm_of = |name: &str| self.norm(&format!("{prefix}{name}"), norm, hidden);
            router.branch = Some(BranchTensors {
                channels,
                factors,
                dense_norm: norm_of(dense_norm)?,
                norm: norm_of(before)?,
                post_norm: norm_of(after)?,
            });
        }
        Ok(router)
    }

    /// Returns the weight of a linear layer of an expert, of which the block has `count`.
    pub(super) fn expert(
        &mut self,
        prefix: &str,
        shape: &LinearShape,
        count: usize,
    ) -> Result<LinearTensors> {
        let names = self.names.experts;
        // One tensor may have gate and up.
        let both = if names.gate == names.up { 2 } else { 1 };
        let (name, expert, parts, part) = match shape.linear {
            Linear::ExpertGate(expert) => (names.gate, expert, both, 0),
            Linear::ExpertUp(expert) => (names.up, expert, both, both - 1),
            Linear::ExpertDown(expert) => (names.down, expert, 1, 0),
            other => unreachable!("{other:?} is no layer of an expert"),
        };
        let (rows, columns, expert) = (shape.out_features, shape.in_features, usize::from(expert));
        let [weight, bias] = names.endings;
        if name.contains('*') {
            if shape.bias {
                return Err(unsupported(
                    "experts with biases in tensors of their own, which Triad does not support",
                ));
            }
            let name = name.replace('*', &expert.to_string());
            let name = self.tensor(&format!("{prefix}{name}{weight}"), &[rows, columns])?;
            let weight = TensorSlice::whole(name);
            return Ok(LinearTensors { weight, bias: None });
        }
        let of_expert = parts * rows;
        let outputs = match names.stacking {
            Stacking::Alternating if parts > 1 => Run {
                first: part,
                length: 1,
                period: parts,
                count: rows,
            },
            _ => Run {
                first: part * rows,
                length: rows,
                period: rows,
                count: 1,
            },
        };
        let weight = format!("{prefix}{name}{weight}");
        let Some(tensor) = self.tensors.get(&weight) else {
            return Err(missing(format!(
                "tensor `{weight}` is missing, expected one with the {count} experts of the block"
            )));
        };
        let in_rows = Part::Rows([outputs.after(expert * of_expert)].into());
        // GGUF drops the dimension of one expert.
        let is_one = count == 1 && tensor.shape.len() == 2 && !names.stacking.is_transposed();
        let (expected, part) = if (self.is_quantized)(&weight) || is_one {
            // Quantized matrices are not transposed, and stand in one.
            (vec![count * of_expert, columns], in_rows)
        } else if names.stacking.is_transposed() {
            let part = Part::Columns {
                rows: expert * columns..(expert + 1) * columns,
                columns: [outputs].into(),
            };
            (vec![count, columns, of_expert], part)
        } else {
            (vec![count, of_expert, columns], in_rows)
        };
        if names.stacking == Stacking::Columns
            && tensor.shape == [count, of_expert, columns]
            && of_expert != columns
        {
            return Err(malformed(format!(
                "tensor `{weight}` has shape {:?}, expected {expected:?}, as it is published",
                tensor.shape
            )));
        }
        let weight = TensorSlice {
            name: self.tensor(&weight, &expected)?,
            part: Some(part),
        };
        let bias = match shape.bias {
            true => Some(TensorSlice {
                name: self.tensor(&format!("{prefix}{name}{bias}"), &[count, of_expert])?,
                part: Some(match parts {
                    // A whole row may be blocks.
                    1 => Part::Rows((expert..expert + 1).into()),
                    _ => Part::Columns {
                        rows: expert..expert + 1,
                        columns: [outputs].into(),
                    },
                }),
            }),
            false => None,
        };
        Ok(LinearTensors { weight, bias })
    }
}
