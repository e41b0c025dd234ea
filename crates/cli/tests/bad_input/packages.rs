//! Damaged packages, and preparations that are refused.

use super::support::gguf::Gguf;
use super::support::{Place, stderr};
use super::{Case, case, usage};

/// Returns a case of a package with a mistake in one file.
fn package(
    what: &'static str,
    arguments: &[&'static str],
    file: &'static str,
    change: impl Fn(Vec<u8>) -> Vec<u8> + Send + Sync + 'static,
    message: &[&'static str],
) -> Case {
    let prepare = move |place: &Place| {
        place.write("model.gguf", Gguf::tiny().bytes());
        let prepared = place.triad(&["prepare", "model.gguf", "-o", "package", "--tokens", "50"]);
        assert!(prepared.status.success(), "{}", stderr(&prepared));
        let path = format!("package/{file}");
        let bytes = change(std::fs::read(place.path(&path)).unwrap_or_default());
        place.write(&path, bytes);
    };
    case(what, arguments, prepare, 1, &[&[file], message].concat())
}

pub fn cases() -> Vec<Case> {
    let run = &["run", "-m", "package", "-p", "Hello"];
    let verify = &["verify", "package"];
    let prepare = &["prepare", "model.gguf", "-o", "package"];
    let replace = |from: &'static str, to: &'static str| {
        move |bytes: Vec<u8>| {
            String::from_utf8(bytes)
                .unwrap()
                .replacen(from, to, 1)
                .into_bytes()
        }
    };
    let alter_last = |mut bytes: Vec<u8>| {
        *bytes.last_mut().unwrap() ^= 1;
        bytes
    };
    let texts = |what, name: &'static str, content: &'static str, message: &[&'static str]| {
        let prepare = move |place: &Place| {
            place.write("model.gguf", Gguf::tiny().bytes());
            place.write(name, content);
        };
        case(
            what,
            &[
                "prepare",
                "model.gguf",
                "-o",
                "package",
                "--calibrate",
                name,
            ],
            prepare,
            1,
            message,
        )
    };
    let unprepared = |what, arguments: &[&'static str]| {
        let prepare = |place: &Place| {
            place.write("model.gguf", Gguf::tiny().bytes());
            let made = place.triad(&["prepare", "model.gguf", "-o", "package", "--tokens", "50"]);
            assert!(made.status.success(), "{}", stderr(&made));
            place.write("text.txt", "Some text.");
        };
        let message = &["package", "quantized already"];
        case(what, arguments, prepare, 1, message)
    };
    vec![
        unprepared(
            "package that is to run unquantized",
            &["run", "-m", "package", "--no-quantize", "-p", "Hello"],
        ),
        unprepared(
            "package that is to run in f32",
            &[
                "run",
                "-m",
                "package",
                "--no-quantize",
                "--f32",
                "-p",
                "Hello",
            ],
        ),
        unprepared(
            "package whose speed without quantization is asked for",
            &["bench", "-m", "package", "--no-quantize"],
        ),
        unprepared(
            "package that is to be evaluated by a method",
            &[
                "eval",
                "-m",
                "package",
                "--method",
                "float",
                "--task",
                "perplexity",
                "--data",
                "text.txt",
            ],
        ),
        package(
            "package of a newer Triad",
            run,
            "package.json",
            replace("\"format\": 2", "\"format\": 4"),
            &["newer Triad", "format is 4", "reads 3"],
        ),
        package(
            "package for other kernels",
            run,
            "package.json",
            replace("n16k4", "n32k8"),
            &["n32k8", "n16k4", "prepare the model again"],
        ),
        package(
            "package without a field",
            run,
            "package.json",
            replace("\"layout\"", "\"lay-out\""),
            &["package/package.json: ", "lay-out"],
        ),
        package(
            "package.json that is not JSON",
            run,
            "package.json",
            |_| b"{".to_vec(),
            &["package/package.json: "],
        ),
        package(
            "package cut in the weights",
            run,
            "weights.safetensors",
            |mut bytes| {
                bytes.truncate(5000);
                bytes
            },
            &["package/weights.safetensors: 5000 bytes", "truncated"],
        ),
        package(
            "package with a tensor of another name",
            run,
            "weights.safetensors",
            |mut bytes| {
                let at = bytes
                    .windows(7)
                    .position(|window| window == b"\"blocks")
                    .unwrap();
                bytes[at + 1] = b'B';
                bytes
            },
            &["\"blocks.0.", "is missing"],
        ),
        package(
            "package with a file that it does not name",
            run,
            "chat_template.jinja",
            |_| b"{{ 'planted' }}".to_vec(),
            &[
                "package/chat_template.jinja: no part of the package",
                "expected none, remove it",
            ],
        ),
        package(
            "costs that are no times",
            &[
                "run",
                "-m",
                "package",
                "-p",
                "Hello",
                "--processors",
                "cpu,npu",
            ],
            "costs.json",
            |_| {
                let cost = "{\"seconds_per_token\": -1, \"seconds_per_chunk\": 0, \"seconds_per_token_and_position\": 0}";
                format!("{{\"x\": [{{\"processor\": \"npu\", \"role\": \"attention\", \"cost\": {cost}}}]}}")
                    .into_bytes()
            },
            &[
                "package/costs.json: not what `triad profile` writes",
                "attention on the NPU: expected seconds",
            ],
        ),
        package(
            "products without measurements",
            &[
                "run",
                "-m",
                "package",
                "-p",
                "Hello",
                "--processors",
                "cpu,npu",
                "--partition",
                "auto",
            ],
            "products.json",
            |_| b"{}".to_vec(),
            &["was not measured: run `triad profile -m package --processors cpu,npu` first"],
        ),
        package(
            "prompt to simulate without measured costs",
            &[
                "triad-lab",
                "simulate",
                "-m",
                "package",
                "--prompt",
                "4",
                "--processors",
                "cpu,npu",
            ],
            "costs.json",
            |_| b"{}".to_vec(),
            &[
                "package/costs.json: has nothing about tasks on CPU",
                "run `triad profile --processors cpu,npu`",
            ],
        ),
        package(
            "times of products that are none",
            &[
                "run",
                "-m",
                "package",
                "-p",
                "Hello",
                "--processors",
                "cpu,npu",
                "--partition",
                "auto",
            ],
            "products.json",
            |_| {
                let joins =
                    "\"float\": 0, \"own_seconds\": 0, \"begin_seconds\": 0, \"end_seconds\": 0";
                let time = "\"processor\": 0, \"rows\": 32, \"columns\": 64, \"depth\": 64, \"alone\": 0, \"contended\": 1";
                let costs = format!(
                    "{{\"chunk\": 32, \"processors\": [{{\"name\": \"cpu\"}}], \"joins\": {{{joins}}}, \"products\": [{{{time}}}]}}"
                );
                format!("{{\"x\": {costs}}}").into_bytes()
            },
            &[
                "package/products.json: not what `triad profile` writes",
                "took 0 seconds",
            ],
        ),
        package(
            "package with an altered byte",
            verify,
            "weights.safetensors",
            alter_last,
            &["altered", "sha256"],
        ),
        package(
            "package with an altered byte that is run",
            run,
            "weights.safetensors",
            alter_last,
            &["altered", "sha256"],
        ),
        case(
            "package whose hash never ends",
            verify,
            |place| {
                place.write("model.gguf", Gguf::tiny().bytes());
                assert!(
                    place
                        .triad(&["prepare", "model.gguf", "-o", "package", "--tokens", "50"])
                        .status
                        .success()
                );
                std::fs::remove_file(place.path("package/package.json.sha256")).unwrap();
                #[cfg(unix)]
                std::os::unix::fs::symlink("/dev/zero", place.path("package/package.json.sha256"))
                    .unwrap();
            },
            1,
            &["package/package.json.sha256", "expected a regular file"],
        ),
        case(
            "package that is there already",
            prepare,
            |place| {
                place.write("model.gguf", Gguf::tiny().bytes());
                place.write("package/package.json", "");
            },
            1,
            &["package: ", "--force replaces it"],
        ),
        case(
            "folder that is no package",
            verify,
            |place| place.write("package/a", ""),
            1,
            &["no package.json"],
        ),
        case(
            "folder of something else in a package's place",
            prepare,
            |place| {
                place.write("model.gguf", Gguf::tiny().bytes());
                place.write("package/photo.jpg", "");
            },
            1,
            &["package: ", "is no package: it is not replaced"],
        ),
        case(
            "folder of the model as the package",
            &["prepare", "package/model.gguf", "-o", "package", "--force"],
            |place| {
                place.write("package/model.gguf", Gguf::tiny().bytes());
                place.write("package/package.json", "");
            },
            1,
            &[
                "cannot write package: this command reads ",
                "model.gguf in it: expected another folder",
            ],
        ),
        texts(
            "calibration text that holds none",
            "empty.txt",
            " \n",
            &["empty.txt", "no text"],
        ),
        texts(
            "calibration lines without text",
            "lines.jsonl",
            "{\"id\": 1}\n",
            &["lines.jsonl", "text"],
        ),
        case(
            "NPU for a model with weights in INT4",
            &[
                "run",
                "-m",
                "package",
                "-p",
                "Hello",
                "--processors",
                "cpu,npu",
            ],
            |place| {
                place.write("model.gguf", Gguf::tiny().bytes());
                let prepare = [
                    "prepare",
                    "model.gguf",
                    "-o",
                    "package",
                    "--tokens",
                    "50",
                    "--weights",
                    "int4",
                ];
                assert!(place.triad(&prepare).status.success());
            },
            1,
            &[
                "activations in float",
                "INT8 kernels as NPU",
                "expected a package in INT8, or only cpu and gpu in --processors",
            ],
        ),
        case(
            "bits per weight for INT8",
            &["prepare", "model.gguf", "-o", "package", "--bits", "5.5"],
            |place| place.write("model.gguf", Gguf::tiny().bytes()),
            1,
            &["--bits is for --weights int4"],
        ),
        case(
            "shadows for weights in INT4",
            &[
                "prepare",
                "model.gguf",
                "-o",
                "package",
                "--weights",
                "int4",
                "--prune",
                "none",
            ],
            |place| place.write("model.gguf", Gguf::tiny().bytes()),
            1,
            &["--prune is for INT8", "--weights int4"],
        ),
        case(
            "budget of a pruning rate",
            &[
                "prepare",
                "model.gguf",
                "-o",
                "package",
                "--prune",
                "0.5",
                "--budget",
                "0.01",
            ],
            |place| place.write("model.gguf", Gguf::tiny().bytes()),
            1,
            &["--budget is for --prune auto"],
        ),
        usage(
            "pruning rate above 1",
            &["prepare", "--prune", "85"],
            &["--prune", "0 to 1", "auto"],
        ),
    ]
}
