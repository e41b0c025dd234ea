//! Predicts the seconds of a prompt's INT8 products on Hexagon's matrix unit, without a device:
//! `cargo run -p triad-processors --features hexagon --example hexagon_costs`
//!
//! The work is that of the device program (`hexagon::cost`). The rates of chips come from public texts, or are guesses;
//! each has a range. Prints tables in Markdown: rates, predictions, and predictions next to published figures.

use triad_model::family::shape;
use triad_processors::hexagon::cost::{Product, Rates, Seconds, one_tile};

/// Tokens of a prompt: that of llm.npu's figure.
const TOKENS: usize = 256;
/// Bytes of VTCM that the program asks for.
const NEAR: usize = 4 << 20;
/// Multiply-adds of a packet of the program's products on HVX (docs/measurements/hexagon.md).
const ON_HVX: f64 = 215.0;
/// Seconds in which HMX stores a plane of 2 KiB: at a vector a cycle of 1.4 GHz, and the longest that a v79 took to issue
/// an output tile of one store (120 cycles).
const PLANE: [f64; 2] = [11e-9, 57e-9];

/// A range: the best case, and the worst one.
type Range = [f64; 2];

/// A chip, with a mark for each rate: C is measured there, P follows from another chip or from one source, U is a guess.
struct Chip {
    name: &'static str,
    /// Vector threads.
    threads: usize,
    /// Multiply-adds per second on HMX in INT8 and in fp16, in 10¹².
    int8: (Range, char),
    fp16: (Range, char),
    /// Packets per second of a vector thread, in 10⁹.
    packets: (Range, char),
    /// Bytes per second of memory, in 10⁹.
    memory: (Range, char),
}

const CHIPS: [Chip; 5] = [
    Chip {
        name: "v69 (8+ Gen 1)",
        threads: 4,
        int8: ([14.15, 14.15], 'C'),
        fp16: ([3.07, 3.07], 'C'),
        packets: ([1.4, 0.7], 'U'),
        memory: ([51.0, 35.0], 'U'),
    },
    Chip {
        name: "v73 (8 Gen 2)",
        threads: 4,
        int8: ([15.4, 11.5], 'P'),
        fp16: ([6.0, 3.07], 'U'),
        packets: ([1.4, 0.7], 'U'),
        memory: ([60.0, 40.0], 'U'),
    },
    Chip {
        name: "v75 (8 Gen 3)",
        threads: 4,
        int8: ([17.3, 11.5], 'U'),
        fp16: ([6.0, 3.07], 'P'),
        packets: ([1.4, 0.7], 'U'),
        memory: ([60.0, 40.0], 'U'),
    },
    Chip {
        name: "v79 (8 Elite)",
        threads: 6,
        int8: ([17.3, 17.3], 'C'),
        fp16: ([8.6, 8.6], 'C'),
        packets: ([2.11, 1.03], 'P'),
        memory: ([56.0, 51.0], 'C'),
    },
    Chip {
        name: "v81 (8 Elite Gen 5)",
        threads: 8,
        int8: ([21.0, 17.3], 'P'),
        fp16: ([10.25, 8.6], 'P'),
        packets: ([2.11, 1.03], 'U'),
        memory: ([70.0, 51.0], 'U'),
    },
];

/// A model: its blocks, and the features and channels of the products of one.
struct Model {
    name: &'static str,
    blocks: usize,
    products: Vec<[usize; 2]>,
}

impl Model {
    /// Returns a model by its sizes: hidden, channels of queries and of keys, and the width of a gated feed-forward.
    fn gated(name: &'static str, blocks: usize, [hidden, query, key, width]: [usize; 4]) -> Self {
        let products = vec![
            [hidden, query + 2 * key],
            [query, hidden],
            [hidden, 2 * width],
            [width, hidden],
        ];
        Self {
            name,
            blocks,
            products,
        }
    }

