//! Creates weights from the tensors of a package: matrices stay in the file's bytes; the other tensors are small and
//! are copied.

use triad_kernels::BlockArithmetic;
use triad_model::Result;
use triad_model::description::{BlockDescription, Experts, Linear as LinearName, LinearShape};
use triad_model::safetensors::Element;
use triad_model::tensor::{BlockFormat, Format};

use super::tensor_file::changed;
use super::tensors::{
    EMBEDDING, MTP, MTP_NORMS, MTP_PROJECTION, NormPlace, OUTPUT, OUTPUT_NORM, OutputFormat,
    TOKEN_NORM, TOKEN_PROJECTION, TOKEN_TABLE, TokenInputFormats, linear_name, malformed,
    mixer_name, norm_name, router_name, scale_name, token_input_names,
};
use super::{Package, StreamNames, WEIGHTS};
use crate::linear_input::Inputs;
use crate::quantization::{InputQuantization, LinearFormat, WeightBits};
use crate::weights::{
    Block, BlockStreams, Embedding, EncoderWeights, JoinedInput, Linear, Norm, Router, RouterPart,
    Streams, TokenInput, TokenInputs, Weight, WeightMatrix, Weights,
};

impl Package {
    /// Returns the weights. Quantized blocks are multiplied with this `arithmetic`.
    ///
    /// # Errors
    /// If a scale is not a positive number, or a sum is impossible.
    pub(crate) fn weights(&self, arithmetic: BlockArithmetic) -> Result<Weights> {
        self.all_weights(arithmetic)
            .map_err(|error| error.at(self.path.join(WEIGHTS)))
    }

    fn all_weights(&self, arithmetic: BlockArithmetic) -> Result<Weights> {
        let model = &self.manifest.model;
        if model.is_encoder() || model.head.is_some() {
            return Err(malformed(
                "a package of an encoder or of a model with layers after pooling, expected another model".into(),
            ));
        }
        let formats = &self.formats;
        let mut inputs = self
            .manifest
            .preparation
            .quantization()
            .map(|plan| plan.blocks.into_iter());
        let mut inputs_of_next = || inputs.as_mut().and_then(Iterator::next);
        let blocks = model.blocks.iter().enumerate();
        let formats_of_inputs = formats.token_inputs.as_ref();
        let block = |(index, block)| {
            let inputs = inputs_of_next();
            Ok(Block {
                token_input: formats_of_inputs
                    .map(|formats| self.token_input(index, formats))
                    .transpose()?,
                streams: self.block_streams(index, formats_of_inputs)?,
                ..self.block(("", index), block, inputs, arithmetic)?
            })
        };
        Ok(Weights {
            blocks: blocks.map(block).collect::<Result<_>>()?,
            output_norm: self.weights.norm(OUTPUT_NORM, &model.output_norm)?,
            output: self.output(formats.output, arithmetic)?,
            embedding: self.rows(EMBEDDING, model.vocab, formats.embedding)?,
            token_inputs: formats_of_inputs
                .map(|formats| self.token_inputs(formats))
                .transpose()?,
            streams: self.streams(formats_of_inputs)?,
            joined_input: None,
            // Models with layers after pooling, and encoders, are not prepared.
            encoder: EncoderWeights::default(),
            expert_memory: None,
        })
    }

    /// Returns the head that predicts one more token, if the package has one, whose model has the weights `model`.
    ///
    /// # Errors
    /// As [`Package::weights`].
    pub(crate) fn mtp(&self, model: &Weights) -> Result<Option<Weights>> {
        let at = |error: triad_model::Error| error.at(self.path.join(WEIGHTS));
        let Some(mtp) = &self.manifest.model.mtp else {
            return Ok(None);
        };
        let [embedding_norm, state_norm, output_norm] =
            MTP_NORMS.map(|name| self.weights.norm(name, &mtp.norm).map_err(at));
        let hidden = self.manifest.model.hidden;
        let joined_input = JoinedInput {
            embedding_norm: embedding_norm?,
            state_norm: state_norm?,
            projection: self
                .rowwise(MTP_PROJECTION, (hidden, 2 * hidden))
                .map_err(at)?,
        };
        // Its layers have eight bits.
        let arithmetic = BlockArithmetic::default();
        let block = self.block((MTP, 0), &mtp.block, None, arithmetic);
        let block = block.map_err(at)?;
        let head = Weights::of_head(model, block, output_norm?, joined_input);
        Ok(Some(head))
    }

    /// Returns a matrix of INT8 numbers with a scale for each row.
    fn rowwise(&self, name: &str, (rows, columns): (usize, usize)) -> Result<WeightMatrix> {
        let values = self.weights.bytes_of(&format!("{name}.weight"))?;
        let scales = self.weights.scales(&format!("{name}.scales"))?;
        let matrix = WeightMatrix::mapped_int8(rows, columns, values, scales);
        matrix.ok_or_else(|| changed(name))
    }

