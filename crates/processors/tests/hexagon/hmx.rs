//! HMX as the emulated program models it: the instruction words of the leaves, products of all kinds, and the matmuls of
//! subgraphs.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use half::f16;
use tempfile::TempDir;

use super::*;

/// Rows and columns of an integer tile, and those of a tile of fp16, which are equal.
const ROWS: usize = 64;
const COLUMNS: usize = 32;
/// Features of a crouton.
const FEATURES: usize = 32;
/// Numbers of croutons. The operands of 31 to 33 fill an instruction, those of 128 and 129 reach boundaries of 256 KiB, and
/// 176 are 5,632 features.
const CROUTONS: [usize; 10] = [1, 2, 7, 31, 32, 33, 64, 128, 129, 176];

fn open(options: &HexagonOptions, unit: Option<Unit>) -> Result<Hexagon> {
    Hexagon::open(&HexagonOptions {
        unit,
        ..options.clone()
    })
}

fn on_hmx() -> Option<Hexagon> {
    Some(open(&options()?, Some(Unit::Hmx)).unwrap())
}

/// Returns `count` numbers from `first` to `last` by a rule: random ones, all the first, all the last, or the two in turns.
fn numbers(rule: usize, count: usize, first: i32, last: i32) -> Vec<i32> {
    let mut random = Random::new(rule as u64 + 1);
    let span = (last - first) as f32;
    let number = |index: usize| match rule {
        0 => first + ((random.float() + 1.0) / 2.0 * (span + 0.99)) as i32,
        1 => first,
        2 => last,
        _ => [first, last][index % 2],
    };
    (0..count).map(number).collect()
}

/// Packs activations `[64, features]`: croutons of 64 rows of 32 bytes.
fn pack_activations(numbers: &[i32], features: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for crouton in 0..features / FEATURES {
        for row in numbers.chunks_exact(features) {
            let piece = &row[crouton * FEATURES..][..FEATURES];
            bytes.extend(piece.iter().map(|number| *number as u8));
        }
    }
    bytes
}

/// Packs weights `[features, 32]`: for each four features, the four weights of each column. Of INT4, those of the four
/// features after them are in the upper halves.
fn pack_weights(numbers: &[i32], is_int4: bool) -> Vec<u8> {
    let quads: Vec<Vec<u8>> = numbers
        .chunks_exact(4 * COLUMNS)
        .map(|quad| {
            (0..COLUMNS)
                .flat_map(|column| (0..4).map(move |k| quad[k * COLUMNS + column] as u8))
                .collect()
        })
        .collect();
    if !is_int4 {
        return quads.concat();
    }
    let pairs = quads.chunks_exact(2).map(|pair| {
        let halves = pair[0].iter().zip(&pair[1]);
        halves.map(|(low, high)| low & 15 | high << 4).collect()
    });
    pairs.collect::<Vec<Vec<u8>>>().concat()
}

fn product(activations: &[i32], weights: &[i32], features: usize) -> Vec<i32> {
    let mut sums = vec![0i32; ROWS * COLUMNS];
    for (row, sums) in activations
        .chunks_exact(features)
        .zip(sums.chunks_exact_mut(COLUMNS))
    {
        for (number, weights) in row.iter().zip(weights.chunks_exact(COLUMNS)) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = sum.wrapping_add(number * weight);
            }
        }
    }
    sums
}

#[test]
fn a_tile_of_int8_and_of_int4_weights_has_the_exact_sums() {
    let Some(hexagon) = on_hmx() else { return };
    for croutons in CROUTONS {
        let features = croutons * FEATURES;
        for (kind, first, last) in [(0, -128, 127), (1, -8, 7)] {
            for (of_activations, of_weights) in [(0, 0), (2, 1), (2, 2), (1, 1), (3, 3), (0, 3)] {
                let activations = numbers(of_activations, ROWS * features, 0, 255);
                let weights = numbers(of_weights, features * COLUMNS, first, last);
                let found = hexagon
                    .multiply_tile(
                        kind,
                        &pack_activations(&activations, features),
                        &pack_weights(&weights, kind == 1),
                    )
                    .unwrap();
                let (found, _) = found.as_chunks();
                let found: Vec<_> = found.iter().map(|sum| i32::from_le_bytes(*sum)).collect();
                assert!(
                    found == product(&activations, &weights, features),
                    "{croutons} croutons, kind {kind}, rules {of_activations} and {of_weights}"
                );
            }
        }
    }
}

