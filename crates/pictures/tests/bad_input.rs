//! Files that are not pictures, broken, truncated or too large: an error each, and no panic.

use std::fs;
use std::path::{Path, PathBuf};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use triad_pictures::{Error, Head, Picture, Processor};

/// Number of mutated files.
const MUTATED: usize = 2000;
/// Maximum memory of this process in KiB.
const MEMORY: u64 = 1 << 20;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures")
}

fn files() -> Vec<(String, Vec<u8>)> {
    let folder = fs::read_dir(golden().join("files")).unwrap();
    let mut files: Vec<_> = folder
        .map(|file| {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// Changes a few places of `bytes`, or their number.
fn mutate(bytes: &mut Vec<u8>, random: &mut ChaCha8Rng) {
    for _ in 0..=random.next_u32() % 4 {
        if bytes.is_empty() {
            return;
        }
        let place = random.next_u32() as usize % bytes.len();
        let length = random.next_u32() as usize % 9;
        let end = (place + length).min(bytes.len());
        match random.next_u32() % 6 {
            0 => bytes[place] ^= 1 << (random.next_u32() % 8),
            1 => bytes[place] = random.next_u32() as u8,
            2 => bytes[place..end].fill(0xff),
            3 => bytes[place..end].fill(0),
            4 => drop(bytes.drain(place..end)),
            _ => {
                let more = bytes[place..end].to_vec();
                bytes.splice(place..place, more);
            }
        }
    }
    if random.next_u32().is_multiple_of(8) {
        bytes.truncate(random.next_u32() as usize % (bytes.len() + 1));
    }
}

/// Returns the most memory that this process had, in KiB, if the system tells.
fn peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

#[test]
fn mutated_pictures_are_errors_or_pictures_within_the_limits() {
    let files = files();
    let folder = golden().join("processors/small-smolvlm");
    let processor = Processor::from_folder(&folder).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(57);
    let (mut errors, mut pictures) = (0, 0);
    for index in 0..MUTATED {
        let mut bytes = files[index % files.len()].1.clone();
        // Half of the mutations are in the heads of the files.
        let head = bytes.len().min(64);
        if index % 2 == 0 {
            let tail = bytes.split_off(head);
            mutate(&mut bytes, &mut random);
            bytes.extend(tail);
        } else {
            mutate(&mut bytes, &mut random);
        }
        match Picture::decode(&bytes) {
            Ok(picture) => {
                pictures += 1;
                let head = Head::read(&bytes).unwrap();
                assert_eq!((head.width, head.height), (picture.width, picture.height));
                let pixels = picture.width as usize * picture.height as usize;
                assert_eq!(picture.rgb.len(), pixels * 3);
                if pixels < 1 << 20 {
                    let prepared = processor.prepare(&picture).unwrap();
                    let layout = processor.layout(head.width, head.height).unwrap();
                    assert_eq!(layout.pieces, prepared.pieces);
                }
            }
            Err(error) => {
                errors += 1;
                assert!(!error.to_string().contains('\n'), "{error}");
            }
        }
    }
    assert!(
        errors > MUTATED / 4 && pictures > MUTATED / 10,
        "{errors}, {pictures}"
    );
    assert!(peak().is_none_or(|peak| peak < MEMORY), "{:?} KiB", peak());
}

#[test]
fn truncated_pictures_are_refused() {
    for (name, bytes) in files() {
        // The pixels of the smallest files, and the first picture of animations, are in their first half.
        if bytes.len() < 300 || name.starts_with("animated") {
            continue;
        }
        let error = Picture::decode(&bytes[..bytes.len() / 2]).map(|_| name.clone());
        let error = error.unwrap_err().to_string();
        let is_clear = error.contains("truncated") || error.contains("can't be decoded");
        assert!(is_clear, "{name}: {error}");
    }
}

/// Returns the file `name` with other bytes at `place`.
fn with(name: &str, place: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = fs::read(golden().join("files").join(name)).unwrap();
    file[place..place + bytes.len()].copy_from_slice(bytes);
    file
}

/// A PNG file with a head of these sizes and no pixels.
fn head_of_png(width: u32, height: u32) -> Vec<u8> {
    let mut head = b"IHDR".to_vec();
    head.extend([width.to_be_bytes(), height.to_be_bytes()].concat());
    head.extend([8, 2, 0, 0, 0]);
    let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\x0d".to_vec();
    file.extend(&head);
    file.extend(crc32(&head).to_be_bytes());
    // A chunk of data of one byte, so that the head ends.
    let data = b"IDATx";
    file.extend([0, 0, 0, 1]);
    file.extend(data);
    file.extend(crc32(data).to_be_bytes());
    file
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 * (crc & 1))
        })
    })
}

#[test]
fn sizes_beyond_the_limits_are_refused_before_memory_is_taken() {
    let bombs = [
        head_of_png(100_000, 1),
        head_of_png(1, 100_000),
        head_of_png(16_384, 16_384),
        // Width and height of a GIF's screen and of a BMP.
        with("still.gif", 6, &[0xff; 4]),
        with("24.bmp", 18, &[0x20, 0x4e, 0, 0, 200, 0, 0, 0]),
    ];
    for bomb in bombs {
        let error = Picture::decode(&bomb).unwrap_err();
        assert!(matches!(error, Error::TooManyPixels { .. }), "{error:?}");
        let error = Head::read(&bomb).unwrap_err();
        assert!(matches!(error, Error::TooManyPixels { .. }), "{error:?}");
    }
    assert!(Picture::decode(&head_of_png(u32::MAX >> 1, u32::MAX >> 1)).is_err());
    let error = Picture::decode(&head_of_png(2010, 10)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the picture has 2010 × 10 pixels, expected at most 200 times as many on one side as on the other"
    );
    let error = Picture::decode(&vec![0; (64 << 20) + 1]).unwrap_err();
    assert!(matches!(error, Error::TooManyBytes(_)), "{error}");
    assert!(peak().is_none_or(|peak| peak < MEMORY), "{:?} KiB", peak());
}