    fn named(name: &'static str) -> Self {
        let description = shape(name).expect("a model of the papers");
        let block = &description.blocks[0];
        let attention = block.attention().expect("a block with attention");
        let sizes = [
            description.hidden,
            attention.heads * attention.head_dim,
            attention.kv_heads * attention.head_dim,
            block.feed_forward.width,
        ];
        let mut model = Self::gated(name, description.blocks.len(), sizes);
        if !block.feed_forward.gated {
            model.products[2][1] /= 2;
        }
        model
    }

    /// Returns the multiply-adds of a token.
    fn multiplies(&self) -> f64 {
        let of_block: usize = self
            .products
            .iter()
            .map(|[inputs, outputs]| inputs * outputs)
            .sum();
        (self.blocks * of_block) as f64
    }

    /// Returns the seconds of the products of `rows` tokens on HMX, in the best or the worst case.
    fn on_hmx(&self, chip: &Chip, rows: usize, case: usize) -> Seconds {
        let rates = chip.rates(case);
        let mut sum = Seconds::default();
        for [in_features, out_features] in self.products.iter().copied() {
            let product = Product {
                rows,
                in_features,
                out_features,
            };
            let steps = product
                .steps(chip.threads, NEAR)
                .expect("it fits into VTCM");
            let seconds = rates.seconds(&steps);
            let blocks = self.blocks as f64;
            sum.all += blocks * seconds.all;
            sum.unit += blocks * seconds.unit;
            sum.vectors += blocks * seconds.vectors;
            sum.memory += blocks * seconds.memory;
        }
        sum
    }
}

impl Chip {
    fn rates(&self, case: usize) -> Rates {
        Rates {
            multiplies: self.int8.0[case] * 1e12,
            plane: PLANE[case],
            packets: self.packets.0[case] * 1e9,
            memory: self.memory.0[case] * 1e9,
        }
    }
}

/// Returns milliseconds of both cases as text.
fn milliseconds(seconds: Range) -> String {
    let [best, worst] = seconds.map(|seconds| format!("{:.0}", 1e3 * seconds));
    if best == worst {
        best
    } else {
        format!("{best} to {worst}")
    }
}

fn rates() {
    println!(
        "| chip | threads | INT8, 10¹² multiply-adds/s | fp16 | packets of a thread, 10⁹/s | memory, GB/s |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for chip in &CHIPS {
        let range = |([best, worst], mark): (Range, char)| {
            let best = best.to_string();
            let worst = worst.to_string();
            if best == worst {
                format!("{best} ({mark})")
            } else {
                format!("{best} to {worst} ({mark})")
            }
        };
        println!(
            "| {} | {} | {} | {} | {} | {} |",
            chip.name,
            chip.threads,
            range(chip.int8),
            range(chip.fp16),
            range(chip.packets),
            range(chip.memory)
        );
    }
}

fn predictions(models: &[Model]) {
    println!(
        "\n| model, {TOKENS} tokens | chip | HMX in INT8, ms | of these: unit | vector threads | memory | fp16 on the unit alone | HVX |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for model in models {
        for chip in &CHIPS {
            let cases = [0, 1].map(|case| model.on_hmx(chip, TOKENS, case));
            let of = |part: fn(&Seconds) -> f64| milliseconds([part(&cases[0]), part(&cases[1])]);
            let products = model.multiplies() * TOKENS as f64;
            let fp16 = chip.fp16.0.map(|rate| products / (rate * 1e12));
            let hvx = chip
                .packets
                .0
                .map(|rate| products / (ON_HVX * rate * 1e9 * chip.threads as f64));
            println!(
                "| {} | {} | {} | {} | {} | {} | {} | {} |",
                model.name,
                chip.name,
                of(|seconds| seconds.all),
                of(|seconds| seconds.unit),
                of(|seconds| seconds.vectors),
                of(|seconds| seconds.memory),
                milliseconds(fp16),
                milliseconds(hvx)
            );
        }
    }
}

/// A published figure with its source, the measured and the predicted seconds, and how the prediction differs.
struct Published {
    what: &'static str,
    measured: f64,
    predicted: Range,
    note: &'static str,
}