/// Packs pairs of rows of `[rows, 32]` in turns.
fn pack_pairs(numbers: impl Iterator<Item = Vec<f16>>) -> Vec<u8> {
    let rows: Vec<_> = numbers.collect();
    let pairs = rows.chunks_exact(2);
    pairs
        .flat_map(|pair| pair[0].iter().zip(&pair[1]))
        .flat_map(|(first, second)| [first.to_le_bytes(), second.to_le_bytes()].concat())
        .collect()
}

#[test]
fn a_tile_of_fp16_is_within_its_bound_of_the_exact_product() {
    let Some(hexagon) = on_hmx() else { return };
    let mut random = Random::new(5);
    // The largest is such that no sum overflows; the smallest numbers are subnormal.
    for (croutons, largest) in [(1, 40.0), (2, 1e-5), (32, 4.0), (33, 4.0), (176, 1.0)] {
        let features = croutons * FEATURES;
        let mut of = |count: usize| -> Vec<f16> {
            (0..count)
                .map(|_| f16::from_f32(random.float() * largest))
                .collect()
        };
        let (activations, weights) = (of(32 * features), of(features * 32));
        let piece = |row: usize, crouton: usize| {
            activations[row * features + crouton * FEATURES..][..FEATURES].to_vec()
        };
        let packed: Vec<_> = (0..croutons)
            .flat_map(|crouton| pack_pairs((0..32).map(|row| piece(row, crouton))))
            .collect();
        let packed_weights = pack_pairs(weights.chunks_exact(32).map(<[f16]>::to_vec));
        let found = hexagon.multiply_tile(2, &packed, &packed_weights).unwrap();
        for row in 0..32 {
            for column in 0..32 {
                let at = (row / 2 * 64 + column * 2 + row % 2) * 2;
                let found = f16::from_le_bytes([found[at], found[at + 1]]).to_f64();
                let (mut exact, mut magnitude) = (0.0, 0.0);
                for k in 0..features {
                    let product = activations[row * features + k].to_f64()
                        * weights[k * 32 + column].to_f64();
                    exact += product;
                    magnitude += product.abs();
                }
                // Each sum is rounded to 24 bits, the result to 11, or to a multiple of 2⁻²⁴.
                let bound = magnitude * features as f64 * 2f64.powi(-24)
                    + exact.abs() * 2f64.powi(-11)
                    + 2f64.powi(-25);
                assert!(
                    (found - exact).abs() <= bound,
                    "{croutons} croutons: {found}, expected {exact}"
                );
            }
        }
    }
}

/// Returns a subgraph of one layer whose weights follow a rule of [`numbers`].
fn layer(out_features: usize, in_features: usize, rule: usize) -> DeviceSubgraph {
    let weights = numbers(rule, out_features * in_features, -127, 127);
    let weights = weights.iter().map(|weight| *weight as i8).collect();
    DeviceSubgraph::Linear(Linear {
        input_scale: SCALE,
        layers: vec![Plain::new(weights, vec![0.001; out_features], None)],
    })
}

#[test]
fn a_matmul_on_hmx_has_the_bits_of_the_cpu_for_all_shapes_and_extremes() {
    let Some(hexagon) = on_hmx() else { return };
    let shapes = [
        (1, 1),
        (59, 31),
        (60, 32),
        (27, 33),
        (130, 96),
        (192, 576),
        (100, 1536),
        (59, 2048),
        (40, 5632),
    ];
    for (index, (out_features, in_features)) in shapes.into_iter().enumerate() {
        for rule in 0..4 {
            let subgraph = layer(out_features, in_features, rule);
            let rows: &[usize] = if rule > 0 {
                &[3]
            } else if index % 3 == 2 {
                &[1, 63, 64, 65, 255, 256, 257, 300]
            } else {
                &[2, 128, 129]
            };
            for rows in rows.iter().copied() {
                // Random inputs, or the largest one or its opposite.
                let input = match rule {
                    0 => input(rows, &subgraph),
                    _ => {
                        let largest = if rule == 2 { -200.0 } else { 200.0 };
                        quantized(&vec![largest; rows * in_features], in_features, SCALE)
                    }
                };
                let expected = run(&cpu(), &subgraph, &input).unwrap();
                assert!(
                    run(&hexagon, &subgraph, &input).unwrap() == expected,
                    "{rows} rows, {out_features} by {in_features}, rule {rule}"
                );
            }
        }
    }
}

