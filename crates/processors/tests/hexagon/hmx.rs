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

/// Kinds of weights of `multiply_tile`.
const INT8: u64 = 0;
const INT4: u64 = 1;
const FP16: u64 = 2;

/// Multiplies a tile of one crouton of zeros.
fn try_tile(hexagon: &Hexagon, kind: u64) -> Result<Vec<u8>> {
    let weights = [1024, 512, 2048][kind as usize];
    hexagon.multiply_tile(kind, &[0; 2048], &vec![0; weights])
}

fn assert_bits_of_the_cpu(hexagon: &Hexagon) {
    let subgraph = linear(&[[40, 32]]);
    let input = input(3, &subgraph);
    assert!(run(hexagon, &subgraph, &input).unwrap() == run(&cpu(), &subgraph, &input).unwrap());
}

/// For each leaf, the number of its first word, how many words it has with its return, and the kind of products that need
/// it.
const LEAVES: [(usize, usize, u64); 9] = [
    (0, 2, INT8),
    (2, 2, FP16),
    (4, 3, INT8),
    (7, 3, INT4),
    (10, 3, FP16),
    (13, 2, INT8),
    (15, 2, INT8),
    (17, 2, INT8),
    (19, 2, FP16),
];

#[test]
fn each_flipped_bit_of_each_word_of_a_leaf_is_found_by_the_proof_of_its_products() {
    let Some(options) = options() else { return };
    let leaves = Leaves::new(&options);
    assert_eq!(
        leaves.words().len(),
        21,
        "12 words of HMX and the returns of 9 leaves"
    );
    let mut reasons = BTreeMap::<String, usize>::new();
    for (leaf, (first, words, kind)) in LEAVES.into_iter().enumerate() {
        let is_return = |word: usize| word + 1 == first + words;
        let flips = (first..first + words).flat_map(|word| (0..32).map(move |bit| (word, bit)));
        // All returns are the same word: of the first one each bit is flipped, of the others every eighth one.
        let flips =
            flips.filter(|(word, bit)| !is_return(*word) || leaf == 0 || bit % 8 == leaf % 8);
        for (word, bit) in flips {
            let program = leaves.flipped(word, 1 << bit);
            let hexagon = Hexagon::open(&HexagonOptions {
                program: program.clone(),
                transfer_bytes: 1 << 16,
                threads: Some(1),
                patience: Duration::from_secs(20),
                ..options.clone()
            })
            .unwrap();
            // INT8 products depend on their own leaves only.
            let expected = if kind == INT8 { Unit::Hvx } else { Unit::Hmx };
            assert_eq!(hexagon.unit(), expected, "bit {bit} of word {word}");
            if bit == 5 {
                assert_bits_of_the_cpu(&hexagon);
            }
            let report = if kind == INT8 {
                hexagon.unit_report()
            } else {
                try_tile(&hexagon, kind).unwrap_err().to_string()
            };
            let name = ["INT8 product", "INT4 product", "fp16 product"][kind as usize];
            let (found, check) = report.rsplit_once(", in ").unwrap();
            assert!(
                check.contains(name) && check.ends_with(" of its proof"),
                "bit {bit} of word {word}: {report}"
            );
            let (_, reason) = found.rsplit_once(": ").unwrap();
            if is_return(word) {
                assert_eq!(reason, "a packet is not followed by a return");
            }
            *reasons.entry(reason.to_owned()).or_default() += 1;
            fs::remove_file(program).unwrap();
        }
    }
    // Each rule for words, and the comparison with HVX, finds some. No flip of one bit makes activations and weights of types
    // that do not fit each other.
    let found: Vec<_> = reasons.keys().map(String::as_str).collect();
    let expected = [
        "a packet does not have an activation and then a weight",
        "a packet is not followed by a return",
        "a word is no HMX instruction",
        "an instruction reads other registers than its arguments",
        "the model does not have an instruction",
        "the parse bits of a word do not fit an HMX packet",
        "the result differs from that of HVX",
        "weights end before or after activations",
    ];
    assert_eq!(found, expected, "{reasons:#?}");
}

/// Variants of the model: `MODEL_*` of hexagon/protocol.h.
const SMALL: u64 = 1;
const UNALIGNED: u64 = 2;
const CLEARS_BOTH: u64 = 4;
const SHORT: u64 = 8;
const NO_LOCK: u64 = 16;
const LATE_LOCK: u64 = 32;
const DIES: u64 = 64;
const HANGS: u64 = 128;

fn open_variant(model: u64, unit: Option<Unit>) -> Option<Result<Hexagon>> {
    Some(Hexagon::open(&HexagonOptions {
        model,
        unit,
        ..options()?
    }))
}

