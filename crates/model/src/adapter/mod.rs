//! LoRA adapters ([Hu et al.](https://arxiv.org/abs/2106.09685)): what fine-tuning added to linear layers of a model,
//! stored separately as products of two narrow matrices.
//!
//! [`Adapter::open`] reads one for a model: a GGUF file as written by llama.cpp ([`gguf`]), or a folder as written by
//! PEFT ([`peft`]). In both cases, the result has the layout of the model: one [`LowRank`] for each linear layer that
//! the adapter changes, with rows of queries and keys in the order of the model's RoPE.

mod gguf;
mod peft;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::checkpoint::json;
use crate::dequantize::dequantize;
use crate::description::{Attention, Linear, LinearShape, ModelDescription, RopePairing};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Modules;
use crate::gguf as gguf_file;
use crate::mapped::MappedFile;
use crate::tensor::TensorInfo;

/// Maximum rank.
const MAX_RANK: usize = 4096;
/// The files that an adapter can be opened from, for error messages.
const EXPECTED: &str = "expected a .gguf file with an adapter, or a folder with adapter_config.json and \
                        adapter_model.safetensors";

/// The change of one linear layer: adds `scale · B · A` to its weight.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// Rows of A and columns of B.
    pub rank: usize,
    /// A, `[rank, in_features]`.
    pub a: Arc<[f32]>,
    /// B, `[out_features, rank]`.
    pub b: Arc<[f32]>,
    /// Factor from the file: alpha / rank, or alpha / √rank.
    pub scale: f32,
}

/// A LoRA adapter for a model.
#[derive(Clone)]
pub struct Adapter {
    path: PathBuf,
    description: ModelDescription,
    blocks: Vec<BTreeMap<Linear, LowRank>>,
    fingerprint: [u8; 32],
}

impl Adapter {
    /// Opens the adapter at `path` for models of `description`: a GGUF file, a folder with `adapter_config.json` and
    /// `adapter_model.safetensors`, or that file.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] for a file that can't be read, [`ErrorKind::Missing`] for a missing file or tensor,
    /// [`ErrorKind::Malformed`] for invalid shapes or numbers, [`ErrorKind::Unsupported`] for an adapter of another
    /// model or kind. The error names the file and the field.
    pub fn open(path: impl Into<PathBuf>, description: &ModelDescription) -> Result<Self> {
        let path = path.into();
        Self::open_any(&path, description).map_err(|error| error.at(path))
    }

