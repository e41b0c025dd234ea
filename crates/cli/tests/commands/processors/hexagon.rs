//! The Hexagon device under an emulator.

use super::{CUTS, packaged};
use crate::succeed;
use crate::support::stderr;

#[test]
fn a_package_is_verified_with_hexagon_bit_for_bit() {
    if std::env::var_os("TRIAD_HEXAGON").is_none() {
        crate::skip::skip("TRIAD_HEXAGON names no device program");
        return;
    }
    let place = packaged();
    let on = ["--processors", "cpu,npu", "--npu", "hexagon"];
    // The emulator is searched for in PATH.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let triad = |arguments: &[&str]| {
        place
            .command(arguments)
            .env("PATH", &path)
            .output()
            .unwrap()
    };
    for cuts in [&CUTS[..0], &CUTS] {
        let verdict = succeed(&triad(
            &[
                &["verify", "package", "--prefill-chunk", "4"][..],
                &on,
                cuts,
            ]
            .concat(),
        ));
        assert!(
            verdict.contains("have the same logits, bit for bit, with Hexagon NPU")
                && verdict.contains("; npu:hexagon on HMX (a model"),
            "{verdict}"
        );
    }
    let verdict = succeed(&triad(
        &[
            &["verify", "package", "--prefill-chunk", "4"][..],
            &on,
            &["--npu-option", "unit=hvx"],
        ]
        .concat(),
    ));
    assert!(verdict.contains("; npu:hexagon on HVX: "), "{verdict}");
    // Subgraphs that do not fit run on the CPU, with a note.
    let run = [
        "run",
        "-m",
        "package",
        "-p",
        "Hello",
        "-n",
        "1",
        "--npu-memory",
        "0.00001",
    ];
    let output = triad(&[&run[..], &on].concat());
    succeed(&output);
    assert!(
        stderr(&output).contains("INT8 subgraphs do not fit into the memory of the NPU"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn hexagon_without_its_program_or_emulator_is_an_error_that_says_what_to_do() {
    let place = packaged();
    let ask = [
        "run",
        "-m",
        "package",
        "-p",
        "Hello",
        "-n",
        "1",
        "--processors",
        "cpu,npu",
        "--npu",
        "hexagon",
    ];
    let unnamed = place
        .command(&ask)
        .env_remove("TRIAD_HEXAGON")
        .output()
        .unwrap();
    assert_eq!(unnamed.status.code(), Some(1));
    assert!(
        stderr(&unnamed).contains("run hexagon/build and set TRIAD_HEXAGON"),
        "{}",
        stderr(&unnamed)
    );
    let missing = place
        .command(&ask)
        .env("TRIAD_HEXAGON", "nothing")
        .output()
        .unwrap();
    assert!(
        stderr(&missing).contains("nothing: ") && stderr(&missing).contains("hexagon/build"),
        "{}",
        stderr(&missing)
    );
    let mut command = place.command(&ask);
    let without = command
        .env("TRIAD_HEXAGON", place.path("model.gguf"))
        .env("TRIAD_QEMU_HEXAGON", "no-emulator");
    let without = without.output().unwrap();
    assert!(
        stderr(&without).contains("no-emulator")
            && stderr(&without).contains("install qemu-user-static")
    );
}
