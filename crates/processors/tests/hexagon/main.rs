//! The Hexagon device under qemu, on HVX and on a model of HMX: it has the same bits as the CPU; and errors if the process
//! is killed, frozen, another program, of another version, or if its memory is overwritten. The tests run if the environment names the device
//! program.

#![cfg(target_os = "linux")]

mod costs;
mod hmx;
#[path = "../conformance/plain.rs"]
#[allow(dead_code, reason = "the conformance suite uses all of it")]
mod plain;
#[path = "../skip/mod.rs"]
mod skip;

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use triad_kernels::OutputMut;
use triad_kernels::activation::Activation;
use triad_kernels::int8::QuantizedRows;
use triad_kernels::pool::Pool;
use triad_processors::cpu::Cpu;
use triad_processors::hexagon::{
    Between, Hexagon, HexagonOptions, Target, Unit, program_from_environment,
};
use triad_processors::{
    Device, DeviceSubgraph, Error, FeedForward, Layer, Linear, Program, Result,
};

use plain::{Plain, Random, quantized};

const SCALE: f32 = 0.01;
/// A run of this layer takes about a second.
const LARGE: [usize; 2] = [3072, 3072];
const LARGE_ROWS: usize = 256;

/// Returns options for the program that the environment names, which computes whole feed-forwards; `None` if it names
/// none.
fn options() -> Option<HexagonOptions> {
    match program_from_environment() {
        Ok(program) => {
            let (patience, between) = (Duration::from_secs(3), Between::Device);
            Some(HexagonOptions {
                patience,
                between,
                ..HexagonOptions::new(program)
            })
        }
        Err(error) => {
            skip::skip(error);
            None
        }
    }
}

fn linear(layers: &[[usize; 2]]) -> DeviceSubgraph {
    let mut random = Random::new(3);
    let layer =
        |[out, of]: &[usize; 2]| Plain::random(&mut random, *out, *of, true) as Arc<dyn Layer>;
    DeviceSubgraph::Linear(Linear {
        input_scale: SCALE,
        layers: layers.iter().map(layer).collect(),
    })
}

fn feed_forward(activation: Activation, flags: usize) -> DeviceSubgraph {
    of_widths(96, 270, (activation, flags))
}

fn of_widths(
    hidden: usize,
    width: usize,
    (activation, flags): (Activation, usize),
) -> DeviceSubgraph {
    let mut random = Random::new(flags as u64);
    let [gated, smoothed, bias, return_inner, fixed_point] =
        [1, 2, 4, 8, 16].map(|flag| flags & flag != 0);
    DeviceSubgraph::FeedForward(FeedForward {
        input_scale: SCALE,
        up: Plain::random(&mut random, width, hidden, bias),
        gate: gated.then(|| Plain::random(&mut random, width, hidden, bias) as Arc<dyn Layer>),
        activation,
        inner_scale: 0.006,
        smoothing: smoothed.then(|| random.floats(width, 1.0).into()),
        down: Plain::random(&mut random, hidden, width, bias),
        return_inner,
        fixed_point,
    })
}

fn run_program(
    program: &mut dyn Program,
    subgraph: &DeviceSubgraph,
    input: &QuantizedRows,
) -> Result<Vec<Vec<u32>>> {
    let rows = input.view().rows();
    let mut outs: Vec<_> = subgraph
        .outputs()
        .iter()
        .map(|features| vec![0.5; rows * features])
        .collect();
    let views = outs
        .iter_mut()
        .zip(subgraph.outputs())
        .map(|(out, features)| OutputMut::new(out, features));
    program.run(input.view(), &mut views.collect::<Vec<_>>())?;
    Ok(outs
        .iter()
        .map(|out| out.iter().map(|x| x.to_bits()).collect())
        .collect())
}

fn run(
    device: &dyn Device,
    subgraph: &DeviceSubgraph,
    input: &QuantizedRows,
) -> Result<Vec<Vec<u32>>> {
    run_program(
        &mut *device.prepare(subgraph, input.view().rows())?,
        subgraph,
        input,
    )
}

fn cpu() -> Cpu {
    Cpu::new(Arc::new(Pool::new(1).unwrap()))
}

fn input(rows: usize, subgraph: &DeviceSubgraph) -> QuantizedRows {
    quantized(
        &Random::new(7).floats(rows * subgraph.in_features(), 150.0 * SCALE),
        subgraph.in_features(),
        SCALE,
    )
}

/// Returns bits in which all NaNs are the same.
fn same(bits: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    let one = |bits: u32| {
        if f32::from_bits(bits).is_nan() {
            u32::MAX
        } else {
            bits
        }
    };
    bits.into_iter()
        .map(|out| out.into_iter().map(one).collect())
        .collect()
}

