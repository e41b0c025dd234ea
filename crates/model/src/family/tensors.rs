//! Finds every tensor by its name, and checks that it has the shape that the description demands.

use std::collections::{BTreeMap, BTreeSet};

use super::gguf_rope::ROPE_TENSORS;
use super::kinds::{Layout, Mixers};
use super::layout;
use super::mixer_names;
use super::names::{self, Names};
use super::next_tokens;
use super::traits::Family;
use super::{AreEqual, IsQuantized, malformed, missing, ollama, unsupported};
use crate::description::{
    Attention, BlockDescription, HeadSharing, Linear, ModelDescription, Norm, NormKind,
};
use crate::error::Result;
use crate::tensor::TensorInfo;
use crate::tensor_map::{
    BlockTensors, LinearTensors, NormTensors, Part, Runs, TensorMap, TensorSlice,
};

/// Prefixes of the text model's tensors, and of its output matrix, in Hugging Face checkpoints: alone, and as a part of
/// a model with images (older and newer layout).
pub(super) const ROOTS: [(&str, &str); 9] = [
    ("model.", ""),
    ("language_model.model.", "language_model."),
    ("model.language_model.", ""),
    ("model.text_model.", ""),
    ("backbone.", ""),
    ("bert.", ""),
    ("roberta.", ""),
    // Saved from the model without its output matrix.
    ("", ""),
    ("language_model.", ""),
];

/// Suffixes of tensors in old checkpoints that need not be loaded: RoPE's frequencies and the causal mask.
const INERT: [&str; 3] = [
    ".rotary_emb.inv_freq",
    ".self_attn.bias",
    ".self_attn.masked_bias",
];

/// Maps the tensors of a Hugging Face checkpoint.
pub(super) fn hugging_face(
    family: &Family,
    description: &ModelDescription,
    (tensors, predicted): (&BTreeMap<String, TensorInfo>, usize),
    (is_quantized, are_equal): (&IsQuantized<'_>, &AreEqual<'_>),
) -> Result<TensorMap> {
    let of_model = tensors.keys();
    let of_model = of_model.filter(|name| !name.starts_with(next_tokens::OUTSIDE));
    let names = &stacked(family.names, of_model);
    let (root, output) = root_and_output(names, tensors);
    let mut mapper = Mapper {
        names,
        root,
        output: &output,
        description,
        places: places(family, description),
        tensors,
        is_quantized,
        used: BTreeSet::new(),
    };
    let mut map = mapper.map()?;
    map.more_tokens = next_tokens::hugging_face(description, (root, predicted), tensors);
    mapper.used.extend(map.more_tokens.iter().cloned());
    map.unused = mapper.account_for_the_rest(&[root, &output])?;
    if let Some(head) = tensors
        .get(&format!("{output}.weight"))
        .filter(|_| description.tied_output)
    {
        let embedding = &tensors[&map.embedding.name];
        if head.shape != embedding.shape || !are_equal(head, embedding) {
            return Err(unsupported(format!(
                "tensor `{}` differs from `{}`, to which `tie_word_embeddings` ties it: some versions of transformers take \
                 the one, some the other; expected the same numbers, or `tie_word_embeddings` false",
                head.name, embedding.name
            )));
        }
    }
    Ok(map)
}

/// Returns the numbers of blocks in the file.
fn places(family: &Family, description: &ModelDescription) -> Vec<[usize; 2]> {
    let residuals = description.blocks.iter().map(|block| block.residual);
    layout::places(family.layout, residuals)
}

/// Returns the prefix of the tensors of a Hugging Face checkpoint, and the name of its output layer.
pub(super) fn root_and_output(
    names: &Names,
    tensors: &BTreeMap<String, TensorInfo>,
) -> (&'static str, String) {
    let here = |(root, _): &&(&str, &str)| {
        tensors.contains_key(&format!("{root}{}.weight", names.embedding))
    };
    let (root, head) = *ROOTS.iter().find(here).unwrap_or(&ROOTS[0]);
    (root, format!("{head}{}", names.output))
}