#[test]
fn hmx_takes_the_instructions_that_a_product_needs_and_hvx_takes_none() {
    let Some(options) = options() else { return };
    let subgraph = linear(&[[64, 64]]);
    let input = input(65, &subgraph);
    for (unit, instructions) in [(Unit::Hvx, 0), (Unit::Hmx, 4 * 2 * (1 + 2 + 8))] {
        let hexagon = open(&options, Some(unit)).unwrap();
        let before = hexagon.hmx_counts();
        run(&hexagon, &subgraph, &input).unwrap();
        let counts = hexagon.hmx_counts();
        // Four tiles of columns, with those of the check sums, and two of rows: a clear, a packet of two, and four planes.
        assert_eq!(counts.instructions - before.instructions, instructions);
        assert_eq!(counts.bytes > 0 && counts.used > 0, unit == Unit::Hmx);
        assert_eq!(hexagon.unit(), unit);
    }
    let hexagon = open(&options, None).unwrap();
    assert_eq!(hexagon.unit(), Unit::Hmx, "it is the default");
    assert_eq!(
        hexagon.unit_report(),
        "HMX (a model, which decodes the instruction words)"
    );
}

#[test]
fn a_matmul_with_too_many_features_for_vtcm_runs_on_hvx() {
    let Some(hexagon) = on_hmx() else { return };
    // 4 MiB hold the croutons of 64 rows of 32,480 features, and two halves of buffers for 32 columns.
    for (in_features, is_on_hmx) in [(32_480, true), (32_800, false)] {
        let subgraph = linear(&[[5, in_features]]);
        let input = input(3, &subgraph);
        let before = hexagon.hmx_counts();
        let found = run(&hexagon, &subgraph, &input).unwrap();
        assert!(found == run(&cpu(), &subgraph, &input).unwrap());
        assert_eq!(
            hexagon.hmx_counts() != before,
            is_on_hmx,
            "{in_features} features"
        );
    }
}

/// The program with leaves that can be changed.
struct Leaves {
    folder: TempDir,
    program: Vec<u8>,
    /// Bytes of the words in the program.
    place: std::ops::Range<usize>,
}

impl Leaves {
    fn new(options: &HexagonOptions) -> Self {
        let program = fs::read(&options.program).unwrap();
        let find = |name: &[u8; 16]| {
            let mut places = program.windows(16).enumerate();
            places.find(|(_, window)| window == name).unwrap().0
        };
        let place = find(b"TRIAD HMX LEAVES") + 16..find(b"END OF HMX WORDS");
        let folder = tempfile::tempdir().unwrap();
        Self {
            folder,
            program,
            place,
        }
    }

