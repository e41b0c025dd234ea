//! All tensors of a package, by name, element and shape. Packages are written from this table and checked against it.

use std::cmp::Reverse;

use triad_kernels::{int4, int8};
use triad_model::description::{
    BlockDescription, Linear, LinearShape, MixerWeight, ModelDescription, Mtp,
    Norm as NormDescription, NormKind,
};
use triad_model::safetensors::Element;
use triad_model::safetensors::write::{ALIGNMENT, Entry};
use triad_model::tensor::{BlockFormat, Format};
use triad_model::{Error, ErrorKind, Result};

pub use super::formats::{
    Formats, OutputFormat, TokenInputFormats, fits_int4, has_int4, output_format,
};
use super::layers::layer_of;
use super::stream_names::StreamNames;
use crate::quantization::{DecodeWeights, LinearFormat, WeightBits};
use crate::weights::{Block, Norm, RouterPart};

/// The place of a norm in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlace {
    /// The input of attention.
    Attention,
    /// Attention's output.
    AttentionPost,
    /// The input of the feed-forward.
    FeedForward,
    /// The feed-forward's output.
    FeedForwardPost,
    /// Every query head.
    Query,
    /// Every key head.
    Key,
}

impl NormPlace {
    const ALL: [Self; 6] = [
        Self::Attention,
        Self::AttentionPost,
        Self::FeedForward,
        Self::FeedForwardPost,
        Self::Query,
        Self::Key,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention-norm",
            Self::AttentionPost => "attention-post-norm",
            Self::FeedForward => "feed-forward-norm",
            Self::FeedForwardPost => "feed-forward-post-norm",
            Self::Query => "query-norm",
            Self::Key => "key-norm",
        }
    }

    /// Returns the norm in this place of a block with this description, and its number of features; `None` if there is
    /// none.
    pub fn described(
        self,
        block: &BlockDescription,
        hidden: usize,
    ) -> Option<(NormDescription, usize)> {
        let residual = block.residual;
        let wide = |exists: bool| exists.then_some((block.norm, hidden));
        let [query, key] = block.qk_norms();
        match self {
            Self::Attention => wide(residual.has_attention_norm()),
            Self::FeedForward => wide(residual.has_feed_forward_norm()),
            Self::AttentionPost | Self::FeedForwardPost => wide(residual.has_post_norms()),
            Self::Query => query,
            Self::Key => key,
        }
    }

    /// Returns the norm in this place of `block`.
    fn norm(self, block: &Block) -> Option<&Norm> {
        match self {
            Self::Attention => block.attention_norm.as_ref(),
            Self::AttentionPost => block.attention_post_norm.as_ref(),
            Self::FeedForward => block.feed_forward_norm.as_ref(),
            Self::FeedForwardPost => block.feed_forward_post_norm.as_ref(),
            Self::Query => block.query_norm.as_ref(),
            Self::Key => block.key_norm.as_ref(),
        }
    }

    /// Returns the norms of `block` with their places.
    pub fn all_of(block: &Block) -> impl Iterator<Item = (Self, &Norm)> {
        Self::ALL
            .into_iter()
            .filter_map(move |place| Some((place, place.norm(block)?)))
    }
}

/// Returns the prefix of the names of a linear layer's tensors, such as `blocks.3.query` or `blocks.3.experts.0.gate`.
pub fn linear_name(block: usize, linear: Linear) -> String {
    let layer = layer_of(linear);
    match (linear.expert(), layer.strip_prefix("experts.")) {
        (Some(expert), Some(layer)) => format!("blocks.{block}.experts.{expert}.{layer}"),
        _ => format!("blocks.{block}.{layer}"),
    }
}

/// Returns the prefix of the names of a norm's tensors, such as `blocks.3.query-norm`.
pub fn norm_name(block: usize, place: NormPlace) -> String {
    format!("blocks.{block}.{}", place.name())
}

/// Returns the name of a weight of a mixer's operator, such as `blocks.3.convolution`.
pub fn mixer_name(block: usize, weight: MixerWeight) -> String {
    format!("blocks.{block}.{}", weight.name())
}

/// Returns the name of a part of a router, such as `blocks.3.router.weight`.
pub fn router_name(block: usize, part: RouterPart) -> String {
    let part = match part {
        RouterPart::Weight => "weight",
        RouterPart::Bias => "bias",
        RouterPart::Correction => "correction",
        RouterPart::SharedGate => "shared-gate",
    };
    format!("blocks.{block}.router.{part}")
}