#[test]
fn every_subgraph_has_the_bits_of_the_cpu() {
    let Some(options) = options() else { return };
    for unit in [Unit::Hvx, Unit::Hmx] {
        every_subgraph_on(HexagonOptions {
            unit: Some(unit),
            ..options.clone()
        });
    }
}

fn every_subgraph_on(options: HexagonOptions) {
    let hexagon = Hexagon::open(&options).unwrap();
    // There is room for only a few rows at once.
    let narrow = Hexagon::open(&HexagonOptions {
        transfer_bytes: 48 << 10,
        ..options.clone()
    })
    .unwrap();
    let products = Hexagon::open(&HexagonOptions {
        between: Between::Host,
        ..options
    })
    .unwrap();
    let mut subgraphs = vec![
        linear(&[[64, 64], [20, 64], [7, 64]]),
        linear(&[[576, 192]]),
        linear(&[[1, 1]]),
    ];
    for activation in [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::Gelu,
        Activation::ReluSquared,
    ] {
        subgraphs.extend((0..16).map(|flags| feed_forward(activation, flags)));
        if ![Activation::Gelu, Activation::ReluSquared].contains(&activation) {
            subgraphs.extend((16..24).map(|flags| feed_forward(activation, flags)));
        }
    }
    for (index, subgraph) in subgraphs.iter().enumerate() {
        for rows in [1, 67] {
            let input = input(rows, subgraph);
            let expected = run(&cpu(), subgraph, &input).unwrap();
            for device in [&hexagon, &narrow, &products] {
                assert!(
                    run(device, subgraph, &input).unwrap() == expected,
                    "subgraph {index}, {rows} rows"
                );
            }
        }
    }
}

/// Returns devices of 1 to 6 threads, the number of vector contexts of a v79.
fn teams(options: &HexagonOptions, unit: Unit) -> Vec<Hexagon> {
    let of = |threads| {
        Hexagon::open(&HexagonOptions {
            threads: Some(threads),
            unit: Some(unit),
            ..options.clone()
        })
        .unwrap()
    };
    (1..=6).map(of).collect()
}

#[test]
fn any_number_of_threads_computes_the_same_bits_on_hvx() {
    same_bits_by_any_number_of_threads(Unit::Hvx, 40);
}

#[test]
fn any_number_of_threads_computes_the_same_bits_on_hmx() {
    same_bits_by_any_number_of_threads(Unit::Hmx, 10);
}

fn same_bits_by_any_number_of_threads(unit: Unit, cases: u32) {
    let Some(options) = options() else { return };
    let devices = teams(&options, unit);
    let shapes = (
        1..300usize,
        proptest::collection::vec(1..500usize, 1..4),
        1..150usize,
        0..3usize,
    );
    let mut runner = TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..Default::default()
    });
    let property = |(hidden, widths, rows, kind): (usize, Vec<usize>, usize, usize)| {
        let subgraph = match kind {
            0 => linear(
                &widths
                    .iter()
                    .map(|width| [*width, hidden])
                    .collect::<Vec<_>>(),
            ),
            1 => of_widths(hidden, widths[0], (Activation::Silu, widths.len() | 8)),
            _ => of_widths(hidden, widths[0], (Activation::Silu, widths.len() | 16)),
        };
        let input = input(rows, &subgraph);
        let expected = run(&cpu(), &subgraph, &input).unwrap();
        for device in &devices {
            let threads = device.threads();
            // Runs twice: data from an earlier run must not matter.
            let mut program = device.prepare(&subgraph, rows).unwrap();
            for _ in 0..2 {
                let found = run_program(&mut *program, &subgraph, &input).unwrap();
                prop_assert!(found == expected, "{threads} threads");
            }
        }
        Ok(())
    };
    runner.run(&shapes, property).unwrap();
}

