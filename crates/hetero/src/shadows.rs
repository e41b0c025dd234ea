//! The shadows of a package, as the simulation of prompts takes them.

use triad_engine::LinearInput;
use triad_engine::package::preparation::{InputSummary, Preparation};
use triad_plan::prefill::KeptShadows;
use triad_plan::tasks::BlockShadows;

/// Returns the shadows that a package keeps, and the share of hot channels of their inputs; `None` with W4A16.
///
/// # Panics
/// If there are not four inputs per block.
pub fn kept_shadows(preparation: &Preparation) -> Option<KeptShadows> {
    let (blocks, rest) = preparation.inputs.as_chunks::<4>();
    assert!(rest.is_empty(), "four inputs a block");
    let of_block = |inputs: &[InputSummary; 4]| {
        let keeps = |input: LinearInput| inputs[input.index()].shadow;
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
    (!blocks.is_empty()).then(|| KeptShadows {
        blocks: blocks.iter().map(of_block).collect(),
        hot_share,
    })
}