    /// Returns a matrix of which single rows are used.
    fn rows(&self, name: &str, rows: usize, format: Format) -> Result<Embedding> {
        let bytes = self.weights.bytes_of(name)?;
        Ok(Embedding::Stored {
            row_bytes: bytes.len() / rows,
            bytes,
            format,
        })
    }

    fn token_inputs(&self, formats: &TokenInputFormats) -> Result<TokenInputs> {
        let model = &self.manifest.model;
        let described = model.token_inputs.ok_or_else(|| changed(TOKEN_TABLE))?;
        let all = model.blocks.len() * described.width;
        let rows = described.table_rows(model.vocab);
        Ok(TokenInputs {
            table: self.rows(TOKEN_TABLE, rows, formats.table)?,
            rows,
            projection: self.weights.float(
                TOKEN_PROJECTION,
                (all, model.hidden),
                formats.matrices,
            )?,
            norm: self.weights.norm(TOKEN_NORM, &described.norm)?,
        })
    }

    fn token_input(&self, index: usize, formats: &TokenInputFormats) -> Result<TokenInput> {
        let model = &self.manifest.model;
        let described = model.token_inputs.ok_or_else(|| changed(TOKEN_TABLE))?;
        let (width, hidden) = (described.width, model.hidden);
        let [gate, output, norm] = token_input_names(index);
        Ok(TokenInput {
            gate: self
                .weights
                .float(&gate, (width, hidden), formats.matrices)?,
            output: self
                .weights
                .float(&output, (hidden, width), formats.matrices)?,
            norm: self.weights.norm(&norm, &described.norm)?,
        })
    }

    fn streams(&self, formats: Option<&TokenInputFormats>) -> Result<Option<Streams>> {
        let (Some(described), Some(formats)) = (self.manifest.model.streams, formats) else {
            return Ok(None);
        };
        let hidden = self.manifest.model.hidden;
        let [projections, outputs] = StreamNames::shared(described.count).map(|names| {
            let matrices = names.iter();
            let matrices =
                matrices.map(|name| self.weights.float(name, (hidden, hidden), formats.matrices));
            matrices.collect::<Result<Vec<_>>>()
        });
        Ok(Some(Streams {
            projections: projections?,
            outputs: outputs?,
        }))
    }

    fn block_streams(
        &self,
        index: usize,
        formats: Option<&TokenInputFormats>,
    ) -> Result<Option<BlockStreams>> {
        let model = &self.manifest.model;
        let (Some(described), Some(formats)) = (model.streams, formats) else {
            return Ok(None);
        };
        let (hidden, names) = (model.hidden, StreamNames::of_block(index));
        let norm = &model.blocks[index].norm;
        let [router, left, right] = &names.matrices;
        let float =
            |name, rows, columns| self.weights.float(name, (rows, columns), formats.matrices);
        let scale = described.scaled.then(|| self.weights.floats(&names.scale));
        Ok(Some(BlockStreams {
            router_norm: self.weights.norm(&names.router_norm, norm)?,
            router: float(router, described.count, hidden)?,
            prediction: self.weights.floats(&names.prediction)?,
            correction: self.weights.floats(&names.correction)?,
            scale: scale.transpose()?,
            left: float(left, described.rank, hidden)?,
            right: float(right, hidden, described.rank)?,
            norm: self.weights.norm(&names.norm, norm)?,
        }))
    }

    fn block(
        &self,
        (prefix, index): (&str, usize),
        block: &BlockDescription,
        inputs: Option<Inputs<InputQuantization>>,
        arithmetic: BlockArithmetic,
    ) -> Result<Block> {
        let hidden = self.manifest.model.hidden;
        let named = |name: String| format!("{prefix}{name}");
        let norm = |place: NormPlace| {
            let described = place.described(block, hidden);
            described
                .map(|(norm, _)| self.weights.norm(&named(norm_name(index, place)), &norm))
                .transpose()
        };
        let linear = |shape: LinearShape| -> Result<(LinearName, Linear)> {
            let name = named(linear_name(index, shape.linear));
            Ok((shape.linear, self.linear(index, &name, &shape, arithmetic)?))
        };
        Ok(Block {
            attention_norm: norm(NormPlace::Attention)?,
            attention_post_norm: norm(NormPlace::AttentionPost)?,
            feed_forward_norm: norm(NormPlace::FeedForward)?,
            feed_forward_post_norm: norm(NormPlace::FeedForwardPost)?,
            query_norm: norm(NormPlace::Query)?,
            key_norm: norm(NormPlace::Key)?,
            value_norm: Norm::of_values(block),
            inputs,
            router: match &block.feed_forward.experts {
                Some(experts) => Some(self.router((prefix, index), experts)?),
                None => None,
            },
            token_input: None,
            streams: None,
            scale: match block.scaled {
                true => {
                    let scale = self.weights.floats(&named(scale_name(index)))?;
                    scale.first().copied()
                }
                false => None,
            },
            linears: block
                .linears(hidden)
                .into_iter()
                .map(linear)
                .collect::<Result<_>>()?,
            mixer: block
                .mixer
                .weights()
                .into_iter()
                .map(|(weight, _)| {
                    let name = named(mixer_name(index, weight));
                    Ok((weight, self.weights.floats(&name)?))
                })
                .collect::<Result<_>>()?,
        })
    }