#[test]
fn threads_divide_the_packets_of_a_product_on_hvx_and_of_an_activation() {
    let Some(options) = options() else { return };
    // 16 tiles of columns including the check sums; and a feed-forward of 8 and of 4 tiles, with 8 tiles of rows
    // between them.
    let products = [
        linear(&[[1019, 64]]),
        of_widths(251, 507, (Activation::Silu, 0)),
    ];
    let of = |device: &Hexagon, subgraph: &DeviceSubgraph| {
        let mut program = device.prepare(subgraph, 64).unwrap();
        run_program(&mut *program, subgraph, &input(64, subgraph)).unwrap();
        device.packets()
    };
    let devices = teams(&options, Unit::Hvx);
    assert_eq!(
        devices.iter().map(Hexagon::threads).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5, 6]
    );
    // Share of the busiest of 6 threads in 16 tiles, and in 8 and 4 tiles.
    for (subgraph, of_six) in products.iter().zip([3.0 / 16.0, 1.0 / 4.0]) {
        let found: Vec<_> = devices.iter().map(|device| of(device, subgraph)).collect();
        assert_eq!(
            of(&devices[3], subgraph),
            found[3],
            "packets are the same in each run"
        );
        assert_eq!(found[0].all, found[0].longest, "{found:?}");
        let one = found[0].longest as f64;
        for (packets, share) in
            found
                .iter()
                .zip([1.0, 1.0 / 2.0, 6.0 / 16.0, 1.0 / 4.0, 1.0 / 4.0, of_six])
        {
            // The share is somewhat larger: one thread parses the request and adds up the check sums, and each thread
            // has some overhead.
            let longest = packets.longest as f64 / one;
            assert!((share..share + 0.06).contains(&longest), "{found:?}");
            assert!((packets.all as f64) < 1.05 * one, "{found:?}");
        }
    }
}

#[test]
fn what_is_infinite_within_a_feed_forward_makes_the_row_nan_as_on_the_cpu() {
    let Some(options) = options() else { return };
    let hexagon = Hexagon::open(&options).unwrap();
    for return_inner in [false, true] {
        let subgraph = DeviceSubgraph::FeedForward(FeedForward {
            input_scale: 1.0,
            up: Plain::new(vec![1, 2], vec![2e38, 1.0], None),
            gate: None,
            activation: Activation::Silu,
            inner_scale: 1.0,
            smoothing: None,
            down: Plain::new(vec![1, 1], vec![1.0], None),
            return_inner,
            fixed_point: false,
        });
        // The values are −2e38, 0, 2e38, and beyond the largest f32.
        let input = quantized(&[-1.0, 0.0, 1.0, 5.0, f32::NAN, 3.0], 1, 1.0);
        let expected = same(run(&cpu(), &subgraph, &input).unwrap());
        assert_eq!(same(run(&hexagon, &subgraph, &input).unwrap()), expected);
        assert_eq!(
            expected[0].iter().filter(|bits| **bits == u32::MAX).count(),
            3,
            "{expected:?}"
        );
    }
}

#[test]
fn a_process_that_is_killed_within_a_run_is_an_error_and_stays_one() {
    let Some(options) = options() else { return };
    let hexagon = Hexagon::open(&options).unwrap();
    let subgraph = linear(&[LARGE]);
    let input = input(LARGE_ROWS, &subgraph);
    let mut program = hexagon.prepare(&subgraph, LARGE_ROWS).unwrap();
    let process = hexagon.process().unwrap();
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        signal(process, "KILL");
    });
    let error = loop {
        if let Err(error) = run_program(&mut *program, &subgraph, &input) {
            break error;
        }
    };
    killer.join().unwrap();
    assert!(
        error
            .to_string()
            .starts_with("npu:hexagon failed: its process ended: signal: 9"),
        "{error}"
    );
    let again = run_program(&mut *program, &subgraph, &input).unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
}

#[test]
fn a_process_that_is_frozen_is_ended_and_an_error() {
    let Some(options) = options() else { return };
    let hexagon = Hexagon::open(&HexagonOptions {
        patience: Duration::from_millis(300),
        // It starts without a proof, which takes some time.
        unit: Some(Unit::Hvx),
        ..options
    })
    .unwrap();
    let subgraph = linear(&[[40, 32]]);
    let input = input(5, &subgraph);
    let mut program = hexagon.prepare(&subgraph, 5).unwrap();
    signal(hexagon.process().unwrap(), "STOP");
    let error = run_program(&mut *program, &subgraph, &input).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("its process did nothing for 0.3 s, and was ended"),
        "{error}"
    );
    assert!(
        !Path::new(&format!("/proc/{}", hexagon.process().unwrap())).exists(),
        "it is gone"
    );
}