#[test]
fn hmx_that_can_not_be_used_is_replaced_by_hvx_with_the_reason() {
    let lock = "HVX, since HMX can't be used: its lock is refused, or is not given in time";
    let cases = [
        (
            UNALIGNED,
            "HVX, since HMX can't be used: the VTCM that the DSP gave is not aligned to 2 KiB",
        ),
        // One phone's products were wrong beyond 256 features.
        (
            SHORT,
            "HVX, since HMX can't be used: the result differs from that of HVX, in the long INT8 product of its proof",
        ),
        (NO_LOCK, lock),
        (LATE_LOCK, lock),
        (
            DIES,
            "HVX, since HMX can't be used: the program was started with it, but its process ended: exit status: 1; it \
             was started again",
        ),
        (
            HANGS,
            "HVX, since HMX can't be used: the program was started with it, but it did not report itself within 3.0 s; it \
             was started again",
        ),
    ];
    for (model, report) in cases {
        let Some(hexagon) = open_variant(model, None) else {
            return;
        };
        let hexagon = hexagon.unwrap();
        assert_eq!(
            (hexagon.unit(), &*hexagon.unit_report()),
            (Unit::Hvx, report)
        );
        assert_bits_of_the_cpu(&hexagon);
        let work = hexagon.work().unwrap();
        assert!(
            work.starts_with(&format!("npu:hexagon on {report}: "))
                && work.ends_with(" million packets"),
            "{work}"
        );
        open_variant(model, Some(Unit::Hmx)).unwrap().unwrap_err();
        assert_eq!(
            open_variant(model, Some(Unit::Hvx))
                .unwrap()
                .unwrap()
                .unit_report(),
            "HVX"
        );
    }
}

#[test]
fn little_vtcm_off_a_boundary_and_a_store_that_clears_both_sets_give_the_same_bits() {
    for model in [SMALL, CLEARS_BOTH, SMALL | CLEARS_BOTH] {
        let Some(hexagon) = open_variant(model, Some(Unit::Hmx)) else {
            return;
        };
        let hexagon = hexagon.unwrap();
        // 1 MiB holds the croutons of 64 rows of 8,000 features, but not of 9,000.
        for (out_features, in_features, rows) in
            [(59, 31, 3), (130, 576, 130), (70, 8000, 65), (5, 9000, 2)]
        {
            let subgraph = layer(out_features, in_features, 0);
            let input = input(rows, &subgraph);
            let before = hexagon.hmx_counts();
            let found = run(&hexagon, &subgraph, &input).unwrap();
            assert!(
                found == run(&cpu(), &subgraph, &input).unwrap(),
                "variant {model}, {rows} rows, {out_features} by {in_features}"
            );
            let is_on_hmx = model & SMALL == 0 || in_features < 9000;
            assert_eq!(hexagon.hmx_counts() != before, is_on_hmx);
        }
        let work = hexagon.work().unwrap();
        let programs = if model & SMALL == 0 { 4 } else { 3 };
        assert!(
            work.starts_with(&format!(
                "npu:hexagon on HMX (a model, which decodes the instruction words), {programs} of 4 programs: "
            )) && work.contains(" instructions of HMX, "),
            "{work}"
        );
        for kind in [INT8, INT4, FP16] {
            try_tile(&hexagon, kind).unwrap();
        }
    }
}

#[test]
fn only_the_first_session_has_hmx() {
    let Some(options) = options() else { return };
    let hexagon = Hexagon::open(&HexagonOptions {
        sessions: 3,
        ..options
    })
    .unwrap();
    assert_eq!(
        hexagon.unit_report(),
        "HMX (a model, which decodes the instruction words); of 2 more: HVX, since HMX can't be used: it is for the \
         first session"
    );
}

#[test]
fn a_product_after_a_pause_takes_the_lock_of_hmx_again() {
    let Some(hexagon) = on_hmx() else { return };
    assert_bits_of_the_cpu(&hexagon);
    std::thread::sleep(Duration::from_millis(400));
    let before = hexagon.hmx_counts();
    assert_bits_of_the_cpu(&hexagon);
    assert!(hexagon.hmx_counts() != before);
}

#[test]
fn a_tile_of_other_lengths_than_its_kind_has_is_refused_and_the_device_goes_on() {
    let Some(options) = options() else { return };
    let hexagon = open(&options, Some(Unit::Hmx)).unwrap();
    for (kind, activations, weights) in [
        (INT8, 0, 0),
        (INT8, 2047, 1024),
        (INT8, 2048, 1023),
        (INT8, 2048, 2048),
        (INT4, 4096, 512),
        (FP16, 2048, 1024),
        (3, 2048, 2048),
        (u64::MAX, 2048, 2048),
    ] {
        let found = hexagon.multiply_tile(kind, &vec![0; activations], &vec![0; weights]);
        let error = found.unwrap_err().to_string();
        assert!(
            error.ends_with(&format!("of kind {kind} are no tile")),
            "{error}"
        );
    }
    assert_eq!(try_tile(&hexagon, INT8).unwrap(), [0; 8192]);
    let hexagon = open(&options, Some(Unit::Hvx)).unwrap();
    try_tile(&hexagon, INT8).unwrap_err();
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
    for (word, kind) in activations.into_iter().zip([INT8, INT4, FP16]) {
        let options = HexagonOptions {
            program: leaves.flipped(word, 1 << 15),
            patience: Duration::from_secs(20),
            ..options.clone()
        };
        let hexagon = open(&options, None).unwrap();
        assert_bits_of_the_cpu(&hexagon);
        let expected = "a packet does not have an activation and then a weight, in the ";
        let report = if kind == INT8 {
            hexagon.unit_report()
        } else {
            try_tile(&hexagon, kind).unwrap_err().to_string()
        };
        assert!(report.contains(expected), "{report}");
        // It is an error if HMX is asked for.
        let with_hmx = open(&options, Some(Unit::Hmx));
        if kind != INT8 {
            with_hmx.unwrap();
            continue;
        }
        let error = with_hmx.unwrap_err().to_string();
        assert!(
            error.contains(expected) && error.contains("expected HMX, or no option unit=hmx"),
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
