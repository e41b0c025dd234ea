//! The linear layers of a block that the names in an adapter's file refer to.

use super::expert_families;
use super::gemma_families;
use super::gguf_families::FAMILIES;
use super::kinds::Layout;
use super::mixer_families;
use super::names::{self, Names};
use super::tensors::ROOTS;
use super::traits::{self, Family};
use super::unsupported;
use crate::description::{
    BlockDescription, HeadSharing, Linear, Mixer, ModelDescription, RopePairing,
};
use crate::error::Result;

/// Every family by name; GGUF's list lacks families that it calls by the name of another.
pub(super) const ALL: [&Family; 44] = [
    &traits::LLAMA,
    &traits::MISTRAL,
    &traits::QWEN2,
    &traits::QWEN3,
    &gemma_families::GEMMA,
    &gemma_families::GEMMA2,
    &gemma_families::GEMMA3,
    &gemma_families::GEMMA3N,
    &gemma_families::GEMMA4,
    &traits::PHI2,
    &traits::PHI3,
    &traits::ARCEE,
    &traits::GRANITE,
    &traits::MINICPM,
    &traits::SMOLLM3,
    &traits::ERNIE4_5,
    &traits::SEED_OSS,
    &traits::MINISTRAL3,
    &expert_families::QWEN2_MOE,
    &expert_families::QWEN3_MOE,
    &expert_families::OLMOE,
    &expert_families::GPT_OSS,
    &expert_families::MIXTRAL,
    &expert_families::LFM2_MOE,
    &expert_families::GRANITE_MOE,
    &expert_families::ERNIE4_5_MOE,
    &expert_families::GLM4_MOE,
    &traits::GLM,
    &traits::GLM4,
    &traits::HUNYUAN,
    &traits::EXAONE4,
    &traits::COHERE2,
    &traits::OLMO3,
    &traits::QWEN2_VL,
    &traits::QWEN3_VL,
    &mixer_families::LFM2,
    &mixer_families::QWEN3_5,
    &expert_families::QWEN3_5_MOE,
    &expert_families::QWEN3_VL_MOE,
    &expert_families::QWEN3_NEXT,
    &expert_families::GRANITE_HYBRID_MOE,
    &expert_families::DEEPSEEK2,
    &expert_families::NEMOTRON_H,
    &mixer_families::FALCON_H1,
];

/// The names of linear layers in the adapters of one model, in one layout.
pub(crate) struct Modules {
    /// Possible prefixes of the names of blocks.
    roots: Vec<&'static str>,
    /// Prefix of a block's number.
    block: &'static str,
    blocks: usize,
    /// Names after the block's number, each with its layers in the order of their rows.
    linears: Vec<(&'static str, Vec<Linear>)>,
    /// The order of rows of query and key layers for RoPE.
    pub(crate) pairing: RopePairing,
}

impl Modules {
    /// Returns the names in safetensors of `transformers`.
    ///
    /// # Errors
    /// If the model's family is unknown.
    pub(crate) fn hugging_face(description: &ModelDescription) -> Result<Self> {
        let family = with_own_blocks(family(description)?)?;
        let names = &family.names;
        let roots = ROOTS.iter().map(|(root, _)| *root).collect();
        let linears = in_order(layers(names), description, HeadSharing::Adjacent);
        Ok(Self::new(
            roots,
            names,
            linears,
            description,
            family.pairing,
        ))
    }

    /// Returns the names in GGUF, in an adapter for models of `architecture`.
    ///
    /// # Errors
    /// If the model has another architecture, or its family is unknown.
    pub(crate) fn gguf(architecture: &str, description: &ModelDescription) -> Result<Self> {
        let family = with_own_blocks(family(description)?)?;
        let is_it = |(name, other, _): &&(&str, &Family, RopePairing)| {
            *name == architecture
                && (other.name == family.name
                    || (other.name, family.name) == ("llama", "mistral")
                    || (other.name, family.name) == ("llama", "mixtral"))
        };
        let Some((.., pairing)) = FAMILIES.iter().find(is_it) else {
            return Err(unsupported(format!(
                "metadata field `general.architecture` is `{}`, expected that of the model, which is of the family {}",
                architecture.chars().take(40).collect::<String>(),
                family.name
            )));
        };
        let names = &names::gguf(family.mixers, family.head_sharing);
        let mut linears = in_order(layers(names), description, family.head_sharing);
        linears.push(("attn_qkv", vec![Linear::Query, Linear::Key, Linear::Value]));
        let is_one = family.names.gate == family.names.up;
        if is_one && family.names.gate.ends_with("gate_up_proj") {
            let up = linears.iter_mut().filter(|(name, _)| *name == names.up);
            up.for_each(|(_, linears)| *linears = vec![Linear::Gate, Linear::Up]);
        }
        Ok(Self::new(vec![""], names, linears, description, *pairing))
    }

