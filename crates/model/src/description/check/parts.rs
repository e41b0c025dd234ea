//! The checks of latent vectors and of groups of experts.

use super::{limits, malformed, size};
use crate::description::{Attention, ExpertGroups, Latent, NormKind};
use crate::error::Result;

impl ExpertGroups {
    /// Checks the groups of `experts`, of which a row has `used_experts`.
    pub(super) fn check(self, experts: usize, used_experts: usize) -> Result<()> {
        let Self { count, used, score } = self;
        size("the number of groups of experts", count, experts)?;
        size("the number of groups of a row", used, count)?;
        let of_group = experts / count;
        if !experts.is_multiple_of(count) || of_group < score.experts() {
            return Err(malformed(format!(
                "{experts} experts can't be cut into {count} groups: expected a divisor of {experts}, and groups of at \
                 least {}",
                score.experts()
            )));
        }
        size(
            "the number of experts of a row",
            used_experts,
            used * of_group,
        )
    }
}

impl Attention {
    pub(super) fn check_latent(&self, latent: Latent) -> Result<()> {
        let Latent {
            query,
            width,
            key_dim,
            value_dim,
        } = latent;
        size(
            "the width of a latent query",
            query.unwrap_or(1),
            limits::HIDDEN,
        )?;
        size("the width of a latent vector", width, limits::HEAD_DIM)?;
        size("the width of a key without RoPE", key_dim, limits::HEAD_DIM)?;
        size("the width of a value", value_dim, limits::HEAD_DIM)?;
        let is_plain = !self.output_gate && self.value_norm.is_none();
        let rms = self.qk_norm.is_some_and(|it| it.norm.kind == NormKind::Rms);
        if self.kv_heads != 1 || self.head_dim != width + self.rope.dims || !is_plain || !rms {
            return Err(malformed(format!(
                "latent vectors of {width} numbers with {} key-value heads of {}: expected one head of {width} and the \
                 {} numbers with RoPE, RMS norms, and neither gates nor norms of values",
                self.kv_heads, self.head_dim, self.rope.dims
            )));
        }
        Ok(())
    }
}