    fn open_any(path: &Path, description: &ModelDescription) -> Result<Self> {
        if description.is_encoder() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "an adapter for an encoder, which Triad does not support",
            ));
        }
        if path.is_dir() {
            return Self::open_peft(path, path, description);
        }
        if !path.exists() {
            return Err(Error::new(
                ErrorKind::Missing,
                format!("there is no such file or folder; {EXPECTED}"),
            ));
        }
        if path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("safetensors"))
        {
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            return Self::open_peft(path, parent.unwrap_or(Path::new(".")), description);
        }
        let file = MappedFile::open(path)?;
        if !file.bytes().starts_with(&gguf_file::MAGIC) {
            return Err(malformed(format!("not an adapter; {EXPECTED}")));
        }
        let adapter = Self::from_gguf(file.bytes(), description)?;
        file.check_unchanged()?;
        Ok(Self {
            path: path.to_owned(),
            ..adapter
        })
    }

    fn open_peft(path: &Path, folder: &Path, description: &ModelDescription) -> Result<Self> {
        let config_path = folder.join("adapter_config.json");
        let config = json::read(&config_path)?;
        let config = config
            .ok_or_else(|| missing(format!("there is no adapter_config.json; {EXPECTED}")))?;
        let weights = folder.join("adapter_model.safetensors");
        if !weights.exists() {
            return Err(missing(format!(
                "there is no adapter_model.safetensors; {EXPECTED}"
            )));
        }
        let config = peft::Config::read(&config).map_err(|error| error.at(config_path))?;
        let file = MappedFile::open(&weights)?;
        let adapter =
            peft::read(&config, file.bytes(), description).map_err(|error| error.at(weights))?;
        file.check_unchanged()?;
        Ok(Self {
            path: path.to_owned(),
            ..adapter
        })
    }

    /// Reads the adapter from the content `bytes` of a GGUF file.
    ///
    /// # Errors
    /// As for [`Adapter::open`].
    pub fn from_gguf(bytes: &[u8], description: &ModelDescription) -> Result<Self> {
        gguf::read(bytes, description)
    }

    /// Reads the adapter from the content `bytes` of a safetensors file and the content of `adapter_config.json`.
    ///
    /// # Errors
    /// As for [`Adapter::open`].
    pub fn from_peft(
        config: &serde_json::Value,
        bytes: &[u8],
        description: &ModelDescription,
    ) -> Result<Self> {
        peft::read(&peft::Config::read(config)?, bytes, description)
    }

    /// Creates an adapter from the changes of linear layers, by block.
    ///
    /// # Errors
    /// [`ErrorKind::Malformed`] if the number of blocks is not that of the model, a block has no such layer, a matrix
    /// has another shape, or a number is not finite.
    pub fn new(
        description: &ModelDescription,
        blocks: Vec<BTreeMap<Linear, LowRank>>,
    ) -> Result<Self> {
        if blocks.len() != description.blocks.len() {
            let expected = description.blocks.len();
            return Err(malformed(format!(
                "the adapter is for {} blocks, expected {expected}",
                blocks.len()
            )));
        }
        for (index, (block, described)) in blocks.iter().zip(&description.blocks).enumerate() {
            let shapes = described.linears(description.hidden);
            for (linear, low_rank) in block {
                let checked = match shapes.iter().find(|shape| shape.linear == *linear) {
                    Some(shape) => low_rank.check(shape),
                    None => Err("is a layer that the model does not have".into()),
                };
                checked.map_err(|problem| {
                    malformed(format!("{linear:?} of block {index} {problem}"))
                })?;
            }
        }
        let fingerprint = fingerprint(&blocks);
        Ok(Self {
            path: PathBuf::new(),
            description: description.clone(),
            blocks,
            fingerprint,
        })
    }

    /// Returns the file or folder that was opened; empty if the adapter was made in memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the description of the models that the adapter is for.
    pub fn description(&self) -> &ModelDescription {
        &self.description
    }

    /// Returns the changes of linear layers, by block.
    pub fn blocks(&self) -> &[BTreeMap<Linear, LowRank>] {
        &self.blocks
    }

    /// Returns the change of a layer, if there is one.
    pub fn low_rank(&self, block: usize, linear: Linear) -> Option<&LowRank> {
        self.blocks.get(block)?.get(&linear)
    }

    /// Returns a hash of all changes: two files with the same numbers have the same hash.
    pub fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    /// Returns the smallest and the largest rank.
    pub fn ranks(&self) -> (usize, usize) {
        let ranks = || {
            self.blocks
                .iter()
                .flat_map(|block| block.values().map(|low_rank| low_rank.rank))
        };
        (ranks().min().unwrap_or(0), ranks().max().unwrap_or(0))
    }

    /// Returns the count of numbers in all matrices; a matrix that several layers share counts once for each.
    pub fn parameters(&self) -> usize {
        self.blocks
            .iter()
            .flat_map(|block| block.values())
            .map(|low_rank| low_rank.a.len() + low_rank.b.len())
            .sum()
    }
}

