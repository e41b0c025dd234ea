//! The shadows of a package and of a model, as the simulation and the tasks of prompts take them.

use triad_engine::package::preparation::{InputSummary, Preparation, of_blocks};
use triad_engine::{LinearInput, Model};
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

/// Returns, by block, which inputs have shadows that can be computed separately: those with a static scale.
pub(super) fn shadows(model: &Model) -> Vec<BlockShadows> {
    let of_block = |block: &triad_engine::weights::Block| {
        let has = |input: LinearInput| {
            block
                .inputs
                .as_ref()
                .is_some_and(|inputs| inputs[input.index()].has_shadow())
        };
        BlockShadows {
            attention: has(LinearInput::Attention),
            attention_output: has(LinearInput::AttentionOutput),
            feed_forward: has(LinearInput::FeedForward),
            down: has(LinearInput::Down),
        }
    };
    model.weights().blocks.iter().map(of_block).collect()
}
