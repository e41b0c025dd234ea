//! Models with a head that predicts one more token.

use std::path::Path;

use super::*;

fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/mtp");
    folder.join(name).to_str().unwrap().to_owned()
}

#[test]
fn a_head_proposes_by_itself_and_the_answer_stays_the_same() {
    let place = place();
    for (file, accepts) in [("perfect.gguf", true), ("wrong.gguf", false)] {
        let model = golden(file);
        let arguments = [
            "run",
            "--raw",
            "--no-quantize",
            "-m",
            &model,
            "-p",
            "t90",
            "-n",
            "24",
            "--temperature",
            "0",
        ];
        let run = |more: &[&str]| place.triad(&[&arguments[..], more].concat());
        let plain = json(&run(&["--json", "--speculate", "off"]));
        for speculate in ["mtp", "auto"] {
            let found = json(&run(&["--json", "--speculate", speculate]));
            assert_eq!(found["tokens"], plain["tokens"], "{file}, {speculate}");
            let speculation = &found["speculation"];
            let [proposed, accepted] =
                ["mtp_proposed", "mtp_accepted"].map(|key| speculation[key].as_u64().unwrap());
            assert!(proposed > 0, "{file}: the head was not used");
            let expected = if accepts { proposed } else { 0 };
            assert_eq!(accepted, expected, "{file}, {speculate}: {speculation}");
        }
        let note = stderr(&run(&[]));
        assert!(note.contains("by the model's MTP head"), "{note}");
        let info = succeed(&place.triad(&["info", &model]));
        assert!(info.contains("MTP head"), "{info}");
    }
}

#[test]
fn a_model_without_a_head_is_named() {
    let place = place();
    let refused = place.triad(&[&RUN[..], &["-p", "Hello", "--speculate", "mtp"]].concat());
    assert_eq!(refused.status.code(), Some(1));
    let error = stderr(&refused);
    assert!(
        error.contains("no head that predicts more tokens"),
        "{error}"
    );
}