#[test]
fn what_is_no_device_program_is_an_error_that_says_so() {
    let Some(options) = options() else { return };
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    fs::write(&text, "no program").unwrap();
    // A text file, and a program of this machine, which qemu-hexagon refuses.
    for program in [text, std::env::current_exe().unwrap()] {
        let error = Hexagon::open(&HexagonOptions {
            program,
            ..options.clone()
        })
        .unwrap_err();
        assert!(matches!(error, Error::HexagonProgram { .. }), "{error:?}");
        assert!(error.to_string().contains("its process ended: "), "{error}");
    }
    let program = folder.path().join("none");
    let error = Hexagon::open(&HexagonOptions {
        program,
        ..options.clone()
    })
    .unwrap_err();
    assert!(matches!(error, Error::HexagonMissing { .. }), "{error:?}");
    let emulator = folder.path().join("none");
    let error = Hexagon::open(&HexagonOptions {
        emulator,
        ..options.clone()
    })
    .unwrap_err();
    assert!(
        error.to_string().contains("install qemu-user-static"),
        "{error}"
    );
    // An emulator that starts and does not run the program.
    let emulator = folder.path().join("idle");
    fs::write(&emulator, "#!/bin/sh\nexec sleep 60\n").unwrap();
    fs::set_permissions(&emulator, fs::Permissions::from_mode(0o755)).unwrap();
    let patience = Duration::from_millis(200);
    let error = Hexagon::open(&HexagonOptions {
        emulator,
        patience,
        ..options
    })
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("it did not report itself within 0.2 s"),
        "{error}"
    );
}

