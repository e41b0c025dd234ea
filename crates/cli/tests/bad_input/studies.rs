//! Studies of `triad-lab` with a mistake.

use super::support::Place;
use super::support::gguf::Gguf;
use super::{Case, case, input, usage};

pub fn cases() -> Vec<Case> {
    let domain = |what, argument: &'static str, message: &[&'static str]| {
        let prepare = |place: &Place| {
            place.write("model.gguf", Gguf::tiny().bytes());
            place.write("one.txt", "A single text.");
        };
        case(
            what,
            &[
                "triad-lab",
                "study",
                "hot-channels",
                "-m",
                "model.gguf",
                "--domain",
                argument,
            ],
            prepare,
            1,
            message,
        )
    };
    vec![
        case(
            "study of a package",
            &["triad-lab", "study", "outliers", "-m", "package"],
            |place| place.write("package/package.json", ""),
            1,
            &["package is a package", "expected the model file"],
        ),
        domain(
            "domain of a single text",
            "short=one.txt",
            &["the domain short", "expected one to calibrate on"],
        ),
        domain(
            "domain without its file",
            "short=no.txt",
            &["no.txt", "No such file"],
        ),
        case(
            "two domains of one name",
            &[
                "triad-lab",
                "study",
                "hot-channels",
                "-m",
                "model.gguf",
                "--domain",
                "a=one.txt",
                "--domain",
                "a=one.txt",
            ],
            |place| {
                place.write("model.gguf", Gguf::tiny().bytes());
                place.write("one.txt", "A single text.");
            },
            1,
            &["--domain a is given twice"],
        ),
        input(
            "benchmark without its file",
            &[
                "triad-lab",
                "study",
                "prune",
                "-m",
                "model.gguf",
                "--task",
                "lambada",
            ],
            &["1 --task and 0 --task-data"],
        ),
        case(
            "calibration text with nothing to hold out",
            &[
                "triad-lab",
                "study",
                "thresholds",
                "-m",
                "model.gguf",
                "--calibrate",
                "one.txt",
            ],
            |place| {
                place.write("model.gguf", Gguf::tiny().bytes());
                place.write("one.txt", "A single text.");
            },
            1,
            &["held-out calibration tokens is 0", "every fourth text"],
        ),
        input(
            "folder that is not there for the figure",
            &[
                "triad-lab",
                "study",
                "outliers",
                "-m",
                "model.gguf",
                "--svg",
                "no/figure.svg",
            ],
            &["cannot write no/figure.svg: No such file"],
        ),
        usage(
            "unknown study",
            &["triad-lab", "study", "weather"],
            &["weather"],
        ),
        usage(
            "domain without a name",
            &["triad-lab", "study", "hot-channels", "--domain", "wiki.txt"],
            &["NAME=FILE"],
        ),
        usage(
            "rates above 100 %",
            &["triad-lab", "study", "prune", "--rates", "0,101"],
            &["--rates", "0 to 100"],
        ),
        usage(
            "outlier share above 1",
            &["triad-lab", "study", "outliers", "--outlier-share", "3"],
            &["--outlier-share", "0 to 1"],
        ),
    ]
}
