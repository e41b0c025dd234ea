//! Each kind of input, from its seeds, with small changes. `TRIAD_MUTATIONS` is the number of inputs of each kind;
//! `fuzz/run` finds more, by coverage.

use std::fs;
use std::panic;
use std::path::{Path, PathBuf};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use triad_untrusted::KINDS;

const MUTATIONS: usize = 300;
/// The size in bytes of this process, beyond which an allocation aborts. Inputs have a few kilobytes.
#[cfg(target_os = "linux")]
const MAX_MEMORY: u64 = 4 << 30;

fn below(random: &mut ChaCha8Rng, most: usize) -> usize {
    random.next_u64() as usize % most.max(1)
}

fn pick<T: Copy>(random: &mut ChaCha8Rng, from: &[T]) -> T {
    from[below(random, from.len())]
}

/// Numbers at the limits of types and of the input.
fn number(random: &mut ChaCha8Rng, length: usize) -> u64 {
    let at = pick(
        random,
        &[
            0,
            1,
            1 << 7,
            1 << 8,
            1 << 15,
            1 << 16,
            1 << 31,
            1 << 32,
            1 << 62,
            1 << 63,
            length as u64,
        ],
    );
    at.wrapping_add(below(random, 5) as u64).wrapping_sub(2)
}

const WORDS: [&[u8]; 14] = [
    b"-1",
    b"0",
    b"1e999",
    b"-0.0",
    b"18446744073709551616",
    b"9223372036854775807",
    b"NaN",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"\"\"",
    b"\"\\u0000\"",
    b"[[[[[[[[",
];

/// Changes an input once.
fn mutate(random: &mut ChaCha8Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let start = below(random, bytes.len());
    let end = start + below(random, (bytes.len() - start).min(64) + 1);
    match below(random, 9) {
        0 => bytes.truncate(start),
        1 if !bytes.is_empty() => bytes[start] ^= 1 << below(random, 8),
        2 if !bytes.is_empty() => {
            bytes[start] = pick(random, &[0, 1, 0x7f, 0x80, 0xff, b'"', b'{', b'\\']);
        }
        3 => drop(bytes.drain(start..end)),
        4 => {
            let twice = bytes[start..end].to_vec();
            bytes.splice(start..start, twice);
        }
        5 => {
            let from = below(random, other.len());
            let to = from + below(random, (other.len() - from).min(64) + 1);
            bytes.splice(start..end, other[from..to].iter().copied());
        }
        // Fields of files begin at multiples of their size more often than not.
        6 | 7 => {
            let width = pick(random, &[2, 4, 8]);
            let start = if below(random, 2) == 0 {
                start
            } else {
                start / width * width
            };
            let value = number(random, bytes.len()).to_le_bytes();
            for (byte, new) in bytes[start..].iter_mut().zip(&value[..width]) {
                *byte = *new;
            }
        }
        // A number in a text.
        _ => {
            let is_digit = |byte: &u8| byte.is_ascii_digit();
            let Some(first) = bytes[start..].iter().position(is_digit) else {
                return;
            };
            let first = start + first;
            let rest = bytes[first..].iter();
            let last = first + rest.take_while(|byte| is_digit(byte)).count();
            let word = pick(random, &WORDS);
            bytes.splice(first..last, word.iter().copied());
        }
    }
}

fn seeds(kind: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let files = fs::read_dir(folder.join(kind)).expect("a folder of seeds");
    let mut seeds: Vec<_> = files
        .map(|file| file.expect("a seed").path())
        .map(|path| (path.clone(), fs::read(path).expect("a seed")))
        .collect();
    seeds.sort();
    seeds
}

#[test]
fn mutated_inputs_of_each_kind_are_accepted_or_refused_within_bounded_memory() {
    let count = std::env::var("TRIAD_MUTATIONS").map_or(MUTATIONS, |count| {
        count.parse().expect("TRIAD_MUTATIONS: expected a number")
    });
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let limit = Rlimit {
            current: Some(MAX_MEMORY),
            maximum: None,
        };
        setrlimit(Resource::As, limit).expect("a lower limit is allowed");
    }
    let folder = std::env::temp_dir().join(format!("triad-mutated-{}", std::process::id()));
    fs::create_dir(&folder).expect("a folder of this process");
    let mut wrong = Vec::new();
    for (kind, read) in KINDS {
        let seeds = seeds(kind);
        assert!(!seeds.is_empty(), "{kind} has no seeds");
        for index in 0..seeds.len() + count {
            let mut random = ChaCha8Rng::seed_from_u64(index as u64);
            let (seed, bytes) = &seeds[index % seeds.len()];
            let mut bytes = bytes.clone();
            // The seeds themselves come first.
            if index >= seeds.len() {
                for _ in 0..=below(&mut random, 3) {
                    let other = below(&mut random, seeds.len());
                    mutate(&mut random, &mut bytes, &seeds[other].1);
                }
            }
            // The file tells which input aborts or ends never.
            let file = folder.join(format!("{kind}-{index}"));
            fs::write(&file, &bytes).expect("room for a file");
            if panic::catch_unwind(|| read(&bytes)).is_err() {
                wrong.push(format!("{} of {}", file.display(), seed.display()));
            } else {
                fs::remove_file(file).expect("a file");
            }
        }
    }
    if wrong.is_empty() {
        fs::remove_dir(&folder).expect("an empty folder");
    }
    assert!(wrong.is_empty(), "panicked: {}", wrong.join("\n"));
}

#[test]
fn fuzz_targets_are_the_kinds_of_inputs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
    let mut targets: Vec<_> = fs::read_dir(folder)
        .expect("the targets")
        .map(|file| file.expect("a target").path())
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    targets.sort();
    assert_eq!(targets, KINDS.map(|(name, _)| name));
}