/// Returns the names of the two matrices and of the norm of a block that add its input by token.
pub fn token_input_names(block: usize) -> [String; 3] {
    ["input-gate", "input-output", "input-norm"].map(|name| format!("blocks.{block}.{name}"))
}

/// Returns the name of the factor on the residual stream after a block.
pub fn scale_name(block: usize) -> String {
    format!("blocks.{block}.scale")
}

/// The name of the table of inputs by token.
pub const TOKEN_TABLE: &str = "token-inputs.table";
/// The name of the projection of inputs by token.
pub const TOKEN_PROJECTION: &str = "token-inputs.projection";
/// The prefix of the names of the tensors of its norm.
pub const TOKEN_NORM: &str = "token-inputs.norm";
/// The prefix of the names of the tensors of the norm before the output matrix.
pub const OUTPUT_NORM: &str = "output-norm";
/// The prefix of the names of the output matrix's tensors.
pub const OUTPUT: &str = "output";
/// The name of the embedding.
pub const EMBEDDING: &str = "embedding";

/// The beginning of the names of the tensors of the head that predicts one more token.
pub const MTP: &str = "mtp.";
/// The prefix of the names of the head's projection of embedding and state.
pub const MTP_PROJECTION: &str = "mtp.projection";
/// The prefixes of the names of the head's norms: of the embedding, of the state, and before the output matrix.
pub const MTP_NORMS: [&str; 3] = ["mtp.embedding-norm", "mtp.state-norm", "mtp.output-norm"];

/// Returns the required alignment of a tensor in bytes.
pub(super) fn alignment(entry: &Entry) -> usize {
    // Packed weights must begin at a cache line. They consist of whole cache lines and come first, so every one does.
    // They alone have one dimension: weights that are read row by row have two.
    if entry.element == Element::I8 && entry.shape.len() == 1 {
        ALIGNMENT
    } else {
        entry.element.bytes()
    }
}

