//! Answers with LoRA adapters.

use super::support::gguf::Gguf;
use super::{place, succeed};
use crate::support::{Place, stderr};

const RUN: [&str; 10] = [
    "run",
    "--no-quantize",
    "-m",
    "model.gguf",
    "-n",
    "12",
    "--temperature",
    "0",
    "-p",
    "Hello",
];

fn answer(place: &Place, adapters: &[&str]) -> String {
    let arguments = adapters.iter().flat_map(|adapter| ["--lora", adapter]);
    succeed(&place.triad(&RUN.into_iter().chain(arguments).collect::<Vec<_>>()))
}

#[test]
fn adapters_change_the_answer_by_their_scales() {
    let place = place();
    place.write("one.gguf", Gguf::adapter(0.5).bytes());
    place.write("other.gguf", Gguf::adapter(-0.25).bytes());
    let plain = answer(&place, &[]);
    let one = answer(&place, &["one.gguf"]);
    assert_ne!(one, plain);
    assert_eq!(answer(&place, &["one.gguf:1"]), one);
    assert_eq!(answer(&place, &["one.gguf:0"]), plain);
    assert_eq!(
        answer(&place, &["one.gguf:0.5", "one.gguf:0.5"]),
        one,
        "they add up"
    );
    assert_eq!(
        answer(&place, &["other.gguf:0.5", "one.gguf"]),
        answer(&place, &["one.gguf", "other.gguf:0.5"])
    );
    let refused = place.triad(&[&RUN[..], &["--lora", "one.gguf:inf"]].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("the scale is inf, expected a finite number"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn on_several_processors_an_adapter_gives_the_same_answer_and_a_note() {
    let place = place();
    place.write("one.gguf", Gguf::adapter(0.5).bytes());
    succeed(&place.triad(&[
        "prepare",
        "model.gguf",
        "-o",
        "package",
        "--tokens",
        "100",
        "--prune",
        "0.5",
    ]));
    let run = [
        "run",
        "-m",
        "package",
        "-p",
        "Hello Hello Hello",
        "-n",
        "8",
        "--prefill-chunk",
        "4",
        "--lora",
        "one.gguf",
    ];
    let run = |more: &[&str]| {
        let output = place.triad(&[&run[..], more].concat());
        (
            succeed(&output),
            stderr(&output).contains("note: with an adapter, the CPU computes"),
        )
    };
    let (alone, has_note) = run(&[]);
    assert!(!has_note);
    assert_eq!(run(&["--processors", "cpu,npu"]), (alone, true));
}

#[test]
fn no_output_replaces_an_adapter() {
    let place = place();
    let adapter = Gguf::adapter(0.5).bytes();
    place.write("one.json", &adapter);
    succeed(&place.triad(&["prepare", "model.gguf", "-o", "package", "--tokens", "100"]));
    let run = [
        "run",
        "-m",
        "package",
        "-p",
        "Hello",
        "-n",
        "1",
        "--processors",
        "cpu,npu",
    ];
    let files = ["--lora", "one.json", "--timeline", "one.json"];
    let refused = place.triad(&[&run[..], &files].concat());
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("cannot write one.json: this command reads it"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(std::fs::read(place.path("one.json")).unwrap(), adapter);
}
