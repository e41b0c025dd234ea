//! RoPE as the metadata of a GGUF file describes it.

use super::ReadF32;
use super::expert_families::GLM4_MOE;
use super::gguf::Reader;
use super::kinds::{LocalRope, NoRope, Windows};
use super::rope::{
    BETA_FAST, BETA_SLOW, Yarn, long_rope_attention_factor, yarn_attention_factor, yarn_factors,
};
use super::traits;
use super::{malformed, missing, unsupported};
use crate::description::{Rope, RopePairing, RopeScaling, limits};
use crate::error::Result;
use crate::gguf::Value;

/// Base of RoPE in a file without the field.
const ROPE_BASE: f32 = 10_000.0;

/// Tensors that hold divisors of RoPE's frequencies: Llama 3's, and Phi-3's for long and short sessions.
pub(super) const ROPE_TENSORS: [&str; 3] = [FREQUENCIES, LONG, SHORT];
const FREQUENCIES: &str = "rope_freqs.weight";
const LONG: &str = "rope_factors_long.weight";
const SHORT: &str = "rope_factors_short.weight";

/// Fields of YaRN that would change the numbers in a way that Triad does not compute, unless they hold the value given
/// here.
const YARN_REFUSED: [(&str, f32); 4] = [
    ("rope.scaling.yarn_beta_fast", BETA_FAST as f32),
    ("rope.scaling.yarn_beta_slow", BETA_SLOW as f32),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
];
/// The logarithm's factor in the divisor of YaRN's factor on cosine and sine.
const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";