/// Maps the tensors of a GGUF file.
pub(super) fn gguf(
    family: &Family,
    description: &ModelDescription,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<TensorMap> {
    let names = gguf_names(family, tensors);
    let used = BTreeSet::new();
    let mut mapper = Mapper {
        names: &names,
        root: "",
        output: names.output,
        description,
        places: places(family, description),
        tensors,
        // Blocks of GGUF have the shapes of floats.
        is_quantized: &|_| false,
        used,
    };
    let mut map = mapper.map()?;
    mapper.used.extend(ROPE_TENSORS.map(String::from));
    let mut others: Vec<String> = Vec::new();
    if description.family == "gemma3" {
        let images = tensors.keys().filter(|name| ollama::is_for_images(name));
        others.extend(images.cloned());
    }
    if family.predicts_more {
        map.more_tokens = next_tokens::gguf(description, tensors);
    }
    mapper.used.extend(others.iter().cloned());
    mapper.used.extend(map.more_tokens.iter().cloned());
    map.unused = mapper.account_for_the_rest(&[""])?;
    map.unused.extend(others);
    Ok(map)
}

/// Returns the names of a GGUF file.
pub(super) fn gguf_names(family: &Family, tensors: &BTreeMap<String, TensorInfo>) -> Names {
    let has = |name: &str| tensors.contains_key(name);
    let mut names = match family.latent {
        Some(_) => mixer_names::DEEPSEEK2_GGUF,
        None => names::gguf(family.mixers, family.head_sharing),
    };
    let any_has = |end: &str| tensors.keys().any(|name| name.ends_with(end));
    if family.head_sharing == HeadSharing::Adjacent && any_has(".ssm_in.weight") {
        // Old files of Qwen3-Next have the queries, keys, values and gates of each key head next to each other.
        (names.mixer_input, names.mixer_gate) = ("ssm_in", "ssm_in");
    }
    if family.layout == Layout::SingleParts {
        // A feed-forward is the only part of its block.
        names.feed_forward_norm = names.attention_norm;
    }
    if family.has_expert_branches() {
        names.experts.shared = [names.gate, names.up, names.down];
    }
    if any_has(".ffn_gate_up_exps.weight") {
        (names.experts.gate, names.experts.up) = ("ffn_gate_up_exps", "ffn_gate_up_exps");
    }
    if family.mixers != Mixers::DeltaNet && has("blk.0.attn_qkv.weight") {
        (names.query, names.key, names.value) = ("attn_qkv", "attn_qkv", "attn_qkv");
    }
    if family.residual.replaces() {
        names.attention_post_norm = "attn_output_norm";
        names.feed_forward_post_norm = "layer_output_norm";
    }
    if family.gated && !has("blk.0.ffn_gate.weight") && has("blk.0.ffn_up.weight") {
        names.gate = names.up;
    }
    let norm = |name: &str| has(&format!("blk.0.{name}.weight"));
    if norm(names.attention_post_norm) && !norm(names.feed_forward_norm) {
        // llama.cpp calls the norm before the feed-forward of gpt-oss and GLM-4.5 by the place after attention.
        names.feed_forward_norm = names.attention_post_norm;
    }
    names
}

/// Returns the names for tensors of these names, whose experts may be stacked.
pub(super) fn stacked<'a>(
    mut names: Names,
    mut tensors: impl Iterator<Item = &'a String>,
) -> Names {
    let Some([router, gate_up, down]) = names.experts.stacked else {
        return names;
    };
    if tensors.any(|name| name.ends_with(gate_up)) {
        let experts = &mut names.experts;
        (experts.router, experts.down) = (router, down);
        experts.up = gate_up;
        experts.endings = [""; 2];
        experts.gate = if experts.gate.is_empty() { "" } else { gate_up };
    }
    names
}

/// Finds the tensors of a model.
pub(super) struct Mapper<'a> {
    pub(super) names: &'a Names,
    /// Prefix of every name except the output matrix's.
    pub(super) root: &'a str,
    pub(super) output: &'a str,
    pub(super) description: &'a ModelDescription,
    /// The numbers in the file of the blocks with the mixer and with the feed-forward of each block.
    pub(super) places: Vec<[usize; 2]>,
    pub(super) tensors: &'a BTreeMap<String, TensorInfo>,
    pub(super) is_quantized: &'a IsQuantized<'a>,
    pub(super) used: BTreeSet<String>,
}