    fn words(&self) -> Vec<u32> {
        let (words, _) = self.program[self.place.clone()].as_chunks();
        words.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    /// Writes a program in which bits of a word are flipped.
    fn flipped(&self, word: usize, bits: u32) -> PathBuf {
        let mut program = self.program.clone();
        let place = self.place.start + 4 * word;
        let flipped = self.words()[word] ^ bits;
        program[place..place + 4].copy_from_slice(&flipped.to_le_bytes());
        let path = self.folder.path().join(format!("{word}-{bits:x}"));
        fs::write(&path, program).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

#[test]
fn each_flipped_bit_of_each_word_of_a_leaf_is_found_and_hvx_computes() {
    let Some(options) = options() else { return };
    let leaves = Leaves::new(&options);
    let words = leaves.words();
    assert_eq!(
        words.len(),
        21,
        "12 words of HMX and the returns of 9 leaves"
    );
    let mut reasons = BTreeMap::<String, usize>::new();
    for word in 0..words.len() {
        for bit in 0..32 {
            let program = leaves.flipped(word, 1 << bit);
            let hexagon = Hexagon::open(&HexagonOptions {
                program: program.clone(),
                transfer_bytes: 1 << 16,
                patience: Duration::from_secs(20),
                ..options.clone()
            })
            .unwrap();
            let report = hexagon.unit_report();
            assert_eq!(
                hexagon.unit(),
                Unit::Hvx,
                "bit {bit} of word {word}: {report}"
            );
            *reasons.entry(report).or_default() += 1;
            fs::remove_file(program).unwrap();
        }
    }
    // Both the decoder and the comparison with HVX find some.
    let found_by = |text: &str| reasons.keys().any(|reason| reason.contains(text));
    assert!(
        found_by("a word is no HMX instruction") && found_by("the result differs from that of HVX"),
        "{reasons:#?}"
    );
}

#[test]
fn a_packet_that_is_cut_in_two_is_found() {
    let Some(options) = options() else { return };
    let leaves = Leaves::new(&options);
    // The activations of the three products, whose parse bits are 01 before a weight.
    let words = leaves.words().into_iter().enumerate();
    let activations: Vec<_> = words
        .filter(|(_, word)| word >> 21 == 0x490 && word >> 14 & 3 == 1)
        .map(|(index, _)| index)
        .collect();
    assert_eq!(activations.len(), 3);
    for word in activations {
        let options = HexagonOptions {
            program: leaves.flipped(word, 1 << 15),
            patience: Duration::from_secs(20),
            ..options.clone()
        };
        let report = open(&options, None).unwrap().unit_report();
        let expected = "HVX, since HMX can't be used: a packet does not have an activation and then a weight, in ";
        assert!(report.starts_with(expected), "{report}");
        // The result is still right, and who asks for HMX gets an error.
        let hexagon = open(&options, None).unwrap();
        let subgraph = linear(&[[40, 32]]);
        let input = input(3, &subgraph);
        assert!(
            run(&hexagon, &subgraph, &input).unwrap() == run(&cpu(), &subgraph, &input).unwrap()
        );
        let error = open(&options, Some(Unit::Hmx)).unwrap_err().to_string();
        assert!(
            error.contains("a packet does not have an activation and then a weight")
                && error.contains("expected HMX, or no option unit=hmx"),
            "{error}"
        );
    }
}

/// Numbers of leaves.
const MULTIPLY_INT8: u64 = 2;
const MULTIPLY_INT4: u64 = 3;
const LOAD_TABLE: u64 = 5;
const STORE: u64 = 7;
/// Bytes of VTCM, and of a boundary.
const NEAR: u64 = 4 << 20;
const CUT: u64 = 256 << 10;

#[test]
fn an_operand_that_breaks_a_rule_of_hmx_ends_the_device_by_name() {
    let Some(options) = options() else { return };
    let multiply = |x, of_x, w, of_w| (MULTIPLY_INT8, [x, of_x, w, of_w]);
    let (one, two) = (2047, 4095);
    for (leaf, registers) in [
        multiply(0, one, 4096, 1023),
        // The last places that are allowed.
        multiply(CUT - 4096, two, CUT - 2048, 2047),
        multiply(NEAR - 65536, 65535, NEAR - 32768, 32767),
        (MULTIPLY_INT4, [0, two, 4096, 1023]),
        (STORE, [NEAR - 2048, 0, 0, 0]),
        (LOAD_TABLE, [NEAR - 128, 0, 0, 0]),
    ] {
        let hexagon = open(&options, Some(Unit::Hmx)).unwrap();
        hexagon.issue(leaf, registers).unwrap();
    }
    let (alignment, outside) = ("an address is not aligned", "an address is outside of VTCM");
    let cut = "an operand crosses a boundary of 256 KiB";
    let (count, lengths) = (
        "the number of croutons is out of range",
        "weights end before or after activations",
    );
    for ((leaf, registers), expected) in [
        (multiply(1024, one, 4096, 1023), alignment),
        (multiply(4, one, 4096, 1023), alignment),
        (multiply(0, one, 4096 + 64, 1023), alignment),
        ((STORE, [1024, 0, 0, 0]), alignment),
        ((LOAD_TABLE, [64, 0, 0, 0]), alignment),
        (multiply(NEAR, one, 0, 1023), outside),
        (multiply(0, one, NEAR, 1023), outside),
        (
            multiply(u64::from(2048u32.wrapping_neg()), one, 0, 1023),
            outside,
        ),
        ((STORE, [NEAR, 0, 0, 0]), outside),
        (
            (LOAD_TABLE, [u64::from(128u32.wrapping_neg()), 0, 0, 0]),
            outside,
        ),
        (multiply(CUT - 2048, two, 0, 2047), cut),
        (multiply(0, two, CUT - 1024, 2047), cut),
        // 33 croutons; a part of one; a store with features.
        (multiply(0, 33 * 2048 - 1, CUT, 33 * 1024 - 1), count),
        (multiply(0, 0x7c, 4096, 1023), count),
        ((STORE, [0, 2047, 0, 0]), count),
        (multiply(0, two, 8192, 1023), lengths),
        (multiply(0, one, 8192, 2047), lengths),
        (multiply(0, one, 8192, 1000), lengths),
        ((MULTIPLY_INT4, [0, one, 8192, 1023]), lengths),
    ] {
        let hexagon = open(&options, Some(Unit::Hmx)).unwrap();
        let error = hexagon.issue(leaf, registers).unwrap_err().to_string();
        assert!(
            error.ends_with(&format!(
                "the model of HMX refuses an instruction: {expected}"
            )),
            "leaf {leaf} with {registers:?}: {error}"
        );
    }
}

#[test]
fn a_table_with_fields_that_the_model_does_not_have_is_refused_when_it_is_used() {
    let Some(hexagon) = on_hmx() else { return };
    // A tile's activations, all ones in bits, are at 10 KiB in VTCM.
    hexagon.multiply_tile(0, &[255; 2048], &[0; 1024]).unwrap();
    hexagon.issue(LOAD_TABLE, [10 << 10, 0, 0, 0]).unwrap();
    let error = hexagon.issue(STORE, [0; 4]).unwrap_err().to_string();
    assert!(
        error.ends_with("the model does not have fields of a table"),
        "{error}"
    );
}

#[test]
fn activations_and_weights_of_types_that_do_not_fit_are_found() {
    let Some(options) = options() else { return };
    let leaves = Leaves::new(&options);
    let words = leaves.words();
    // Makes weight.b of the INT8 leaf weight.hf.
    let word = words.iter().position(|word| *word == 0x9202_e3e0).unwrap();
    let options = HexagonOptions {
        program: leaves.flipped(word, 0x0f),
        ..options
    };
    let report = open(&options, None).unwrap().unit_report();
    assert!(
        report.contains("activations and weights have types that do not fit each other"),
        "{report}"
    );
}

#[test]
fn a_word_that_changes_after_the_proof_ends_the_run_by_name() {
    let Some(hexagon) = on_hmx() else { return };
    let subgraph = linear(&[[40, 32]]);
    let input = input(3, &subgraph);
    let mut program = hexagon.prepare(&subgraph, 3).unwrap();
    run_program(&mut *program, &subgraph, &input).unwrap();
    // Makes weight.b of the INT8 leaf weight.b:deep.
    change_leaf(hexagon.process().unwrap(), 0x9202_e3e0, 0x9202_e3e8);
    let error = run_program(&mut *program, &subgraph, &input).unwrap_err();
    assert_eq!(
        error.to_string(),
        "npu:hexagon failed: the model of HMX refuses an instruction: the model does not have an instruction"
    );
    let again = run_program(&mut *program, &subgraph, &input).unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
}

/// Replaces a word of a leaf in the memory of a process.
fn change_leaf(process: u32, from: u32, to: u32) {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let memory = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/{process}/mem"))
        .unwrap();
    let mut changed = 0;
    for line in maps.lines() {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        // The text of the program is small. The emulator has copies of pages of its file, of which one is executed.
        let mut bytes = vec![0; (end - start).min(1 << 20) as usize];
        if memory.read_exact_at(&mut bytes, start).is_err() {
            continue;
        }
        let leaves = bytes.windows(16).enumerate();
        for (leaves, _) in leaves.filter(|(_, window)| window == b"TRIAD HMX LEAVES") {
            let mut words = bytes[leaves..].chunks_exact(4);
            if let Some(word) = words.position(|word| word == from.to_le_bytes()) {
                let place = start + (leaves + 4 * word) as u64;
                memory.write_all_at(&to.to_le_bytes(), place).unwrap();
                changed += 1;
            }
        }
    }
    assert!(changed > 0, "the leaves are in memory");
}