impl LowRank {
    /// Checks that the change fits a layer; the error describes the mismatch.
    fn check(&self, shape: &LinearShape) -> Result<(), String> {
        let Self { rank, a, b, scale } = self;
        let LinearShape {
            in_features,
            out_features,
            ..
        } = *shape;
        let product = |features: usize| rank.checked_mul(features);
        if !(1..=MAX_RANK).contains(rank) {
            return Err(format!("has rank {rank}, expected 1 to {MAX_RANK}"));
        }
        if (product(in_features), product(out_features)) != (Some(a.len()), Some(b.len())) {
            return Err(format!(
                "has matrices of {} and {} numbers, expected [{rank}, {in_features}] and [{out_features}, {rank}]",
                a.len(),
                b.len()
            ));
        }
        match [*scale]
            .iter()
            .chain(&**a)
            .chain(&**b)
            .find(|value| !value.is_finite())
        {
            Some(value) => Err(format!("holds {value}, expected numbers")),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Adapter")
            .field("path", &self.path)
            .field("ranks", &self.ranks())
            .finish_non_exhaustive()
    }
}

/// One of the two matrices of a module.
#[derive(Clone, Copy)]
enum Factor {
    A,
    B,
}

/// An adapter's file, with its format's conventions for names and scales.
struct Content<'a> {
    bytes: &'a [u8],
    tensors: &'a BTreeMap<String, TensorInfo>,
    modules: Modules,
    /// Splits a tensor's name into its module and matrix; `None` for another tensor.
    split: &'a dyn Fn(&str) -> Option<(&str, Factor)>,
    /// Returns the factor of a module with the given rank.
    scale: &'a dyn Fn(&str, usize) -> Result<f32>,
}