impl Mapper<'_> {
    fn map(&mut self) -> Result<TensorMap> {
        let ModelDescription {
            hidden,
            vocab,
            tied_output,
            output_bias,
            output_norm,
            ..
        } = *self.description;
        let (names, root, output) = (self.names, self.root, self.output);
        let embedding = self.tensor(
            &format!("{root}{}.weight", names.embedding),
            &[vocab, hidden],
        )?;
        let embedding = TensorSlice::whole(embedding);
        let blocks = self.description.blocks.iter().enumerate();
        let blocks = blocks
            .map(|(index, block)| self.block(index, block))
            .collect::<Result<_>>()?;
        let output_norm = self.norm(&self.output_norm_name(), &output_norm, hidden)?;
        let weight = if tied_output {
            embedding.clone()
        } else {
            TensorSlice::whole(self.tensor(&format!("{output}.weight"), &[vocab, hidden])?)
        };
        let bias = if output_bias {
            Some(self.tensor(&format!("{output}.bias"), &[vocab])?)
        } else {
            None
        };
        let bias = bias.map(TensorSlice::whole);
        Ok(TensorMap {
            embedding,
            blocks,
            output_norm,
            output: LinearTensors { weight, bias },
            token_inputs: self.token_inputs()?,
            streams: self.streams()?,
            added_inputs: self.added_inputs()?,
            head: self.head()?,
            unused: Vec::new(),
            mtp: None,
            mtp_refused: None,
            more_tokens: Vec::new(),
        })
    }

    pub(super) fn block(&mut self, index: usize, block: &BlockDescription) -> Result<BlockTensors> {
        let (names, hidden) = (self.names, self.description.hidden);
        let [prefix, prefix_of_second] =
            self.places[index].map(|place| format!("{}{}{place}.", self.root, names.block));
        let residual = block.residual;
        let attention_norm = match residual.has_attention_norm() {
            true => {
                let name = match residual.attention_norm_replaces() {
                    true => self.replacing_norm_name(index),
                    false => format!("{prefix}{}", names.attention_norm),
                };
                Some(self.norm(&name, &block.norm, hidden)?)
            }
            false => None,
        };
        let mut norm_in = |prefix: &str, there: bool, name: &str, norm: &Norm, width: usize| {
            there
                .then(|| self.norm(&format!("{prefix}{name}"), norm, width))
                .transpose()
        };
        let second = &prefix_of_second;
        let feed_forward_norm = norm_in(
            second,
            block.residual.has_feed_forward_norm(),
            match residual.replaces() {
                true => names.attention_post_norm,
                false => names.feed_forward_norm,
            },
            &block.norm,
            hidden,
        )?;
        let mut norm_if = |there: bool, name: &str, norm: &Norm, width: usize| {
            norm_in(&prefix, there, name, norm, width)
        };
        let post = residual.has_post_norms();
        let attention_post_norm = norm_if(post, names.attention_post_norm, &block.norm, hidden)?;
        let feed_forward_post_norm =
            norm_if(post, names.feed_forward_post_norm, &block.norm, hidden)?;
        let mut head_norm = |name: &str, norm: Option<(Norm, usize)>| {
            let (norm, width) = norm.unwrap_or((block.norm, 0));
            norm_if(width > 0, name, &norm, width)
        };
        let [query_norm, key_norm] = block.qk_norms();
        let query_norm = head_norm(names.query_norm, query_norm)?;
        let key_norm = head_norm(names.key_norm, key_norm)?;
        self.skip_keys(&prefix, block);
        let scale = match block.scaled {
            true => Some(self.whole(&format!("{prefix}{}", names.scale), &[1])?),
            false => None,
        };
        Ok(BlockTensors {
            scale,
            token_input: self.token_input(&prefix)?,
            streams: self.block_streams(&prefix, &block.norm)?,
            query_norm,
            key_norm,
            attention_norm,
            attention_post_norm,
            feed_forward_norm,
            feed_forward_post_norm,
            router: match &block.feed_forward.experts {
                Some(experts) => Some(self.router(second, experts, &block.norm)?),
                None => None,
            },
            linears: self.linears([&prefix, second], block)?,
            mixer: self.mixer(&prefix, block)?,
        })
    }

    fn linears(
        &mut self,
        [prefix, second]: [&str; 2],
        block: &BlockDescription,
    ) -> Result<BTreeMap<Linear, LinearTensors>> {
        let mut linears = BTreeMap::new();
        let (of_experts, shapes): (Vec<_>, Vec<_>) = block
            .linears(self.description.hidden)
            .into_iter()
            .partition(|shape| shape.linear.is_of_expert());
        let experts = block.feed_forward.experts;
        for shape in &of_experts {
            let count = experts.map_or(0, |experts| experts.count);
            linears.insert(shape.linear, self.expert(second, shape, count)?);
        }
        // Each shape, with the number of rows before it in a shared tensor, and the total number of rows of that
        // tensor.
        let mut placed = Vec::with_capacity(shapes.len());
        let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
        for shape in &shapes {
            let is_latent =
                |attention: &Attention| attention.latent().is_some_and(|it| it.query.is_some());
            let name = match experts {
                _ if shape.linear == Linear::Query && block.attention().is_some_and(is_latent) => {
                    self.names.latent.query
                }
                Some(_) => self.names.in_block_with_experts(shape.linear),
                None => self.names.linear(shape.linear),
            };
            let rows = rows.entry(name).or_default();
            placed.push((shape, name, *rows));
            *rows += shape.out_features;
        }
        for (shape, name, first) in placed {
            let rows = rows[name];
            let part: Option<Runs> = match self.by_key_head(block, shape.linear) {
                None if rows == shape.out_features => None,
                None => Some((first..first + shape.out_features).into()),
                runs => runs,
            };
            let prefix = match shape.linear {
                Linear::Gate | Linear::Up | Linear::Down => second,
                _ => prefix,
            };
            let slice = |name| TensorSlice {
                name,
                part: part.clone().map(Part::Rows),
            };
            let weight = slice(self.tensor(
                &format!("{prefix}{name}.weight"),
                &[rows, shape.in_features],
            )?);
            let bias = format!("{prefix}{name}.bias");
            let bias = if shape.bias {
                Some(slice(self.tensor(&bias, &[rows])?))
            } else {
                None
            };
            linears.insert(shape.linear, LinearTensors { weight, bias });
        }
        Ok(linears)
    }

    pub(super) fn norm(&mut self, name: &str, norm: &Norm, width: usize) -> Result<NormTensors> {
        // Checkpoints of BERT from before version 1 of `transformers` have these names, which it still reads.
        let is_old = name.ends_with("LayerNorm")
            && self.tensors.contains_key(&format!("{name}.gamma"))
            && !self.tensors.contains_key(&format!("{name}.weight"));
        let [weight, bias] = match is_old {
            true => ["gamma", "beta"],
            false => ["weight", "bias"],
        };
        let bias = format!("{name}.{bias}");
        let mut weight = format!("{name}.{weight}");
        // Falcon-H1 in GGUF has a norm without the ending.
        if !self.tensors.contains_key(&weight) && self.tensors.contains_key(name) {
            name.clone_into(&mut weight);
        }
        let weight = self.tensor(&weight, &[width])?;
        let bias = match norm.kind {
            NormKind::Rms | NormKind::Centered => None,
            NormKind::Layer => Some(self.tensor(&bias, &[width])?),
        };
        Ok(NormTensors { weight, bias })
    }

    pub(super) fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<String> {
        let Some(tensor) = self.tensors.get(name) else {
            return Err(missing(format!(
                "tensor `{name}` is missing, expected one of shape {shape:?}"
            )));
        };
        if tensor.shape != shape {
            return Err(malformed(format!(
                "tensor `{name}` has shape {:?}, expected {shape:?}",
                tensor.shape
            )));
        }
        self.used.insert(name.to_owned());
        Ok(name.to_owned())
    }

    /// Checks that no tensor of the text model is unused (a bias, a norm, an extra block): such a tensor means that the
    /// description is wrong. Other tensors may be anything; returns their names.
    fn account_for_the_rest(&self, roots: &[&str]) -> Result<Vec<String>> {
        let (output, mut unused) = (format!("{}.weight", self.output), Vec::new());
        for name in self
            .tensors
            .keys()
            .filter(|name| !self.used.contains(*name))
        {
            let inert = INERT.iter().any(|end| name.ends_with(end))
                || self.names.inert.iter().any(|part| name.contains(part))
                || *name == output;
            let ours = roots.iter().any(|root| name.starts_with(root));
            if ours && !inert {
                let family = &self.description.family;
                return Err(unsupported(format!(
                    "tensor `{name}` has no part in a {family} model of this configuration; \
                     without it the answers would be wrong"
                )));
            }
            tracing::debug!(tensor = name.as_str(), "not used by this model");
            unused.push(name.clone());
        }
        Ok(unused)
    }
}

impl Names {
    pub(super) fn linear(&self, linear: Linear) -> &'static str {
        match linear {
            Linear::Query => self.query,
            Linear::Key => self.key,
            Linear::Value => self.value,
            Linear::AttentionOutput => self.attention_output,
            Linear::Gate => self.gate,
            Linear::Up => self.up,
            Linear::Down => self.down,
            Linear::MixerInput => self.mixer_input,
            Linear::MixerOutput => self.mixer_output,
            Linear::MixerGate => self.mixer_gate,
            Linear::MixerRate => self.mixer_rate,
            Linear::MixerDecay => self.mixer_decay,
            Linear::ExpertGate(_) | Linear::ExpertUp(_) | Linear::ExpertDown(_) => "",
        }
    }

    /// Returns the name in a block with experts, whose dense feed-forward is the shared expert.
    fn in_block_with_experts(&self, linear: Linear) -> &'static str {
        let [gate, up, down] = self.experts.shared;
        match linear {
            Linear::Gate => gate,
            Linear::Up => up,
            Linear::Down => down,
            other => self.linear(other),
        }
    }
}