    fn new(
        roots: Vec<&'static str>,
        names: &Names,
        linears: Vec<(&'static str, Vec<Linear>)>,
        description: &ModelDescription,
        pairing: RopePairing,
    ) -> Self {
        Self {
            roots,
            block: names.block,
            blocks: description.blocks.len(),
            linears,
            pairing,
        }
    }

    /// Returns the block of a module, and its layers in the order of their rows; `None` if it is no linear layer of a
    /// block of the model.
    pub(crate) fn find(&self, module: &str) -> Option<(usize, &[Linear])> {
        self.roots.iter().find_map(|root| {
            let (block, name) = module
                .strip_prefix(root)?
                .strip_prefix(self.block)?
                .split_once('.')?;
            let number = block
                .parse()
                .ok()
                .filter(|number: &usize| *number < self.blocks)?;
            // Rejects "+1" and "01", which would be second names of a block.
            let is_plain = number.to_string() == block;
            let (_, linears) = self
                .linears
                .iter()
                .find(|(other, _)| is_plain && *other == name)?;
            Some((number, &linears[..]))
        })
    }
}

/// Refuses a family whose blocks have other numbers in its files, or linear layers that have no name here.
fn with_own_blocks(family: &'static Family) -> Result<&'static Family> {
    match family.layout {
        Layout::Blocks if family.latent.is_none() => Ok(family),
        Layout::Blocks | Layout::SingleParts | Layout::TwoMixers => Err(unsupported(format!(
            "the model is of the family {:?}, for which no adapter can be read",
            family.name
        ))),
    }
}

fn family(description: &ModelDescription) -> Result<&'static Family> {
    let family = ALL
        .into_iter()
        .find(|family| family.name == description.family);
    family.ok_or_else(|| {
        unsupported(format!(
            "the model is of the family {:?}, for which no adapter can be read",
            description.family
        ))
    })
}

/// Returns the layers whose rows and columns have one order in the model and in an adapter of this layout: value heads of
/// DeltaNets may have different ones.
fn in_order(
    mut layers: Vec<(&'static str, Vec<Linear>)>,
    description: &ModelDescription,
    of_adapter: HeadSharing,
) -> Vec<(&'static str, Vec<Linear>)> {
    let is_other = |block: &BlockDescription| match &block.mixer {
        Mixer::DeltaNet(net) => {
            net.sharing != of_adapter && net.key_heads > 1 && net.value_heads > net.key_heads
        }
        Mixer::Attention(_) | Mixer::ShortConv(_) | Mixer::Mamba2(_) => false,
    };
    if description.blocks.iter().any(is_other) {
        layers.retain(|(_, linears)| !linears.iter().any(|linear| linear.is_of_mixer()));
    }
    layers
}

/// Returns the layers under each name.
fn layers(names: &Names) -> Vec<(&'static str, Vec<Linear>)> {
    let mut layers: Vec<(&str, Vec<Linear>)> = Vec::new();
    for linear in [
        Linear::Query,
        Linear::Key,
        Linear::Value,
        Linear::AttentionOutput,
        Linear::Gate,
        Linear::Up,
        Linear::Down,
        Linear::MixerInput,
        Linear::MixerOutput,
        Linear::MixerGate,
        Linear::MixerRate,
        Linear::MixerDecay,
    ] {
        let name = names.linear(linear);
        let is_by_key_head = |one: &str, other: &str| one == other && name == one;
        if is_by_key_head(names.mixer_input, names.mixer_gate)
            || is_by_key_head(names.mixer_rate, names.mixer_decay)
        {
            // Rows of several layers take turns.
            continue;
        }
        match layers.iter_mut().find(|(other, _)| *other == name) {
            Some((_, linears)) => linears.push(linear),
            None if name.is_empty() => {}
            None => layers.push((name, vec![linear])),
        }
    }
    layers
}
