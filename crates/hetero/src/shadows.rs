//! The shadows of a package, as the simulation of prompts takes them.

use triad_engine::LinearInput;
use triad_engine::package::preparation::{InputSummary, Preparation, of_blocks};
use triad_plan::prefill::KeptShadows;
use triad_plan::tasks::BlockShadows;

/// Returns the shadows that a package keeps, and the share of hot channels of their inputs; `None` with W4A16.
pub fn kept_shadows(preparation: &Preparation) -> Option<KeptShadows> {
    let of_block = |inputs: &[InputSummary]| {
        let keeps = |input: LinearInput| inputs.iter().any(|it| it.input == input && it.shadow);
        BlockShadows {
            attention: keeps(LinearInput::Attention),
            attention_output: keeps(LinearInput::AttentionOutput),
            feed_forward: keeps(LinearInput::FeedForward),
            down: keeps(LinearInput::Down),
        }
    };
    let kept = || preparation.inputs.iter().filter(|input| input.shadow);
    let hot: usize = kept().map(|input| input.hot_channels.len()).sum();
    let channels: usize = kept().map(|input| input.channels).sum();
    let hot_share = hot as f64 / channels.max(1) as f64;
    (!preparation.inputs.is_empty()).then(|| KeptShadows {
        blocks: of_blocks(&preparation.inputs).map(of_block).collect(),
        hot_share,
    })
}
