//! Tests `triad-lab study` on a tiny model: its output agrees with other commands and with what it counts.

use roxmltree::Document;
use serde_json::Value as Json;

use crate::outcome::{json, succeed};
use crate::support::Place;
use crate::support::gguf::{Gguf, Value};

/// Sizes of the linear layers of the tiny model, by the input that they read.
const ROWS: [(u64, u64); 4] = [(32, 64), (32, 32), (32, 96), (48, 32)];

fn place() -> Place {
    let place = Place::new();
    place.write(
        "model.gguf",
        Gguf::tiny()
            .with("llama.context_length", Value::U32(128))
            .bytes(),
    );
    let texts: Vec<_> = (0..8)
        .map(|text| {
            format!(
                "{{\"text\": \"Text {text} of them, {}\"}}",
                "ab".repeat(text)
            )
        })
        .collect();
    place.write("calibration.jsonl", texts.join("\n"));
    place.write(
        "text.txt",
        " = Ice = \n\n Ice is cold water .\n It floats .\n".repeat(4),
    );
    place.write(
        "lambada.jsonl",
        "{\"text\": \"We ate the cake\"}\n{\"text\": \"Then she said no\"}",
    );
    place
}

const CALIBRATE: [&str; 2] = ["--calibrate", "calibration.jsonl"];

fn study(place: &Place, study: &str, more: &[&str]) -> Json {
    json(
        &place.triad(
            &[
                &["triad-lab", "study", study, "-m", "model.gguf", "--json"],
                more,
            ]
            .concat(),
        ),
    )
}

/// Returns the first metric of `triad eval`.
fn eval(place: &Place, more: &[&str]) -> f64 {
    number(
        &json(&place.triad(&[&["eval", "--json"], more].concat()))["results"][0]["metrics"][0]["value"],
    )
}

fn number(value: &Json) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

fn same(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-9 * b.abs(), "{a} is not {b}");
}

/// Draws a study's figure and returns its number of panels and its texts.
fn figure(place: &Place, study: &str, more: &[&str]) -> (usize, Vec<String>) {
    succeed(
        &place.triad(
            &[
                &[
                    "triad-lab",
                    "study",
                    study,
                    "-m",
                    "model.gguf",
                    "--svg",
                    "figure.svg",
                ],
                more,
            ]
            .concat(),
        ),
    );
    let svg = std::fs::read_to_string(place.path("figure.svg")).unwrap();
    let document = Document::parse(&svg).unwrap();
    let texts = document
        .descendants()
        .filter(|node| node.has_tag_name("text"));
    let texts = texts
        .map(|node| node.text().unwrap_or_default().to_owned())
        .collect();
    (
        document
            .descendants()
            .filter(|node| node.attribute("class") == Some("plot"))
            .count(),
        texts,
    )
}

#[test]
fn hot_channels_are_the_fewest_that_give_their_share_of_the_outliers() {
    let place = place();
    let found = study(
        &place,
        "outliers",
        &[
            &CALIBRATE[..],
            &["--outlier-share", "0.2", "--hot-share", "0.6"],
        ]
        .concat(),
    );
    let inputs = found["inputs"].as_array().unwrap();
    assert_eq!(inputs.len(), 4);
    for (input, kind) in inputs.iter().zip(found["kinds"].as_array().unwrap()) {
        let [channels, hot, of_a_token, ever] =
            ["channels", "hot", "of_a_token", "ever"].map(|name| number(&input[name]));
        assert!(
            of_a_token > 0.0 && of_a_token <= 0.2 * channels && hot <= ever && ever <= channels,
            "{input}"
        );
        let skew: Vec<_> = kind["skew"]
            .as_array()
            .unwrap()
            .iter()
            .map(|point| (number(&point[0]), number(&point[1])))
            .collect();
        assert!(
            skew.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1)
                && skew.last().is_some_and(|last| last.1 == 1.0)
        );
        let below = skew
            .iter()
            .rfind(|(share, _)| share * channels <= hot - 1.0);
        assert!(
            below.is_none_or(|(_, given)| *given < 0.6),
            "fewer than {hot} channels are enough: {kind}"
        );
        let above = skew
            .iter()
            .find(|(share, _)| share * channels >= hot)
            .unwrap();
        assert!(above.1 >= 0.6, "{hot} channels are not enough: {kind}");
        same(number(&kind["hot_share"]), hot / channels);
    }
}

