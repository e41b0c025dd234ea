//! A fingerprint of a model's weights. It covers all bytes, since a model with a change in any part computes other keys
//! and values.

use triad_kernels::{Blocks, Matrix};

use super::{
    BlockStreams, Embedding, Linear, Norm, TokenInput, TokenInputs, Weight, WeightMatrix, Weights,
};

impl Weights {
    /// Calls `visit` with the bytes of every weight, and with the arithmetic of each.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&[u8])) {
        self.embedding.visit(visit);
        if let Some(TokenInputs {
            table,
            projection,
            norm,
            ..
        }) = &self.token_inputs
        {
            table.visit(visit);
            projection.visit(visit);
            norm.visit(visit);
        }
        if let Some(joined) = &self.joined_input {
            joined.embedding_norm.visit(visit);
            joined.state_norm.visit(visit);
            joined.projection.visit(visit);
        }
        if let Some(streams) = &self.streams {
            streams.matrices().for_each(|matrix| matrix.visit(visit));
        }
        self.encoder.tables().for_each(|table| table.visit(visit));
        self.encoder.head.iter().for_each(|layer| {
            layer.linear.visit(visit);
            layer.norm.iter().for_each(|norm| norm.visit(visit));
        });
        for block in &self.blocks {
            let norms = [
                block.attention_norm.as_ref(),
                block.attention_post_norm.as_ref(),
                block.feed_forward_norm.as_ref(),
                block.feed_forward_post_norm.as_ref(),
                block.query_norm.as_ref(),
                block.key_norm.as_ref(),
            ];
            norms
                .into_iter()
                .flatten()
                .for_each(|norm| norm.visit(visit));
            for values in block.mixer.values() {
                visit(bytemuck::cast_slice(values));
            }
            if let Some(TokenInput { gate, output, norm }) = &block.token_input {
                gate.visit(visit);
                output.visit(visit);
                norm.visit(visit);
            }
            if let Some(streams) = &block.streams {
                streams.visit(visit);
            }
            if let Some(scale) = &block.scale {
                visit(&scale.to_le_bytes());
            }
            visit(format!("{:?}", block.inputs).as_bytes());
            if let Some(router) = &block.router {
                // A package has it in f32, whatever the file of the model has.
                visit(bytemuck::cast_slice(&router.weight.to_f32()));
                let vectors = [&router.bias, &router.correction, &router.shared_gate];
                for values in vectors.into_iter().flatten() {
                    visit(bytemuck::cast_slice(values));
                }
                if let Some(branch) = &router.branch {
                    branch.norms().iter().for_each(|norm| norm.visit(visit));
                    visit(bytemuck::cast_slice(&branch.factors));
                }
            }
            block
                .linears
                .values()
                .for_each(|linear| linear.visit(visit));
        }
        self.output_norm.visit(visit);
        self.output.visit(visit);
    }
}

impl BlockStreams {
    fn visit(&self, visit: &mut dyn FnMut(&[u8])) {
        for matrix in self.matrices() {
            matrix.visit(visit);
        }
        let vectors = [
            Some(&self.prediction),
            Some(&self.correction),
            self.scale.as_ref(),
        ];
        for values in vectors.into_iter().flatten() {
            visit(bytemuck::cast_slice(values));
        }
        self.router_norm.visit(visit);
        self.norm.visit(visit);
    }
}

impl Embedding {
    fn visit(&self, visit: &mut dyn FnMut(&[u8])) {
        match self {
            Self::Stored { bytes, format, .. } => {
                visit(format!("{format:?}").as_bytes());
                visit(bytes);
            }
            Self::Output => {}
            Self::Matrix(matrix) => matrix.visit(visit),
        }
    }
}

impl Norm {
    fn visit(&self, visit: &mut dyn FnMut(&[u8])) {
        visit(bytemuck::cast_slice(&self.weight));
        self.bias
            .iter()
            .for_each(|bias| visit(bytemuck::cast_slice(bias)));
    }
}

impl Linear {
    fn visit(&self, visit: &mut dyn FnMut(&[u8])) {
        match &self.weight {
            Weight::Float(matrix) => matrix.visit(visit),
            Weight::Int8(matrix) => {
                let view = matrix.view();
                visit(bytemuck::cast_slice(view.scales));
                visit(bytemuck::cast_slice(view.packed));
            }
        }
        self.decode_weight
            .iter()
            .for_each(|matrix| matrix.visit(visit));
        self.bias
            .iter()
            .for_each(|bias| visit(bytemuck::cast_slice(bias)));
    }
}

impl WeightMatrix {
    fn visit(&self, visit: &mut dyn FnMut(&[u8])) {
        match self.view() {
            Matrix::F32(values) => visit(bytemuck::cast_slice(values)),
            Matrix::F16(values) => visit(bytemuck::cast_slice(values)),
            Matrix::Bf16(values) => visit(bytemuck::cast_slice(values)),
            Matrix::Int8 { values, scales } => {
                visit(bytemuck::cast_slice(values));
                visit(bytemuck::cast_slice(scales));
            }
            Matrix::Int4 { values, scales } => {
                visit(values);
                visit(bytemuck::cast_slice(scales));
            }
            Matrix::Blocks(Blocks {
                format,
                bytes,
                arithmetic,
            }) => {
                visit(format!("{format} {arithmetic:?}").as_bytes());
                visit(bytes);
            }
        }
    }
}