impl Reader<'_> {
    /// Reads RoPE of the blocks with full attention.
    pub(super) fn rope(
        &self,
        pairing: RopePairing,
        head_dim: usize,
        context: usize,
        read_f32: &ReadF32<'_>,
    ) -> Result<Rope> {
        let dims = self
            .size("rope.dimension_count", limits::HEAD_DIM)?
            .unwrap_or(head_dim);
        let base = match self.positive("rope.freq_base")? {
            Some(base) => base,
            // Only the older families may leave it out.
            None if matches!(self.family.local_rope, LocalRope::Base(_)) => {
                self.required("rope.freq_base", None)?
            }
            None => ROPE_BASE,
        };
        let base = self.stretched(base, head_dim)?;
        self.check_sections(dims)?;
        let scaling = self.rope_scaling((base, dims), context, read_f32)?;
        self.refuse_windows_of_their_own(head_dim, dims, base)?;
        Ok(Rope {
            dims,
            still: 0,
            base,
            pairing,
            scaling,
        })
    }

    /// Returns whether each block has RoPE.
    pub(super) fn has_rope(&self, windows: &[Option<usize>]) -> Result<Vec<bool>> {
        let images = self.key("deepstack_mapping");
        if self.metadata.get(&images).is_some() {
            return Err(unsupported(format!(
                "metadata sets `{images}`, which Triad does not support"
            )));
        }
        Ok(match self.family.no_rope {
            NoRope::Every(interval) => (1..=windows.len())
                .map(|block| !block.is_multiple_of(interval))
                .collect(),
            NoRope::Global if windows.iter().any(Option::is_some) => {
                windows.iter().map(Option::is_some).collect()
            }
            NoRope::Unwindowed => windows.iter().map(Option::is_some).collect(),
            NoRope::UnlessStated => {
                let stated = self.metadata.bool(&self.key("rope.scaling.finetuned"))?;
                vec![stated.unwrap_or(true); windows.len()]
            }
            NoRope::Everywhere => vec![false; windows.len()],
            NoRope::Never | NoRope::NeverByName | NoRope::Global => vec![true; windows.len()],
        })
    }

    /// Checks which pairs of dimensions rotate by which axis of an image. All axes are the same for text, except the fourth,
    /// whose positions llama.cpp takes as 0.
    fn check_sections(&self, dims: usize) -> Result<()> {
        let key = self.key("rope.dimension_sections");
        if !self.family.images {
            return self.refuse_sections(&key);
        }
        if self.metadata.get(&key).is_none() {
            return Ok(());
        }
        let sections = self.metadata.integers(&key)?.unwrap_or_default();
        let sum = sections.iter().try_fold(0i64, |sum, &section| {
            sum.checked_add(section).filter(|_| section >= 0)
        });
        let pairs = dims / 2;
        let is_whole = sum.is_some_and(|sum| sum == pairs as i64);
        if matches!(sections, [_, _, _] | [_, _, _, 0]) && is_whole {
            return Ok(());
        }
        Err(malformed(format!(
            "metadata field `{key}` is {:?}, expected three numbers of at least 0 that add up to {pairs}, and a 0",
            sections.iter().take(8).collect::<Vec<_>>()
        )))
    }

    /// Refuses axes in the families of text in which llama.cpp reads them.
    fn refuse_sections(&self, key: &str) -> Result<()> {
        let are_read = [traits::GLM4.name, GLM4_MOE.name].contains(&self.family.name);
        let is_zero = |value: &Value| match value {
            Value::Integers(sections) => sections.iter().all(|section| *section == 0),
            _ => false,
        };
        match self.metadata.get(key).filter(|value| !is_zero(value)) {
            Some(_) if are_read => Err(unsupported(format!(
                "metadata sets `{key}`, which Triad does not support for {}",
                self.family.name
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the base that Hunyuan's `alpha` stretches; 0 and less mean no change.
    fn stretched(&self, base: f32, head_dim: usize) -> Result<f32> {
        if self.family.name != traits::HUNYUAN.name {
            return Ok(base);
        }
        let alpha = self.float("rope.scaling.alpha")?;
        Ok(match alpha.filter(|alpha| *alpha > 0.0 && head_dim > 2) {
            Some(alpha) => {
                let dims = head_dim as f64;
                (f64::from(base) * f64::from(alpha).powf(dims / (dims - 2.0))) as f32
            }
            None => base,
        })
    }

    /// Refuses fields by which llama.cpp gives the blocks with a window other heads or another RoPE, but for Gemma 3's base.
    fn refuse_windows_of_their_own(&self, head_dim: usize, dims: usize, base: f32) -> Result<()> {
        if matches!(self.family.windows, Windows::FromLayer | Windows::Never) {
            return Ok(());
        }
        let refused = |field: &str| {
            let key = self.key(field);
            Err(unsupported(format!(
                "metadata sets `{key}` to another value than that of all blocks, which Triad does not support"
            )))
        };
        let sizes = [
            ("rope.dimension_count_swa", dims),
            ("attention.key_length_swa", head_dim),
            ("attention.value_length_swa", head_dim),
        ];
        for (field, size) in sizes {
            if self
                .metadata
                .integer(&self.key(field))?
                .is_some_and(|other| other != size)
            {
                return refused(field);
            }
        }
        let field = "rope.freq_base_swa";
        if !matches!(self.family.local_rope, LocalRope::Base(_))
            && self.float(field)?.is_some_and(|other| other != base)
        {
            return refused(field);
        }
        Ok(())
    }

    /// Returns the factor of RoPE's scaling.
    pub(super) fn rope_factor(&self) -> Result<Option<f32>> {
        let factor = self
            .float("rope.scaling.factor")?
            .or(self.float("rope.scale_linear")?);
        // Both 0 and 1 mean no scaling.
        Ok(factor.filter(|factor| ![0.0, 1.0].contains(factor)))
    }

    fn rope_scaling(
        &self,
        (base, dims): (f32, usize),
        context: usize,
        read_f32: &ReadF32<'_>,
    ) -> Result<RopeScaling> {
        let kind = self.metadata.string(&self.key("rope.scaling.type"))?;
        let factor = self.rope_factor()?;
        let linear = match kind {
            None | Some("linear") => factor,
            // llama.cpp scales the blocks with a window all the same.
            Some("none")
                if factor.is_some()
                    && matches!(
                        self.family.windows,
                        Windows::AllButEvery(_) | Windows::AllButFirstOf(_)
                    ) =>
            {
                let key = self.key("rope.scaling");
                return Err(unsupported(format!(
                    "metadata field `{key}.type` is `none` though a factor is given, which Triad does not support for {}",
                    self.family.name
                )));
            }
            // llama.cpp divides positions by the factor as well; transformers do not.
            Some("longrope") if factor.is_some() => {
                return Err(unsupported(format!(
                    "metadata scales RoPE by `{}` and by longrope's divisors, which Triad does not support",
                    self.key("rope.scaling.factor")
                )));
            }
            Some("yarn") if self.family.yarn => {
                if ROPE_TENSORS.into_iter().any(|name| self.has(name)) {
                    return Err(unsupported(
                        "stored divisors of RoPE together with YaRN, which Triad does not support",
                    ));
                }
                return self.yarn(factor.unwrap_or(1.0), (base, dims), context);
            }
            Some("none" | "longrope") => None,
            Some(other) => {
                return Err(unsupported(format!(
                    "metadata field `{}` is `{}`, which Triad does not run; it runs none, linear, longrope and, without partial or local RoPE, yarn",
                    self.key("rope.scaling.type"),
                    other.chars().take(40).collect::<String>()
                )));
            }
        };
        if let Some(factor) = linear.filter(|factor| !(factor.is_finite() && *factor > 0.0)) {
            return Err(malformed(format!(
                "metadata scales RoPE by {factor}, expected a number above 0"
            )));
        }
        let factors = |name| self.factors(name, dims, read_f32);
        let stored = match (factors(FREQUENCIES)?, factors(SHORT)?, factors(LONG)?) {
            (None, None, None) if kind == Some("longrope") => {
                return Err(missing(format!(
                    "tensors `{SHORT}` and `{LONG}` are missing, expected for longrope"
                )));
            }
            (None, None, None) => None,
            (Some(factors), None, None) => Some(RopeScaling::Factors { factors }),
            (None, Some(short), Some(long)) => Some(self.long_rope(short, long, context)?),
            _ => {
                return Err(malformed(format!(
                    "expected RoPE's divisors as `{FREQUENCIES}` or as `{SHORT}` and `{LONG}`, found another mixture"
                )));
            }
        };
        let attention = "rope.scaling.attn_factor";
        if !matches!(stored, Some(RopeScaling::LongRope { .. }))
            && self.float(attention)?.is_some_and(|factor| factor != 1.0)
        {
            let key = self.key(attention);
            return Err(unsupported(format!(
                "metadata sets `{key}` without longrope, which Triad does not support"
            )));
        }
        match (linear, stored) {
            (None, None) => Ok(RopeScaling::None),
            (Some(factor), None) => Ok(RopeScaling::Linear { factor }),
            (None, Some(stored)) if !self.family.has_local_rope() => Ok(stored),
            (_, Some(_)) => Err(unsupported(
                "stored divisors of RoPE together with another RoPE scaling",
            )),
        }
    }

    fn yarn(&self, factor: f32, (base, dims): (f32, usize), context: usize) -> Result<RopeScaling> {
        let log_multiplier = self.float(LOG_MULTIPLIER)?.unwrap_or(0.0);
        // llama.cpp reads the field in Ministral 3 and with latent vectors.
        let refused = [(LOG_MULTIPLIER, 0.0)];
        let is_read = self.family.temperature || self.family.latent.is_some();
        let refused = &refused[..usize::from(!is_read)];
        for &(field, neutral) in YARN_REFUSED.iter().chain(refused) {
            if self.float(field)?.is_some_and(|value| value != neutral) {
                return Err(unsupported(format!(
                    "metadata sets `{}`, which Triad does not support",
                    self.key(field)
                )));
            }
        }
        if !(factor.is_finite() && factor > 0.0) || base <= 1.0 {
            return Err(malformed(format!(
                "metadata scales RoPE of base {base} by YaRN's factor {factor}, expected a base above 1 and a factor above 0"
            )));
        }
        let factor = f64::from(factor);
        let original = self.size("rope.scaling.original_context_length", limits::CONTEXT)?;
        let original_context = original.unwrap_or(context);
        // No frequency turns so seldom: transformers and llama.cpp differ then.
        if (original_context as f64) < 2.0 * std::f64::consts::PI * BETA_SLOW {
            return Err(unsupported(format!(
                "metadata field `{}` is {original_context}, which Triad does not support with YaRN",
                self.key("rope.scaling.original_context_length")
            )));
        }
        let scaling = Yarn {
            factor,
            beta_fast: BETA_FAST,
            beta_slow: BETA_SLOW,
            original_context,
            truncate: true,
        };
        let stated = self.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
        Ok(RopeScaling::Yarn {
            factors: yarn_factors(scaling, base, dims),
            attention_factor: (yarn_attention_factor(factor, 1.0)
                / yarn_attention_factor(factor, f64::from(log_multiplier))
                * f64::from(stated)) as f32,
        })
    }

    fn long_rope(&self, short: Vec<f32>, long: Vec<f32>, context: usize) -> Result<RopeScaling> {
        let original_context = self
            .size("rope.scaling.original_context_length", limits::CONTEXT)?
            .unwrap_or(context);
        // Without the field llama.cpp multiplies by 1, transformers by a factor that they compute.
        let computed =
            long_rope_attention_factor(context as f64 / original_context as f64, original_context);
        let field = "rope.scaling.attn_factor";
        let attention_factor = match self.positive(field)? {
            Some(factor) => factor,
            None if computed == 1.0 => computed,
            None => {
                return Err(missing(format!(
                    "metadata field `{}` is missing, expected for longrope",
                    self.key(field)
                )));
            }
        };
        Ok(RopeScaling::LongRope {
            short,
            long,
            original_context,
            attention_factor,
        })
    }

    /// Reads a tensor of divisors, if there is one.
    pub(super) fn factors(
        &self,
        name: &str,
        dims: usize,
        read_f32: &ReadF32<'_>,
    ) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.tensors.get(name) else {
            return Ok(None);
        };
        if tensor.shape != [dims / 2] {
            return Err(malformed(format!(
                "tensor `{name}` has shape {:?}, expected {:?}",
                tensor.shape,
                [dims / 2]
            )));
        }
        let factors = read_f32(tensor)?;
        match factors
            .iter()
            .find(|factor| !(factor.is_finite() && **factor > 0.0))
        {
            Some(factor) => Err(malformed(format!(
                "tensor `{name}` holds {factor}, expected numbers above 0"
            ))),
            None => Ok(Some(factors)),
        }
    }
}
