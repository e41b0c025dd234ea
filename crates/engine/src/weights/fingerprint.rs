//! A fingerprint that distinguishes one model's weights from another's without reading all of them.

use super::{Linear, Norm, Weight, WeightMatrix, Weights};

/// Bytes of an INT8 matrix that are taken at each of some places.
const BYTES: usize = 4096;

impl Weights {
    /// Calls `visit` with a part of every weight: all norms, biases, scales and quantizations, and some rows of matrices.
    pub(crate) fn sample(&self, visit: &mut dyn FnMut(&[u8])) {
        for block in &self.blocks {
            let norms = [
                Some(&block.attention_norm),
                block.attention_post_norm.as_ref(),
                block.feed_forward_norm.as_ref(),
                block.feed_forward_post_norm.as_ref(),
                block.query_norm.as_ref(),
                block.key_norm.as_ref(),
            ];
            norms.into_iter().flatten().for_each(|norm| norm.sample(visit));
            visit(format!("{:?}", block.inputs).as_bytes());
            block.linears.values().for_each(|linear| linear.sample(visit));
        }
        self.output_norm.sample(visit);
        self.output.sample(visit);
    }
}

impl Norm {
    fn sample(&self, visit: &mut dyn FnMut(&[u8])) {
        visit(bytemuck::cast_slice(&self.weight));
        self.bias.iter().for_each(|bias| visit(bytemuck::cast_slice(bias)));
    }
}

impl Linear {
    fn sample(&self, visit: &mut dyn FnMut(&[u8])) {
        match &self.weight {
            Weight::Float(matrix) => matrix.sample(visit),
            Weight::Int8(matrix) => {
                let view = matrix.view();
                visit(bytemuck::cast_slice(view.scales));
                let packed: &[u8] = bytemuck::cast_slice(view.packed);
                let most = packed.len().saturating_sub(BYTES);
                [0, most / 2, most].into_iter().for_each(|at| visit(&packed[at..packed.len().min(at + BYTES)]));
            }
        }
        self.decode_weight.iter().for_each(|matrix| matrix.sample(visit));
        self.bias.iter().for_each(|bias| visit(bytemuck::cast_slice(bias)));
    }
}

impl WeightMatrix {
    fn sample(&self, visit: &mut dyn FnMut(&[u8])) {
        let mut row = vec![0.0f32; self.in_features()];
        let last = self.out_features().saturating_sub(1);
        for index in [0, last / 2, last] {
            self.view().widen_row(index, &mut row);
            visit(bytemuck::cast_slice(&row));
        }
    }
}
