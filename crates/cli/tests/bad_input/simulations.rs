//! Devices, contention and files that `triad-lab simulate` refuses.

use super::support::Place;
use super::{Case, case, usage};

/// Returns a case of a device profile with one line added at its beginning.
fn profile(what: &'static str, content: &'static str, message: &[&'static str]) -> Case {
    let arguments = [
        "triad-lab",
        "simulate",
        "--shape",
        "phi-2",
        "--device",
        "phone.toml",
    ];
    let mut case = case(
        what,
        &arguments,
        move |place: &Place| place.write("phone.toml", content),
        1,
        message,
    );
    case.message.push("phone.toml");
    case
}

pub fn cases() -> Vec<Case> {
    let simulate = |what, arguments: &[&'static str], message: &[&'static str]| {
        let arguments = [
            &["triad-lab", "simulate", "--shape", "qwen1.5-1.8b"],
            arguments,
        ]
        .concat();
        case(what, &arguments, |_| (), 1, message)
    };
    vec![
        simulate(
            "device that is none",
            &["--device", "phone"],
            &["phone", "snapdragon-8gen3", "TOML"],
        ),
        profile("profile of a device that is not TOML", "[npu", &["TOML"]),
        profile(
            "profile of a device without its processors",
            "name = \"Phone\"\nwake_milliseconds = 1.0\n",
            &["npu"],
        ),
        profile(
            "profile of a device with an unknown field",
            "name = \"Phone\"\ncolour = \"red\"\n",
            &["colour"],
        ),
        simulate(
            "device that never ends",
            &["--device", "/dev/zero"],
            &["/dev/zero", "longer than 1024 KiB", "TOML"],
        ),
        simulate(
            "prompt to simulate in too many chunks",
            &["--prompt", "8192", "--prefill-chunk", "1"],
            &["8192 chunks, more than 1024", "--prefill-chunk"],
        ),
        simulate(
            "contention where nothing runs",
            &["--contend", "gpu:0.5@0-100ms"],
            &["gpu", "cpu or npu"],
        ),
        simulate(
            "timeline in an unknown format",
            &["--timeline", "run.txt"],
            &["run.txt", ".json or .svg"],
        ),
        simulate(
            "prompt to simulate beyond the context",
            &["--prompt", "100000"],
            &["100000", "32768"],
        ),
        usage(
            "contention that ends before it begins",
            &["triad-lab", "simulate", "--contend", "cpu:0.5@200-100ms"],
            &["cpu:0.5@100-200ms"],
        ),
        case(
            "prompt to study beyond the context",
            &[
                "triad-lab",
                "study",
                "ablation",
                "--shape",
                "phi-2",
                "--prompt",
                "4096",
            ],
            |_| (),
            1,
            &["4096", "2048"],
        ),
        usage(
            "figure that is none",
            &["triad-lab", "reproduce", "figure-2"],
            &["figure-2", "table-4"],
        ),
        usage(
            "policy that is none",
            &["triad-lab", "simulate", "--policy", "best"],
            &["critical-path"],
        ),
        usage(
            "technique that is none",
            &["triad-lab", "simulate", "--without", "luck"],
            &["chunk-sharing"],
        ),
    ]
}