#[test]
fn shadow_memory_is_that_of_the_rows_of_the_channels_counted() {
    let place = place();
    let found = study(
        &place,
        "outliers",
        &[
            &CALIBRATE[..],
            &["--outlier-share", "0.2", "--prune", "0.75"],
        ]
        .concat(),
    );
    let inputs = found["inputs"].as_array().unwrap();
    let rows = |count: &str, only_kept: bool| -> f64 {
        let inputs = inputs
            .iter()
            .zip(ROWS)
            .filter(|(input, _)| !only_kept || input["shadow"] == true);
        inputs
            .map(|(input, (_, row))| number(&input[count]) * row as f64)
            .sum()
    };
    for (name, only_kept) in [("unpruned", false), ("pruned", true)] {
        let memory = &found["memory"][name];
        for (bytes, count) in [("all", "channels"), ("ever", "ever"), ("hot", "hot")] {
            same(number(&memory[bytes]), rows(count, only_kept));
        }
        let shares = &found["memory_shares"][usize::from(only_kept)];
        same(
            number(&shares["saving"]),
            1.0 - number(&memory["hot"]) / number(&memory["all"]),
        );
        same(
            number(&shares["saving_of_ever"]),
            1.0 - number(&memory["hot"]) / number(&memory["ever"]),
        );
    }
    assert_eq!(
        number(&found["memory"]["unpruned"]["all"]),
        ROWS.map(|(channels, row)| channels * row)
            .iter()
            .sum::<u64>() as f64
    );
    // One of four inputs keeps its shadow: the most important one.
    let importance = |input: &&Json| number(&input["importance"]);
    let most = inputs
        .iter()
        .max_by(|a, b| importance(a).total_cmp(&importance(b)))
        .unwrap();
    assert_eq!(
        inputs
            .iter()
            .filter(|input| input["shadow"] == true)
            .collect::<Vec<_>>(),
        [most]
    );
}

#[test]
fn pruned_models_do_as_well_as_in_eval() {
    let place = place();
    let lambada = ["--task", "lambada", "--task-data", "lambada.jsonl"];
    let options = [
        &CALIBRATE[..],
        &[
            "--data",
            "text.txt",
            "--rates",
            "0,50,100",
            "--smoothing",
            "0.7,0",
        ],
        &lambada,
    ]
    .concat();
    let found = study(&place, "prune", &options);
    let rates = |curve: usize| &found["curves"][curve]["rates"];
    let shadows: Vec<_> = rates(0)
        .as_array()
        .unwrap()
        .iter()
        .map(|rate| number(&rate["shadows"]))
        .collect();
    assert_eq!(
        (shadows, number(&found["inputs"])),
        (vec![4.0, 2.0, 0.0], 4.0)
    );
    let model = ["-m", "model.gguf"];
    let text = ["--task", "perplexity", "--data", "text.txt"];
    let words = ["--task", "lambada", "--data", "lambada.jsonl"];
    let check = |measured: &Json, method: &[&str]| {
        same(
            number(&measured["perplexity"]["value"]),
            eval(&place, &[&model[..], &text, method].concat()),
        );
        same(
            number(&measured["tasks"][0]["value"]),
            eval(&place, &[&model[..], &words, method].concat()),
        );
        assert_eq!(
            (
                &measured["tasks"][0]["task"],
                &measured["tasks"][0]["metric"]
            ),
            (&"lambada".into(), &"acc".into())
        );
    };
    check(&found["float"], &["--method", "float"]);
    for (curve, smoothing) in ["0.7", "0"].into_iter().enumerate() {
        for (index, rate) in ["0", "0.5", "1"].into_iter().enumerate() {
            let method = [
                "--method",
                "shadow",
                "--prune",
                rate,
                "--smoothing",
                smoothing,
            ];
            check(&rates(curve)[index], &[&method, &CALIBRATE[..]].concat());
        }
    }
    let perplexity = |curve: usize| number(&rates(curve)[2]["perplexity"]["value"]);
    assert_ne!(perplexity(0), perplexity(1), "smoothing does something");
    assert_eq!(number(&found["float"]["shadow_time_share"]), 0.0);
    let outliers = |index: usize| number(&rates(0)[index]["held_out"]["int8"]["outliers"]);
    assert!(outliers(0) > outliers(1) && outliers(1) > 0.0 && outliers(2) == 0.0);
}

#[test]
fn clipped_models_do_as_well_as_packages_prepared_that_way() {
    let place = place();
    let found = study(
        &place,
        "thresholds",
        &[&CALIBRATE[..], &["--data", "text.txt"]].concat(),
    );
    let ways = found["ways"].as_array().unwrap();
    assert_eq!(ways.len(), 12);
    for way in ways {
        let text = |name: &str| way[name].as_str().unwrap();
        let prune = if way["shadow"] == true { "none" } else { "1" };
        let options = [
            "--threshold",
            text("threshold"),
            "--weights",
            text("weights"),
            "--prune",
            prune,
            "--force",
        ];
        succeed(
            &place.triad(
                &[
                    &["prepare", "model.gguf", "-o", "package"],
                    &CALIBRATE[..],
                    &options,
                ]
                .concat(),
            ),
        );
        let prepared = eval(
            &place,
            &[
                "-m",
                "package",
                "--task",
                "perplexity",
                "--data",
                "text.txt",
            ],
        );
        same(number(&way["perplexity"]["value"]), prepared);
        let beyond = number(&way["outlier_share"]);
        match text("threshold") {
            "max-min" => assert_eq!(beyond, 0.0, "{way}"),
            "percentile" => assert!(beyond > 0.0 && beyond <= 0.01, "{way}"),
            _ => (),
        }
    }
    same(
        number(&found["float"]["perplexity"]["value"]),
        eval(
            &place,
            &[
                "-m",
                "model.gguf",
                "--task",
                "perplexity",
                "--data",
                "text.txt",
            ],
        ),
    );
}