    fn router(&self, (prefix, index): (&str, usize), experts: &Experts) -> Result<Router> {
        let named = |part| format!("{prefix}{}", router_name(index, part));
        let vector = |part: RouterPart, exists: bool| {
            let name = named(part);
            exists.then(|| self.weights.floats(&name)).transpose()
        };
        let name = named(RouterPart::Weight);
        let (hidden, values) = (self.manifest.model.hidden, self.weights.bytes_of(&name)?);
        let weight = WeightMatrix::mapped_float(experts.count, hidden, Element::F32, values);
        Ok(Router {
            experts: *experts,
            weight: weight.ok_or_else(|| changed(&name))?,
            bias: vector(RouterPart::Bias, experts.bias)?,
            correction: vector(RouterPart::Correction, experts.correction)?,
            shared_gate: vector(RouterPart::SharedGate, experts.shared_gate)?,
            // Packages have none of these.
            branch: None,
        })
    }

    fn linear(
        &self,
        block: usize,
        name: &str,
        shape: &LinearShape,
        arithmetic: BlockArithmetic,
    ) -> Result<Linear> {
        let shape_of = (shape.out_features, shape.in_features);
        let (weight, decode_weight) = match self.manifest.preparation.options.plan.linears {
            _ if name.starts_with(MTP) => (Weight::Float(self.rowwise(name, shape_of)?), None),
            LinearFormat::W8a8 => {
                let decode = self.manifest.preparation.options.plan.decode_weights;
                self.weights.int8(name, shape, decode)?
            }
            LinearFormat::W4a16 => {
                let size = (shape.out_features, shape.in_features);
                let matrix = match self.formats.bits_of(block, shape)? {
                    Some(bits) => self.integers(name, size, bits, arithmetic)?,
                    None => self
                        .weights
                        .float(&format!("{name}.weight"), size, Element::F32)?,
                };
                (Weight::Float(matrix), None)
            }
        };
        let bias = shape
            .bias
            .then(|| self.weights.floats(&format!("{name}.bias")))
            .transpose()?;
        Ok(Linear {
            weight,
            decode_weight,
            bias,
        })
    }

    /// Returns a matrix of integers that is multiplied with float activations.
    fn integers(
        &self,
        name: &str,
        (rows, columns): (usize, usize),
        bits: WeightBits,
        arithmetic: BlockArithmetic,
    ) -> Result<WeightMatrix> {
        let values = self.weights.bytes_of(&format!("{name}.weight"))?;
        let scales = format!("{name}.scales");
        let matrix = match bits {
            WeightBits::Four => {
                let scales = self.weights.bytes_of(&scales)?;
                WeightMatrix::mapped_int4(rows, columns, values, scales)
            }
            WeightBits::Five => {
                WeightMatrix::mapped_blocks(rows, columns, BlockFormat::Q5_0, values, arithmetic)
            }
            WeightBits::Stored(format) => {
                WeightMatrix::mapped_blocks(rows, columns, format, values, arithmetic)
            }
            WeightBits::Eight => {
                WeightMatrix::mapped_int8(rows, columns, values, self.weights.scales(&scales)?)
            }
        };
        matrix.ok_or_else(|| changed(name))
    }

    fn output(&self, format: OutputFormat, arithmetic: BlockArithmetic) -> Result<Linear> {
        let model = &self.manifest.model;
        let size = (model.vocab, model.hidden);
        let matrix = match format {
            OutputFormat::Bits(bits) => self.integers(OUTPUT, size, bits, arithmetic)?,
            OutputFormat::Float(element) => {
                self.weights
                    .float(&format!("{OUTPUT}.weight"), size, element)?
            }
        };
        let bias = model
            .output_bias
            .then(|| self.weights.floats(&format!("{OUTPUT}.bias")))
            .transpose()?;
        Ok(Linear {
            weight: Weight::Float(matrix),
            decode_weight: None,
            bias,
        })
    }
}