/// Returns all tensors of a package, in the order of the file.
///
/// # Errors
/// If a tensor would be larger than memory, or INT8 sums could overflow.
pub fn entries(description: &ModelDescription, formats: &Formats) -> Result<Vec<Entry>> {
    if description.has_expert_branches() {
        let message =
            "the package has experts next to a dense feed-forward, which Triad does not support";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let mut table = Table::new();
    let (hidden, vocab) = (description.hidden, description.vocab);
    for (index, block) in description.blocks.iter().enumerate() {
        for shape in block.linears(hidden) {
            table.linear(index, &shape, formats)?;
        }
        table.rest_of_block("", index, (block, hidden));
    }
    if let Some(mtp) = &description.mtp {
        table.head(mtp, hidden);
    }
    table.token_inputs(description, formats)?;
    table.streams(description, formats);
    table.norm(OUTPUT_NORM, &description.output_norm, hidden);
    match formats.output {
        OutputFormat::Float(element) => {
            table.add(format!("{OUTPUT}.weight"), element, &[vocab, hidden]);
        }
        OutputFormat::Bits(bits) => table.integers(OUTPUT, (vocab, hidden), bits)?,
    }
    if description.output_bias {
        table.add(format!("{OUTPUT}.bias"), Element::F32, &[vocab]);
    }
    table.rows(EMBEDDING, (vocab, hidden), formats.embedding)?;
    table.sorted()
}

impl Formats {
    /// Returns the bits of the weights of a layer in W4A16; `None` for f32.
    ///
    /// # Errors
    /// If there are bits of layers, but none of this one.
    pub(super) fn bits_of(&self, block: usize, shape: &LinearShape) -> Result<Option<WeightBits>> {
        let Some(bits) = &self.bits else {
            return Ok(fits_int4(shape.in_features).then_some(WeightBits::Four));
        };
        match bits.get(&(block, layer_of(shape.linear))) {
            Some(bits) => Ok(Some(*bits)),
            None => Err(malformed(format!(
                "there are no bits of {}",
                linear_name(block, shape.linear)
            ))),
        }
    }
}

/// A table of tensors that grows.
pub(super) struct Table {
    entries: Vec<Entry>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
        }
    }

    /// Returns the tensors in the order of the file.
    ///
    /// # Errors
    /// If they are larger than memory.
    pub(super) fn sorted(mut self) -> Result<Vec<Entry>> {
        let total = self
            .entries
            .iter()
            .try_fold(0usize, |sum, Entry { element, shape, .. }| {
                sum.checked_add(element.bytes_of(shape)?)
                    .filter(|sum| *sum < isize::MAX as usize)
            });
        if total.is_none() {
            return Err(malformed(
                "the weights are larger than memory can be".into(),
            ));
        }
        // The sort is stable, so that tensors with the same alignment keep the order of the model.
        self.entries.sort_by_key(|entry| Reverse(alignment(entry)));
        Ok(self.entries)
    }

    pub(super) fn add(&mut self, name: String, element: Element, shape: &[usize]) {
        self.entries.push(Entry {
            name,
            element,
            shape: shape.into(),
        });
    }

    /// Adds what a block has in addition to linear layers, with names after `prefix`.
    fn rest_of_block(
        &mut self,
        prefix: &str,
        index: usize,
        (block, hidden): (&BlockDescription, usize),
    ) {
        for place in NormPlace::ALL {
            if let Some((norm, features)) = place.described(block, hidden) {
                let name = format!("{prefix}{}", norm_name(index, place));
                self.norm(&name, &norm, features);
            }
        }
        for (weight, shape) in block.mixer.weights() {
            let name = format!("{prefix}{}", mixer_name(index, weight));
            self.add(name, Element::F32, &shape);
        }
        if let Some(experts) = &block.feed_forward.experts {
            for part in RouterPart::present_in(experts) {
                let name = format!("{prefix}{}", router_name(index, part));
                self.add(name, Element::F32, &part.shape(experts, hidden));
            }
        }
        if block.scaled {
            let name = format!("{prefix}{}", scale_name(index));
            self.add(name, Element::F32, &[1]);
        }
    }

    /// Adds the head that predicts one more token. Its matrices are INT8 with a scale for each row and read floats, in
    /// every format of the model's layers, so that they need no calibration.
    fn head(&mut self, mtp: &Mtp, hidden: usize) {
        let shapes = mtp.block.linears(hidden);
        let matrices = shapes.iter().map(|shape| {
            let name = format!("{MTP}{}", linear_name(0, shape.linear));
            (name, [shape.out_features, shape.in_features], shape.bias)
        });
        let projection = (MTP_PROJECTION.into(), [hidden, 2 * hidden], false);
        for (name, shape, bias) in matrices.chain([projection]) {
            self.add(format!("{name}.weight"), Element::I8, &shape);
            self.add(format!("{name}.scales"), Element::F32, &shape[..1]);
            if bias {
                self.add(format!("{name}.bias"), Element::F32, &shape[..1]);
            }
        }
        self.rest_of_block(MTP, 0, (&mtp.block, hidden));
        for name in MTP_NORMS {
            self.norm(name, &mtp.norm, hidden);
        }
    }

    /// Adds a matrix as the model's file has it.
    fn rows(&mut self, name: &str, (rows, columns): (usize, usize), format: Format) -> Result<()> {
        let row_bytes = format.bytes_for(columns).ok_or_else(|| {
            malformed(format!(
                "rows of {columns} numbers are not whole blocks of the {name}'s {format}"
            ))
        })?;
        self.add(name.into(), Element::U8, &[rows, row_bytes]);
        Ok(())
    }

    fn token_inputs(&mut self, description: &ModelDescription, formats: &Formats) -> Result<()> {
        let (described, formats) = match (description.token_inputs, formats.token_inputs) {
            (Some(described), Some(formats)) => (described, formats),
            (None, None) => return Ok(()),
            _ => {
                return Err(malformed(
                    "formats of inputs by token, expected exactly if the model has such inputs"
                        .into(),
                ));
            }
        };
        let (hidden, width, blocks) = (description.hidden, described.width, &description.blocks);
        let all = blocks.len() * width;
        let rows = described.table_rows(description.vocab);
        self.rows(TOKEN_TABLE, (rows, all), formats.table)?;
        self.add(TOKEN_PROJECTION.into(), formats.matrices, &[all, hidden]);
        self.norm(TOKEN_NORM, &described.norm, width);
        for index in 0..blocks.len() {
            let [gate, output, norm] = token_input_names(index);
            self.add(gate, formats.matrices, &[width, hidden]);
            self.add(output, formats.matrices, &[hidden, width]);
            self.norm(&norm, &described.norm, hidden);
        }
        Ok(())
    }

    /// Adds several residual streams, whose matrices have the format of those of inputs by token.
    fn streams(&mut self, description: &ModelDescription, formats: &Formats) {
        let (Some(streams), Some(formats)) = (description.streams, formats.token_inputs) else {
            return;
        };
        let (hidden, count, rank) = (description.hidden, streams.count, streams.rank);
        for name in StreamNames::shared(count).into_iter().flatten() {
            self.add(name, formats.matrices, &[hidden, hidden]);
        }
        for (index, block) in description.blocks.iter().enumerate() {
            let names = StreamNames::of_block(index);
            let shapes = [[count, hidden], [rank, hidden], [hidden, rank]];
            for (name, shape) in names.matrices.into_iter().zip(shapes) {
                self.add(name, formats.matrices, &shape);
            }
            self.add(names.prediction, Element::F32, &[count * count, count]);
            self.add(names.correction, Element::F32, &[count, count]);
            if streams.scaled {
                self.add(names.scale, Element::F32, &[hidden]);
            }
            self.norm(&names.router_norm, &block.norm, hidden);
            self.norm(&names.norm, &block.norm, hidden);
        }
    }

    fn linear(&mut self, block: usize, shape: &LinearShape, formats: &Formats) -> Result<()> {
        let name = &linear_name(block, shape.linear);
        match formats.linears {
            LinearFormat::W8a8 => self.int8(name, shape, formats.decode)?,
            LinearFormat::W4a16 => {
                let size = (shape.out_features, shape.in_features);
                match formats.bits_of(block, shape)? {
                    Some(bits) => self.integers(name, size, bits)?,
                    None => self.add(format!("{name}.weight"), Element::F32, &[size.0, size.1]),
                }
            }
        }
        if shape.bias {
            self.add(format!("{name}.bias"), Element::F32, &[shape.out_features]);
        }
        Ok(())
    }

    /// Adds a matrix of integers that is multiplied with float activations.
    fn integers(
        &mut self,
        name: &str,
        (rows, columns): (usize, usize),
        bits: WeightBits,
    ) -> Result<()> {
        if bits.of_row(columns).is_none() {
            return Err(malformed(format!("{name} {}", bits.misfit(columns))));
        }
        let weight = format!("{name}.weight");
        match bits {
            WeightBits::Four => {
                self.add(weight, Element::U8, &[rows, columns / 2]);
                let groups = columns / int4::GROUP;
                self.add(format!("{name}.scales"), Element::F16, &[rows, groups]);
            }
            WeightBits::Five => {
                self.rows(&weight, (rows, columns), Format::Blocks(BlockFormat::Q5_0))?;
            }
            WeightBits::Stored(format) => {
                self.rows(&weight, (rows, columns), Format::Blocks(format))?;
            }
            WeightBits::Eight => {
                self.add(weight, Element::I8, &[rows, columns]);
                self.add(format!("{name}.scales"), Element::F32, &[rows]);
            }
        }
        Ok(())
    }

    pub(super) fn int8(
        &mut self,
        name: &str,
        shape: &LinearShape,
        decode: DecodeWeights,
    ) -> Result<()> {
        let LinearShape {
            out_features,
            in_features,
            ..
        } = *shape;
        if in_features > int8::MAX_IN_FEATURES {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{name} reads {in_features} numbers, expected at most {} in INT8",
                    int8::MAX_IN_FEATURES
                ),
            ));
        }
        let packed = int8::packed_len(out_features, in_features)
            .ok_or_else(|| malformed(format!("{name} is larger than memory can be")))?;
        self.add(format!("{name}.weight"), Element::I8, &[packed]);
        self.add(format!("{name}.scales"), Element::F32, &[out_features]);
        self.add(format!("{name}.sums"), Element::I32, &[out_features]);
        if has_int4(decode, in_features) {
            self.add(
                format!("{name}.decode"),
                Element::U8,
                &[out_features, in_features / 2],
            );
            self.add(
                format!("{name}.decode-scales"),
                Element::F16,
                &[out_features, in_features / int4::GROUP],
            );
        }
        Ok(())
    }

    pub(super) fn norm(&mut self, name: &str, norm: &NormDescription, features: usize) {
        self.add(format!("{name}.weight"), Element::F32, &[features]);
        if norm.kind == NormKind::Layer {
            self.add(format!("{name}.bias"), Element::F32, &[features]);
        }
    }
}

pub(super) fn malformed(message: String) -> Error {
    Error::new(ErrorKind::Malformed, message)
}