#[test]
fn without_a_text_perplexity_is_that_of_held_out_calibration_text() {
    let place = place();
    let found = study(
        &place,
        "prune",
        &[&CALIBRATE[..], &["--rates", "85"]].concat(),
    );
    assert_eq!(found["perplexity_on"], "held-out calibration text");
    let measured = &found["curves"][0]["rates"][0];
    same(
        number(&measured["perplexity"]["value"]),
        number(&measured["held_out"]["loss"]).exp(),
    );
    assert!(number(&measured["perplexity"]["standard_error"]) > 0.0);
}

/// Returns texts of which every second one is a copy of the previous one.
fn twins(text: &str) -> String {
    (0..6)
        .map(|index| format!("{{\"text\": \"{text} {}\"}}\n", index / 2))
        .collect()
}

#[test]
fn a_domain_run_as_calibrated_reads_no_row_and_another_one_does() {
    let place = place();
    place.write("same.jsonl", twins("The same once more, word by word."));
    place.write(
        "other.jsonl",
        twins("0123456789 ABCDEFGHIJKLMNOPQRSTUVWXYZ +-*/ {}[]"),
    );
    let domains = [
        "--domain",
        "same=same.jsonl",
        "--domain",
        "code=other.jsonl",
    ];
    let found = study(
        &place,
        "hot-channels",
        &[&domains[..], &["--tokens", "200", "--hot-share", "1"]].concat(),
    );
    let names: Vec<_> = found["domains"]
        .as_array()
        .unwrap()
        .iter()
        .map(|domain| domain["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "encyclopedia",
            "dialogue",
            "code",
            "chinese",
            "screens",
            "same"
        ]
    );
    let pairs = found["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), names.len() * names.len());
    let mut read = 0.0;
    for pair in pairs {
        let [outliers, hot, rate] =
            ["outliers", "hot_outliers", "hit_rate"].map(|name| number(&pair[name]));
        same(rate, hot / outliers);
        let rows = &pair["rows"];
        let [hits, misses, bytes] =
            ["hits", "misses", "bytes_read"].map(|name| number(&rows[name]));
        same(number(&pair["row_hit_rate"]), hits / (hits + misses));
        same(
            number(&pair["bytes_read_per_token"]),
            bytes / number(&pair["tokens"]),
        );
        assert!(bytes >= 32.0 * misses && bytes <= 96.0 * misses, "{pair}");
        assert_eq!(hot < outliers, misses > 0.0, "{pair}");
        if ["same", "code"].contains(&pair["run_on"].as_str().unwrap()) {
            if pair["calibrated_on"] == pair["run_on"] {
                assert_eq!((rate, bytes), (1.0, 0.0), "{pair}");
            } else {
                read += bytes;
            }
        }
    }
    assert!(read > 0.0, "domains differ");
}

#[test]
fn fewer_hot_channels_take_less_memory_and_hit_less() {
    let place = place();
    let run = |share: &str| {
        study(
            &place,
            "hot-channels",
            &["--tokens", "200", "--hot-share", share],
        )
    };
    let sum = |found: &Json, list: &str, name: &str| -> f64 {
        found[list]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| number(&entry[name]))
            .sum()
    };
    let (few, many) = (run("0.2"), run("1"));
    for (list, name) in [
        ("domains", "hot_bytes"),
        ("domains", "hot_channels"),
        ("pairs", "hit_rate"),
        ("pairs", "row_hit_rate"),
    ] {
        assert!(sum(&few, list, name) < sum(&many, list, name), "{name}");
    }
    assert_eq!(
        sum(&few, "pairs", "outliers"),
        sum(&many, "pairs", "outliers")
    );
}

#[test]
fn every_study_draws_a_figure_and_prints_a_table() {
    let place = place();
    let lambada = ["--task", "lambada", "--task-data", "lambada.jsonl"];
    let heat = ["--tokens", "100"];
    for (name, more, panels, words) in [
        (
            "outliers",
            &CALIBRATE[..],
            4,
            &["Importance", "gate, up", "3 % of the channels"][..],
        ),
        (
            "prune",
            &[&CALIBRATE[..], &["--rates", "0,100"], &lambada].concat(),
            3,
            &["Accuracy", "LAMBADA, smoothed by 0.7", "float"],
        ),
        (
            "thresholds",
            &CALIBRATE[..],
            2,
            &["max-min", "percentile", "least error", "float"],
        ),
        (
            "hot-channels",
            &heat[..],
            4,
            &["chinese", "Stall", "calibrated on"],
        ),
    ] {
        let (plots, texts) = figure(&place, name, more);
        assert_eq!(plots, panels, "{name}");
        assert!(
            words
                .iter()
                .all(|word| texts.iter().any(|text| text == word)),
            "{name}: {texts:?}"
        );
        let table = succeed(
            &place.triad(&[&["triad-lab", "study", name, "-m", "model.gguf"], more].concat()),
        );
        assert!(
            table.lines().count() > 5 && table.starts_with("model.gguf, "),
            "{table}"
        );
    }
}
