//! Memory: savings of shared graphs (§3.2), savings of hot rows (§3.3), and figure 16.

use super::{Phone, QWEN, model, options, paper, range};
use crate::papers::quotes::Quote;
use crate::papers::{Kind, Section, one, value};
use triad_plan::graph::Graph;
use triad_plan::prefill::{HOT_CHANNELS, Options, Prefill};

pub(super) fn sharing() -> Section {
    let graph = Graph::new(&model(QWEN), 1024, 256);
    let memory = graph.memory();
    let saved = (memory.separate_bytes - memory.shared_bytes) as f64 / 1e9;
    let counted = |what, quote: &Quote, ours| value(what, one(quote.value), ours, Kind::Counted);
    Section::new(
        "sharing",
        "§3.2, Qwen1.5-1.8B, 1024 tokens in chunks of 256. The paper's 75 % corresponds to three of four graphs, as \
         if the graphs of attention had no buffers.",
        vec![
            counted(
                "subgraphs",
                &paper::SUBGRAPHS,
                graph.subgraphs().len() as f64,
            ),
            counted(
                "of these, shared",
                &paper::SHARED,
                graph.static_subgraphs() as f64,
            ),
            counted(
                "memory saved, %",
                &paper::SHARING_PERCENT,
                100.0 * memory.saved(),
            ),
            counted("memory saved, GB", &paper::SHARING_GIGABYTES, saved),
        ],
    )
}

pub(super) fn hot_rows(phone: &Phone) -> Section {
    let memory = Prefill::new(
        &phone.0,
        &model(QWEN),
        512,
        &Options {
            prune: 0.0,
            ..options()
        },
    )
    .memory;
    let hot = memory.shadow_bytes as f64;
    // A second copy of all weights, with as many bytes per weight: 2.
    let copied = hot / HOT_CHANNELS;
    let rest = (memory.graph_bytes + memory.cache_bytes) as f64;
    let saved = |what, percent| value(what, one(paper::HOT_ROWS.value), percent, Kind::Counted);
    Section::new(
        "hot-rows",
        "§3.3, Qwen1.5-1.8B, 512 tokens: savings if the CPU holds 3 % of the weights that shadows read instead of a \
         copy of all, without pruning. The text mentions \"the memory overhead of shadow execution\", but not the \
         format of the copy; its 34.3 % matches none of these. Its \"negligible latency\" is not simulated, since no \
         profile includes disk reads.",
        vec![
            saved("of the shadows' memory, %", 100.0 * (copied - hot) / copied),
            saved(
                "of all memory, copy in 16 bits, %",
                100.0 * (copied - hot) / (rest + copied),
            ),
            saved(
                "of all memory, copy in INT8, %",
                100.0 * (copied - hot) / (2.0 * rest + copied),
            ),
        ],
    )
}

pub(super) fn figure_16(phone: &Phone) -> Section {
    let mut values = Vec::new();
    for name in paper::MODELS {
        let description = model(name);
        let memory = Prefill::new(&phone.0, &description, 512, &options()).memory;
        let embedding = description.vocab * description.hidden;
        let tables = if description.tied_output {
            embedding
        } else {
            2 * embedding
        };
        let graph = Graph::new(&description, 512, 256);
        let weights: usize = graph
            .subgraphs()
            .iter()
            .map(|subgraph| subgraph.weight_bytes)
            .sum();
        // An engine with all weights in INT8, one set of buffers for a chunk, and the cache.
        let buffers = graph.subgraphs()[..6]
            .iter()
            .map(|subgraph| subgraph.activation_bytes_per_row)
            .max()
            .unwrap_or(0)
            * 512;
        let plain = (weights + tables + buffers + memory.cache_bytes) as f64;
        let ours = (memory.bytes() + tables) as f64;
        let most = (1.0, paper::MEMORY_MOST.value);
        values.push(value(
            format!("{name}, against one set of buffers"),
            most,
            ours / plain,
            Kind::Counted,
        ));
        let share = 100.0 * memory.shadow_bytes as f64 / ours;
        let shadows = range(&paper::SHADOWS_MEMORY_FROM, &paper::SHADOWS_MEMORY_TO);
        values.push(value(
            format!("{name}, shadows of all memory, %"),
            shadows,
            share,
            Kind::Counted,
        ));
    }
    Section::new(
        "figure-16",
        "Memory at 512 tokens (§4.5): at most 1.32 times that of engines that reuse buffers, 0.6 to 1 % of it for \
         shadows. The lower end of 1 was added here: the text states only the upper end.",
        values,
    )
}