#[test]
fn a_program_for_a_dsp_is_not_run_by_the_emulator_nor_one_for_the_emulator_by_a_dsp() {
    let Some(options) = options() else { return };
    assert_eq!(Target::read(&options.program).unwrap(), Target::Emulator);
    // Checks the shared object, if `hexagon/build qurt` has built one.
    let shared = options.program.with_file_name("libtriad_skel.so");
    if let Ok(bytes) = fs::read(&shared) {
        assert_eq!(Target::read(&shared).unwrap(), Target::Dsp);
        assert!(
            bytes
                .windows(18)
                .any(|window| window == b"triad_skel_invoke\0"),
            "it has the function that is called"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("libtriad_skel.so");
    // A shared object for Hexagon; then an executable for it, a shared object for another machine, and an incomplete
    // header.
    let head = |kind: u8, machine: u8| {
        [
            b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0",
            &[kind, 0, machine, 0][..],
        ]
        .concat()
    };
    for (bytes, target) in [
        (head(3, 164), Target::Dsp),
        (head(2, 164), Target::Emulator),
        (head(3, 62), Target::Emulator),
        (head(3, 164)[..19].to_vec(), Target::Emulator),
    ] {
        fs::write(&program, bytes).unwrap();
        assert_eq!(Target::read(&program).unwrap(), target);
    }
    fs::write(&program, head(3, 164)).unwrap();
    if Path::new("/dev/fastrpc-cdsp").exists() || Path::new("/dev/fastrpc-cdsp-secure").exists() {
        return skip::skip("this machine has a DSP");
    }
    let error = Hexagon::open(&HexagonOptions { program, ..options }).unwrap_err();
    let expected = "it is for a phone's DSP, and this machine has no /dev/fastrpc-cdsp or /dev/fastrpc-cdsp-secure";
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn a_device_program_of_another_version_is_refused_by_both_numbers() {
    let Some(options) = options() else { return };
    let mut bytes = fs::read(&options.program).unwrap();
    let magic = bytes
        .windows(8)
        .position(|window| window == b"TRIADDSP")
        .expect("the program has its identity");
    bytes[magic + 8] = 0;
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("old");
    fs::write(&program, bytes).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let error = Hexagon::open(&HexagonOptions { program, ..options }).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("it is of version 0 of the protocol, expected 7"),
        "{error}"
    );
}

#[test]
fn weights_and_scales_that_are_overwritten_in_the_memory_of_the_device_are_found() {
    let Some(options) = options() else { return };
    // Weights of a layer and within a feed-forward, and a scale. For HMX, corrections of a layer and then its weights.
    let (layer, whole) = (|| linear(&[[40, 32]]), || feed_forward(Activation::Silu, 1));
    for (unit, subgraph, byte) in [
        (Unit::Hvx, layer(), 128 + 5),
        (Unit::Hvx, whole(), 0x2000),
        (Unit::Hvx, whole(), 128 + 66),
        (Unit::Hmx, layer(), 128 + 5),
        (Unit::Hmx, layer(), 128 + 256 + 5),
        (Unit::Hmx, whole(), 0x4000),
        (Unit::Hmx, whole(), 128 + 66),
    ] {
        let options = HexagonOptions {
            unit: Some(unit),
            ..options.clone()
        };
        let hexagon = Hexagon::open(&options).unwrap();
        let input = input(3, &subgraph);
        let mut program = hexagon.prepare(&subgraph, 3).unwrap();
        run_program(&mut *program, &subgraph, &input).unwrap();
        overwrite(hexagon.process().unwrap(), byte);
        let error = run_program(&mut *program, &subgraph, &input).unwrap_err();
        assert!(error.to_string().contains("overwritten"), "{error}");
    }
}

#[test]
fn shared_memory_that_is_overwritten_is_found() {
    let Some(options) = options() else { return };
    let subgraph = linear(&[LARGE]);
    let input = input(LARGE_ROWS, &subgraph);
    let expected = run(&cpu(), &subgraph, &input).unwrap();
    let hexagon = Hexagon::open(&options).unwrap();
    let mut program = hexagon.prepare(&subgraph, LARGE_ROWS).unwrap();
    let shared = fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/{}/fd/0", hexagon.process().unwrap()))
        .unwrap();
    // Repeatedly overwrites everything after the request number: requests, responses, inputs and sums.
    let writer = std::thread::spawn(move || {
        for byte in 1..=100 {
            std::thread::sleep(Duration::from_millis(5));
            let _ = shared.write_all_at(&vec![byte; 4 << 20], 8 * 32);
        }
    });
    let outcome = (0..20).find_map(|_| match run_program(&mut *program, &subgraph, &input) {
        Ok(found) => {
            assert!(found == expected, "wrong sums were not detected");
            None
        }
        Err(error) => Some(error.to_string()),
    });
    writer.join().unwrap();
    let error = outcome.expect("it was overwritten");
    assert!(error.starts_with("npu:hexagon failed: "), "{error}");
}

#[test]
fn programs_share_the_window_and_give_back_their_memory() {
    let Some(options) = options() else { return };
    let (subgraph, rows) = (linear(&[[2048, 2048]]), 4);
    let bytes = subgraph.bytes(rows);
    let hexagon = Hexagon::open(&HexagonOptions {
        window: bytes,
        ..options
    })
    .unwrap();
    assert_eq!(hexagon.capabilities().window, Some(bytes));
    for _ in 0..3 {
        let _one = hexagon.prepare(&subgraph, rows).unwrap();
        assert!(matches!(
            hexagon.prepare(&subgraph, rows),
            Err(Error::WindowFull { .. })
        ));
    }
}

#[test]
fn sessions_have_a_window_each_and_compute_the_same_bits() {
    let Some(options) = options() else { return };
    let (rows, layers) = (
        4,
        [
            linear(&[[96, 64]]),
            linear(&[[64, 96]]),
            linear(&[[128, 32]]),
        ],
    );
    let largest = layers.iter().map(|layer| layer.bytes(rows)).max().unwrap();
    let hexagon = Hexagon::open(&HexagonOptions {
        window: largest,
        sessions: 2,
        ..options
    })
    .unwrap();
    assert_eq!(
        (hexagon.sessions(), hexagon.capabilities().window),
        (2, Some(2 * largest))
    );
    let mut programs: Vec<_> = layers[..2]
        .iter()
        .map(|layer| hexagon.prepare(layer, rows).unwrap())
        .collect();
    assert!(
        matches!(
            hexagon.prepare(&layers[2], rows),
            Err(Error::WindowFull { .. })
        ),
        "both windows are taken"
    );
    for (program, layer) in programs.iter_mut().zip(&layers) {
        let input = input(rows, layer);
        assert_eq!(
            run_program(&mut **program, layer, &input).unwrap(),
            run(&cpu(), layer, &input).unwrap()
        );
    }
    // The next program takes the memory that one session released.
    drop(programs.remove(0));
    let (mut third, input) = (
        hexagon.prepare(&layers[2], rows).unwrap(),
        input(rows, &layers[2]),
    );
    assert_eq!(
        run_program(&mut *third, &layers[2], &input).unwrap(),
        run(&cpu(), &layers[2], &input).unwrap()
    );
}

fn signal(process: u32, name: &str) {
    assert!(
        Command::new("kill")
            .args(["-s", name, &process.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

/// Changes a byte of the image in the process's own memory.
fn overwrite(process: u32, byte: u64) {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let memory = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/{process}/mem"))
        .unwrap();
    let mut found = 0;
    for line in maps.lines().filter(|line| line.contains(" rw-p ")) {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        let mut bytes = vec![0; (end - start) as usize];
        // Images begin at a page boundary.
        if memory.read_exact_at(&mut bytes, start).is_err() {
            continue;
        }
        for page in (0..bytes.len())
            .step_by(4096)
            .filter(|page| bytes[*page..].starts_with(b"TRIP"))
        {
            let at = page + byte as usize;
            memory
                .write_all_at(&[bytes[at] ^ 0x10], start + at as u64)
                .unwrap();
            found += 1;
        }
    }
    assert_eq!(found, 1, "one image");
}