impl Content<'_> {
    /// Returns the adapter after checking every number.
    fn adapter(&self, description: &ModelDescription) -> Result<Adapter> {
        let mut found: BTreeMap<&str, [Option<&TensorInfo>; 2]> = BTreeMap::new();
        for (name, tensor) in self.tensors {
            let Some((module, factor)) = (self.split)(name) else {
                return Err(unsupported(format!(
                    "tensor `{name}` is not of a linear layer's LoRA; Triad applies LoRA to linear layers of blocks"
                )));
            };
            found.entry(module).or_default()[factor as usize] = Some(tensor);
        }
        if found.is_empty() {
            return Err(missing(
                "there is no tensor in it, expected those of an adapter",
            ));
        }
        let mut blocks = vec![BTreeMap::new(); description.blocks.len()];
        for (module, factors) in found {
            let Some((block, linears)) = self.modules.find(module) else {
                return Err(unsupported(format!(
                    "`{module}` is no linear layer in one of the {} blocks of this {} model; Triad applies LoRA to those",
                    description.blocks.len(),
                    description.family
                )));
            };
            for (linear, low_rank) in self.module(module, (block, linears), factors, description)? {
                if blocks[block].insert(linear, low_rank).is_some() {
                    return Err(malformed(format!(
                        "`{module}` changes a layer that another tensor changes, too"
                    )));
                }
            }
        }
        Adapter::new(description, blocks)
    }

    /// Returns the changes of each layer of a module.
    fn module(
        &self,
        module: &str,
        (block, linears): (usize, &[Linear]),
        factors: [Option<&TensorInfo>; 2],
        description: &ModelDescription,
    ) -> Result<Vec<(Linear, LowRank)>> {
        let described = &description.blocks[block];
        let shapes = described.linears(description.hidden);
        let shapes = linears
            .iter()
            .filter_map(|linear| shapes.iter().find(|shape| shape.linear == *linear));
        let shapes: Vec<_> = shapes.collect();
        let [Some(a), Some(b)] = factors else {
            let (there, other) = if factors[0].is_some() {
                ("A", "B")
            } else {
                ("B", "A")
            };
            return Err(missing(format!(
                "`{module}` has a matrix {there} and no {other}, expected both"
            )));
        };
        let out_features: usize = shapes.iter().map(|shape| shape.out_features).sum();
        let Some(in_features) = shapes.first().map(|shape| shape.in_features) else {
            return Err(unsupported(format!(
                "`{module}` is no layer of this {} model",
                description.family
            )));
        };
        let rank = match (&a.shape[..], &b.shape[..]) {
            ([rank, columns], [rows, other])
                if (*columns, *rows) == (in_features, out_features) && rank == other =>
            {
                *rank
            }
            _ => {
                return Err(malformed(format!(
                    "tensors `{}` and `{}` have shapes {:?} and {:?}, expected [rank, {in_features}] and \
                     [{out_features}, rank]",
                    a.name, b.name, a.shape, b.shape
                )));
            }
        };
        if !(1..=MAX_RANK).contains(&rank) {
            return Err(malformed(format!(
                "tensor `{}` has rank {rank}, expected 1 to {MAX_RANK}",
                a.name
            )));
        }
        let scale = (self.scale)(module, rank)?;
        let (a, b): (Arc<[f32]>, _) = (self.values(a)?.into(), self.values(b)?);
        let mut rest = &b[..];
        shapes
            .into_iter()
            .map(|shape| {
                let b = rest
                    .split_off(..shape.out_features * rank)
                    .expect("rows of all layers");
                let b = self
                    .in_order_of(described.attention(), shape.linear, b, rank)
                    .map_err(|problem| {
                        unsupported(format!(
                            "`{module}` {problem}: take an adapter in the format of the model"
                        ))
                    })?;
                Ok((
                    shape.linear,
                    LowRank {
                        rank,
                        a: Arc::clone(&a),
                        b,
                        scale,
                    },
                ))
            })
            .collect()
    }

    fn values(&self, tensor: &TensorInfo) -> Result<Vec<f32>> {
        let mut values = vec![0.0; tensor.elements()];
        dequantize(
            tensor.format,
            &self.bytes[tensor.bytes.clone()],
            &mut values,
        );
        match values.iter().find(|value| !value.is_finite()) {
            Some(value) => Err(malformed(format!(
                "tensor `{}` holds {value}, expected numbers",
                tensor.name
            ))),
            None => Ok(values),
        }
    }

    /// Returns the rows of `b[out_features, rank]` in the model's order. If RoPE rotates adjacent dimensions, row `2i +
    /// half` of a query or key head is row `half · head_dim / 2 + i` of the order for halves.
    fn in_order_of(
        &self,
        attention: Option<&Attention>,
        linear: Linear,
        b: &[f32],
        rank: usize,
    ) -> Result<Arc<[f32]>, &'static str> {
        // Only queries and keys have an order of rows.
        let attention = attention.filter(|_| matches!(linear, Linear::Query | Linear::Key));
        let Some(attention) = attention else {
            return Ok(b.into());
        };
        let (from, to) = (self.modules.pairing, attention.rope.pairing);
        if from == to {
            return Ok(b.into());
        }
        let head_dim = attention.head_dim;
        // Without RoPE the rows are still in the file's order.
        if ![0, head_dim].contains(&attention.rope.dims) {
            return Err(
                "is in another order of rows than the model, whose RoPE rotates a part of each head",
            );
        }
        let half = head_dim / 2;
        let source = |row: usize| match to {
            RopePairing::Adjacent => row % 2 * half + row / 2,
            RopePairing::Halves => row % half * 2 + row / half,
        };
        let heads = b.chunks_exact(head_dim * rank);
        Ok(heads
            .flat_map(|head| {
                (0..head_dim)
                    .flat_map(move |row| head[source(row) * rank..][..rank].iter().copied())
            })
            .collect())
    }
}

fn fingerprint(blocks: &[BTreeMap<Linear, LowRank>]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for (block, linears) in blocks.iter().enumerate() {
        for (linear, LowRank { rank, a, b, scale }) in linears {
            hash.update(format!(
                "{block} {linear:?} {rank} {:08x};",
                scale.to_bits()
            ));
            a.iter()
                .chain(&**b)
                .for_each(|value| hash.update(value.to_le_bytes()));
        }
    }
    hash.finalize().into()
}

fn malformed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, message)
}

fn missing(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Missing, message)
}

fn unsupported(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}
