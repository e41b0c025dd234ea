//! The tensors of mixers: weights of their operators, and layers whose rows take turns in one tensor.

use std::collections::BTreeMap;

use super::tensors::Mapper;
use crate::description::{BlockDescription, Linear, Mixer, MixerWeight};
use crate::error::Result;
use crate::tensor_map::{MixerTensor, RowsOfHeads, Run, Runs, StoredAs};

impl Mapper<'_> {
    /// Returns the weights of the mixer's operator.
    pub(super) fn mixer(
        &mut self,
        prefix: &str,
        block: &BlockDescription,
    ) -> Result<BTreeMap<MixerWeight, MixerTensor>> {
        let weights = block.mixer.weights().into_iter();
        let found = weights.map(|(weight, shape)| {
            let names = self.names;
            let itself = |name: &str| (name.to_owned(), StoredAs::Itself);
            let (name, stored) = match weight {
                MixerWeight::Convolution => (
                    format!("{}.weight", names.convolution),
                    StoredAs::Transposed,
                ),
                MixerWeight::ConvolutionBias => itself(&format!("{}.bias", names.convolution)),
                MixerWeight::Sinks => itself(names.sinks),
                MixerWeight::Decay => (names.decay.0.to_owned(), names.decay.1),
                MixerWeight::DecayBias => itself(names.decay_bias),
                MixerWeight::HeadNorm => itself(names.head_norm),
                MixerWeight::Skip => itself(names.skip),
                MixerWeight::LatentQuery => itself(names.latent.queries),
                MixerWeight::LatentKey | MixerWeight::LatentValue => {
                    return self.latent(prefix, block, weight, &shape);
                }
            };
            let name = format!("{prefix}{name}");
            // A depthwise convolution has one input channel for each output channel, which GGUF leaves out.
            let shape = match (stored, &shape[..]) {
                (StoredAs::Transposed, [taps, channels]) => match self.tensors.get(&name) {
                    Some(tensor) if tensor.shape.len() == 3 => vec![*channels, 1, *taps],
                    _ => vec![*channels, *taps],
                },
                _ => self.vector_shape(&name, shape, &block.mixer),
            };
            let name = self.tensor(&name, &shape)?;
            Ok((weight, MixerTensor { name, stored }))
        });
        found.collect()
    }

    /// Returns the matrices of keys or values from latent vectors, which are in one tensor or in two.
    fn latent(
        &mut self,
        prefix: &str,
        block: &BlockDescription,
        weight: MixerWeight,
        shape: &[usize],
    ) -> Result<(MixerWeight, MixerTensor)> {
        let names = self.names.latent;
        let [keys, values] = names.apart.map(|name| format!("{prefix}{name}"));
        let is_key = weight == MixerWeight::LatentKey;
        let apart = if is_key { keys } else { values };
        if self.tensors.contains_key(&apart) {
            let (name, stored) = (self.tensor(&apart, shape)?, StoredAs::Itself);
            return Ok((weight, MixerTensor { name, stored }));
        }
        let attention = block.attention();
        let latent = attention.and_then(|it| Some((it.heads, it.latent()?)));
        let (heads, latent) = latent.expect("weights of latent vectors");
        let of_head = latent.key_dim + latent.value_dim;
        let both = format!("{prefix}{}", names.both);
        let name = self.tensor(&both, &[heads * of_head, latent.width])?;
        let stored = StoredAs::RowsOfHeads(RowsOfHeads {
            of_head,
            first: if is_key { 0 } else { latent.key_dim },
            transposed: is_key,
        });
        Ok((weight, MixerTensor { name, stored }))
    }

    /// Returns the shape of a vector in the file: GGUF has one row for each head, or for each part of a norm.
    fn vector_shape(&self, name: &str, shape: Vec<usize>, mixer: &Mixer) -> Vec<usize> {
        let (Mixer::Mamba2(mamba), [length]) = (mixer, &shape[..]) else {
            return shape;
        };
        let in_rows = [[*length, 1], [mamba.groups, length / mamba.groups]];
        let stored = self.tensors.get(name).map(|tensor| &tensor.shape[..]);
        let found = in_rows.iter().find(|it| stored == Some(&it[..]));
        found.map_or(shape, |found| found.to_vec())
    }

    /// Returns the rows of a DeltaNet's input layer in a tensor that has the parts of each key head next to each other;
    /// `None` if the file has none for this layer.
    pub(super) fn by_key_head(&self, block: &BlockDescription, linear: Linear) -> Option<Runs> {
        let Mixer::DeltaNet(net) = &block.mixer else {
            return None;
        };
        let of_all = |length: usize, first: usize, period: usize| Run {
            first,
            length,
            period,
            count: net.key_heads,
        };
        let names = self.names;
        let shared = net.value_heads / net.key_heads;
        let (keys, values) = (net.key_dim, shared * net.value_dim);
        let period = 2 * (keys + values);
        match linear {
            Linear::MixerInput if names.mixer_input == names.mixer_gate => Some(Runs::from([
                of_all(keys, 0, period),
                of_all(keys, keys, period),
                of_all(values, 2 * keys, period),
            ])),
            Linear::MixerGate if names.mixer_input == names.mixer_gate => {
                Some([of_all(values, 2 * keys + values, period)].into())
            }
            Linear::MixerRate if names.mixer_rate == names.mixer_decay => {
                Some([of_all(shared, 0, 2 * shared)].into())
            }
            Linear::MixerDecay if names.mixer_rate == names.mixer_decay => {
                Some([of_all(shared, shared, 2 * shared)].into())
            }
            _ => None,
        }
    }
}