fn published() {
    let [v69, v73, v75, v79, v81] = &CHIPS;
    let qwen3 = Model::gated("qwen3-4b", 36, [2560, 4096, 1024, 9728]);
    let llama = Model::gated("llama-3.2-1b", 16, [2048, 2048, 512, 8192]);
    let unit_fp16 = |model: &Model, rows: usize, chip: &Chip| {
        chip.fp16
            .0
            .map(|rate| model.multiplies() * rows as f64 / (rate * 1e12))
    };
    let product = |chip: &Chip, threads: usize, sizes: [usize; 3]| {
        let [rows, in_features, out_features] = sizes;
        let product = Product {
            rows,
            in_features,
            out_features,
        };
        let steps = product.steps(threads, NEAR).expect("it fits into VTCM");
        [0, 1].map(|case| chip.rates(case).seconds(&steps).all)
    };
    let qwen = Model::named("qwen1.5-1.8b");
    let figures = [
        Published {
            what: "llm.npu, Qwen1.5-1.8B, 256 tokens in 315 ms, 8 Gen 3 (its §3.4)",
            measured: 0.315,
            predicted: [0, 1].map(|case| qwen.on_hmx(v75, 256, case).all),
            note: "its time has launches and float operators; ours has products alone",
        },
        Published {
            what: "llama.cpp, Qwen3-4B, 128 tokens at 474/s, v81 (pull 23368)",
            measured: 128.0 / 474.0,
            predicted: unit_fp16(&qwen3, 128, v81),
            note: "fp16 on the unit alone, without its dequantization and attention",
        },
        Published {
            what: "the same, 512 tokens at 690/s",
            measured: 512.0 / 690.0,
            predicted: unit_fp16(&qwen3, 512, v81),
            note: "as above",
        },
        Published {
            what: "llama.cpp on HVX, Llama-3.2-1B, 128 tokens at 169/s, v79",
            measured: 128.0 / 169.0,
            predicted: v79.packets.0.map(|rate| {
                llama.multiplies() * 128.0 / (ON_HVX * rate * 1e9 * v79.threads as f64)
            }),
            note: "our program's packets; its program multiplies blocks of 32 weights and scales in f32",
        },
        Published {
            what: "a chain of INT8 layers, 2,048 rows of 1,024 to 1,024, 126 µs each, v69 (tinygrad's HMX work)",
            measured: 126e-6,
            predicted: product(v69, 4, [2048, 1024, 1024]),
            note: "it stores bytes, without planes and sums",
        },
        Published {
            what: "the same layer in QNN, 155 µs",
            measured: 155e-6,
            predicted: product(v69, 4, [2048, 1024, 1024]),
            note: "as above",
        },
        Published {
            what: "one tile of W8A8, its planes and their combination, 2.5 µs, v73 (Kokoro-Hexagon)",
            measured: 2.5e-6,
            predicted: [0, 1].map(|case| v73.rates(case).seconds(&one_tile()).all),
            note: "one after the other, on one thread",
        },
    ];
    println!("\n| published | measured | predicted | predicted : measured | difference |");
    println!("| --- | --- | --- | --- | --- |");
    for figure in figures {
        let text = |seconds: f64| {
            if seconds < 1e-3 {
                format!("{:.2} µs", 1e6 * seconds)
            } else {
                format!("{:.0} ms", 1e3 * seconds)
            }
        };
        let [best, worst] = figure.predicted;
        println!(
            "| {} | {} | {} to {} | {:.2} to {:.2} | {} |",
            figure.what,
            text(figure.measured),
            text(best),
            text(worst),
            best / figure.measured,
            worst / figure.measured,
            figure.note
        );
    }
}

fn main() {
    let mut models: Vec<_> = [
        "qwen1.5-1.8b",
        "gemma-2b",
        "phi-2",
        "llama-2-7b",
        "mistral-7b",
    ]
    .map(Model::named)
    .into();
    models.push(Model::gated("qwen3-4b", 36, [2560, 4096, 1024, 9728]));
    rates();
    predictions(&models);
    published();
}
