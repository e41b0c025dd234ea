//! Shadows from rows of channels have the bits of the weights in place, or there is a failure and the weights in place
//! are used.

use std::fs;

use proptest::prelude::*;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use triad_kernels::int8::{QuantizedRows, shadow_apart};

use super::*;
use crate::quantization::DecodeWeights;
use crate::{LoadOptions, Model, Threads, testing};

const BLOCK: usize = 1;

fn float(family: &str) -> Arc<Model> {
    let path = format!(
        "{}/../../tests/golden/families/{family}",
        env!("CARGO_MANIFEST_DIR")
    );
    Arc::new(
        Model::load(
            path.as_ref(),
            &LoadOptions {
                threads: Threads::Count(1),
                ..Default::default()
            },
        )
        .unwrap(),
    )
}

/// Returns a model in INT8 with all of its shadows.
fn int8(family: &str) -> Model {
    testing::quantize(
        &float(family),
        &[3, 1, 4, 1, 5, 9, 2, 6],
        0.0,
        DecodeWeights::Int8,
    )
}

/// A model with the file of its rows.
struct Rows {
    model: Model,
    folder: TempDir,
}

impl Rows {
    fn new(family: &str) -> Self {
        Self {
            model: int8(family),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("rows")
    }

    fn open(&self) -> std::io::Result<ChannelRows> {
        ChannelRows::open(
            &self.path(),
            (self.model.description(), self.model.weights()),
            "name",
            &|_, _| true,
        )
    }

    fn start(&self, hot: &[u32]) -> OutlierWeightCache {
        let blocks = self.model.weights().blocks.len();
        OutlierWeightCache::start(Arc::new(self.open().unwrap()), blocks, &|_, _| {
            Some(hot.to_vec())
        })
        .unwrap()
    }

    fn readers(&self, input: LinearInput) -> Vec<&crate::weights::Int8Matrix> {
        ChannelRows::readers(
            self.model.description(),
            BLOCK,
            &self.model.weights().blocks[BLOCK],
            input,
        )
    }

    fn channels(&self, input: LinearInput) -> usize {
        self.readers(input)[0].view().in_features
    }

    /// Computes the shadow from the weights in place.
    fn expected(&self, input: LinearInput, x: QuantizedView) -> Vec<f32> {
        let of_layer = |matrix: &crate::weights::Int8Matrix| {
            let mut out = vec![7.0; x.rows() * matrix.out_features()];
            shadow_apart(
                x,
                matrix.view(),
                OutputMut::new(&mut out, matrix.out_features()),
            );
            out
        };
        self.readers(input).into_iter().flat_map(of_layer).collect()
    }

    /// Computes the shadow from `rows`; `None` if they are not used.
    fn shadow(
        &self,
        rows: &OutlierWeightCache,
        input: LinearInput,
        x: QuantizedView,
        requested: Option<Requested>,
    ) -> Option<Vec<f32>> {
        let scales: Vec<_> = self
            .readers(input)
            .iter()
            .map(|matrix| matrix.view().scales)
            .collect();
        let mut out = vec![7.0; x.rows() * scales.iter().map(|scales| scales.len()).sum::<usize>()];
        rows.shadow((BLOCK, input), x, requested, &scales, &mut out)
            .then_some(out)
    }
}

/// Quantizes `x[rows, channels]` to INT8 with a clip threshold of 1.
fn quantized(x: &[f32], channels: usize) -> QuantizedRows {
    let mut rows = QuantizedRows::default();
    rows.quantize_static(x, channels, 1.0 / 127.0, None, true);
    rows
}

/// Returns rows with outliers in these channels.
fn with_outliers(rows: usize, channels: usize, outliers: &[(usize, usize)]) -> QuantizedRows {
    let mut x: Vec<f32> = (0..rows * channels)
        .map(|index| (index * 37 % 200) as f32 / 200.0 - 0.5)
        .collect();
    outliers
        .iter()
        .for_each(|(row, channel)| x[row * channels + channel] = 2.5 + *channel as f32);
    quantized(&x, channels)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_shadow_by_rows_has_the_bits_of_the_weights_in_place(
        family in prop::sample::select(vec!["llama", "qwen2", "phi2"]),
        input in 0usize..4,
        outliers in prop::collection::vec((0usize..5, 0usize..1000), 0..40),
        hot in prop::collection::vec(0u32..16, 0..8),
        early: bool,
    ) {
        let (rows, input) = (Rows::new(family), LinearInput::DENSE[input]);
        let channels = rows.channels(input);
        let outlier_cache = rows.start(&hot);
        let outliers: Vec<_> = outliers.iter().map(|(row, channel)| (*row, channel % channels)).collect();
        let x = with_outliers(5, channels, &outliers);
        for _ in 0..2 {
            let requested = early.then(|| outlier_cache.request(BLOCK, input, x.view())).flatten();
            let shadow = rows.shadow(&outlier_cache, input, x.view(), requested).unwrap();
            let bits = |x: Vec<f32>| x.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            prop_assert_eq!(bits(shadow), bits(rows.expected(input, x.view())));
        }
    }
}

#[test]
fn hits_and_misses_are_counted_by_channel_and_chunk() {
    let rows = Rows::new("llama");
    let outlier_cache = rows.start(&[1, 4]);
    let channels = rows.channels(LinearInput::FeedForward);
    let features: usize = rows
        .readers(LinearInput::FeedForward)
        .iter()
        .map(|matrix| matrix.out_features())
        .sum();
    // Channel 1 is an outlier in both rows, 2, 3 and 7 in one; 4 is hot and has no outliers.
    let x = with_outliers(2, channels, &[(0, 1), (1, 1), (0, 2), (1, 3), (1, 7)]);
    let requested = outlier_cache.request(BLOCK, LinearInput::FeedForward, x.view());
    assert_eq!(
        outlier_cache.usage().statistics,
        OutlierCacheStatistics::default(),
        "no row was used yet"
    );
    rows.shadow(
        &outlier_cache,
        LinearInput::FeedForward,
        x.view(),
        requested,
    )
    .unwrap();
    let usage = outlier_cache.usage();
    let OutlierCacheStatistics {
        hits,
        misses,
        bytes_read,
        ..
    } = usage.statistics;
    assert_eq!(
        (hits, misses, bytes_read),
        (1, 3, 3 * (features as u64 + 16))
    );
    assert_eq!(usage.statistics.hit_rate(), 0.25);
    assert_eq!(usage.file_bytes, fs::metadata(rows.path()).unwrap().len());
    // Without outliers, there is nothing to read.
    let x = with_outliers(2, channels, &[]);
    assert!(
        outlier_cache
            .request(BLOCK, LinearInput::FeedForward, x.view())
            .is_none()
    );
    assert_eq!(outlier_cache.usage(), usage);
}

#[test]
fn what_was_requested_for_another_input_is_not_used() {
    let rows = Rows::new("llama");
    let outlier_cache = rows.start(&[]);
    let [attention, feed_forward] = [LinearInput::Attention, LinearInput::FeedForward];
    let channels = rows.channels(attention);
    let (x, other) = (
        with_outliers(2, channels, &[(0, 1)]),
        with_outliers(2, channels, &[(1, 5)]),
    );
    let requested = outlier_cache.request(BLOCK, feed_forward, other.view());
    assert_eq!(
        rows.shadow(&outlier_cache, attention, x.view(), requested)
            .unwrap(),
        rows.expected(attention, x.view())
    );
}

#[test]
fn a_file_of_another_model_or_length_is_made_again() {
    let rows = Rows::new("llama");
    let written = {
        rows.open().unwrap();
        fs::read(rows.path()).unwrap()
    };
    let other = ChannelRows::open(
        &rows.path(),
        (rows.model.description(), rows.model.weights()),
        "another name",
        &|_, _| true,
    );
    drop(other.unwrap());
    assert_ne!(
        fs::read(rows.path()).unwrap(),
        written,
        "it was another model's"
    );
    let [mut shorter, mut longer, mut other] = [&written; 3].map(Clone::clone);
    shorter.pop();
    longer.push(0);
    other[0] ^= 1;
    for damaged in [shorter, longer, other, Vec::new()] {
        fs::write(rows.path(), damaged).unwrap();
        rows.open().unwrap();
        assert!(fs::read(rows.path()).unwrap() == written);
    }
    let modified = |path: PathBuf| fs::metadata(path).unwrap().modified().unwrap();
    let before = modified(rows.path());
    rows.open().unwrap();
    assert_eq!(modified(rows.path()), before, "a complete file is used");
}

#[test]
fn rows_that_somebody_put_there_with_hashes_of_their_own_are_never_used() {
    let rows = Rows::new("llama");
    let place = rows
        .open()
        .unwrap()
        .place(0, LinearInput::Attention)
        .unwrap();
    let mut bytes = fs::read(rows.path()).unwrap();
    let (header, records) = bytes.split_at_mut(40);
    for (channel, record) in (0u32..).zip(
        records
            .chunks_exact_mut(place.record())
            .take(place.channels),
    ) {
        let (row, check) = record.split_at_mut(place.features);
        row.iter_mut().for_each(|weight| *weight ^= 1);
        // A hash with the file's own key in place of the secret.
        let mut hash = Sha256::new_with_prefix(&header[8..]);
        hash.update(40u64.to_le_bytes());
        hash.update(channel.to_le_bytes());
        hash.update(row);
        check.copy_from_slice(&hash.finalize()[..16]);
    }
    fs::write(rows.path(), bytes).unwrap();
    let error = rows
        .open()
        .unwrap()
        .read(&place, &[0, 5], &mut Vec::new())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
}

#[test]
fn a_damaged_row_is_never_used() {
    let rows = Rows::new("llama");
    let input = LinearInput::Down;
    let channels = rows.channels(input);
    let x = with_outliers(2, channels, &[(0, 3), (1, 3), (1, 4)]);
    let damages: [&dyn Fn(&fs::File); 3] = [
        &|file| file.set_len(60).unwrap(),
        &|file| file.set_len(0).unwrap(),
        &|mut file| {
            use std::io::{Read, Seek, SeekFrom, Write};
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            // Changes every number except those of the header.
            bytes[40..].iter_mut().for_each(|byte| *byte ^= 1);
            file.seek(SeekFrom::Start(0)).unwrap();
            file.write_all(&bytes).unwrap();
        },
    ];
    for damage in damages {
        let outlier_cache = rows.start(&[4]);
        damage(
            &fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(rows.path())
                .unwrap(),
        );
        let requested = outlier_cache.request(BLOCK, input, x.view());
        assert_eq!(
            rows.shadow(&outlier_cache, input, x.view(), requested),
            None,
            "the weights in place are used"
        );
        let failure = outlier_cache.usage().failure.unwrap();
        assert!(
            failure.starts_with(&*rows.path().to_string_lossy()),
            "{failure}"
        );
        assert!(!rows.path().exists(), "the next run creates it again");
        // The weights in place are also used from now on.
        assert!(outlier_cache.request(BLOCK, input, x.view()).is_none());
        assert_eq!(rows.shadow(&outlier_cache, input, x.view(), None), None);
    }
    // A damaged hot row is found when it is read.
    drop(rows.open().unwrap());
    let mut bytes = fs::read(rows.path()).unwrap();
    bytes[40] ^= 1;
    fs::write(rows.path(), bytes).unwrap();
    let started = OutlierWeightCache::start(Arc::new(rows.open().unwrap()), BLOCK + 1, &|_, _| {
        Some(vec![0])
    });
    assert_eq!(started.err().unwrap().kind(), ErrorKind::InvalidData);
}

#[test]
fn rows_of_channels_that_changed_places_are_refused() {
    let rows = Rows::new("llama");
    let opened = rows.open().unwrap();
    let place = opened.place(0, LinearInput::Attention).unwrap();
    let mut bytes = fs::read(rows.path()).unwrap();
    let (one, other) = bytes[40..].split_at_mut(place.record());
    one.swap_with_slice(&mut other[..place.record()]);
    fs::write(rows.path(), bytes).unwrap();
    let opened = rows.open().unwrap();
    for channel in [0, 1] {
        assert_eq!(
            opened
                .read(&place, &[channel], &mut Vec::new())
                .unwrap_err()
                .kind(),
            ErrorKind::InvalidData
        );
    }
    opened.read(&place, &[2, 3, 5], &mut Vec::new()).unwrap();
    let outside = opened.read(&place, &[place.channels as u32], &mut Vec::new());
    assert_eq!(outside.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn rows_that_are_no_longer_wanted_are_not_read_and_delay_no_request() {
    let rows = Rows::new("llama");
    let outlier_cache = rows.start(&[]);
    let input = LinearInput::Attention;
    let x = with_outliers(2, rows.channels(input), &[(0, 1), (1, 9)]);
    for _ in 0..1000 {
        drop(outlier_cache.request(BLOCK, input, x.view()));
    }
    let requested = outlier_cache.request(BLOCK, input, x.view());
    assert_eq!(
        rows.shadow(&outlier_cache, input, x.view(), requested)
            .unwrap(),
        rows.expected(input, x.view())
    );
    assert_eq!(outlier_cache.usage().statistics.misses, 2);
}
