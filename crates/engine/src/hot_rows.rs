//! Shadows for a processor that hides its weights (llm.npu, §3.3: "hot channels").
//!
//! Where the CPU can't read the processor's weights it needs rows of its own: those of the channels that have an
//! outlier. A few channels have most of them, so only these stay in memory; the rest is in the package and is read
//! when an outlier requires it, ahead of the moment at which clipped product and shadow are joined.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use serde::Serialize;
use triad_kernels::int8::QuantizedRows;
use triad_model::mapped::MappedBytes;

/// The INT8 weights of one linear layer by channel `[in_features, out_features]`, in a mapped file.
#[derive(Clone)]
pub struct ChannelRows {
    bytes: MappedBytes,
    out_features: usize,
}

impl ChannelRows {
    /// `None` if the bytes are no whole number of rows.
    pub fn new(bytes: MappedBytes, out_features: usize) -> Option<Self> {
        (out_features > 0 && bytes.len().is_multiple_of(out_features)).then_some(Self { bytes, out_features })
    }

    /// The weights that read one channel, copied out of the file.
    fn read(&self, channel: u32) -> Option<Vec<i8>> {
        let start = (channel as usize).checked_mul(self.out_features)?;
        let row = self.bytes.get(start..start.checked_add(self.out_features)?)?;
        Some(bytemuck::cast_slice(row).to_vec())
    }

    fn channels(&self) -> usize {
        self.bytes.len() / self.out_features
    }
}

/// What hot rows saved and what the others cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HotRowStatistics {
    /// Outlier channels of a pass whose row was in memory.
    pub hits: u64,
    /// Outlier channels of a pass whose row was read.
    pub misses: u64,
    /// Bytes read for them.
    pub bytes_read: u64,
    /// Seconds that the join waited for rows that were not there yet.
    pub stall_seconds: f64,
}

impl HotRowStatistics {
    /// Share of the outlier channels whose row was in memory; 1 where there were none.
    pub fn hit_rate(&self) -> f64 {
        let requests = self.hits + self.misses;
        if requests == 0 { 1.0 } else { self.hits as f64 / requests as f64 }
    }
}

impl AddAssign for HotRowStatistics {
    fn add_assign(&mut self, other: Self) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.bytes_read += other.bytes_read;
        self.stall_seconds += other.stall_seconds;
    }
}

/// The rows of one linear layer that its shadow needs: some in memory, the others in a file.
pub struct HotRows {
    hot: BTreeMap<u32, Vec<i8>>,
    /// Of each output channel.
    scales: Vec<f32>,
    channels: usize,
    /// Asks the reader for a row; there as long as the reader runs.
    requests: Option<Sender<u32>>,
    rows: Receiver<(u32, Option<Vec<i8>>)>,
    reader: Option<JoinHandle<()>>,
    statistics: HotRowStatistics,
}

/// Rows that were requested and are on their way.
#[must_use = "the rows are read for a shadow"]
pub struct Requested {
    missing: Vec<u32>,
}

impl HotRows {
    /// Keeps the rows of the `hot` channels in memory. `scales[out_features]` are those of the weights.
    ///
    /// # Errors
    /// If the reading thread cannot be started, a hot channel is not in the file, or the scales are too few.
    pub fn new(rows: ChannelRows, hot: &[u32], scales: &[f32]) -> std::io::Result<Self> {
        let invalid = |message: String| std::io::Error::new(std::io::ErrorKind::InvalidInput, message);
        if scales.len() != rows.out_features {
            return Err(invalid(format!("{} scales, expected {}", scales.len(), rows.out_features)));
        }
        let channels = rows.channels();
        let read = |channel: &u32| {
            let row = rows.read(*channel).ok_or_else(|| invalid(format!("hot channel {channel} of {channels}")))?;
            Ok((*channel, row))
        };
        let hot = hot.iter().map(read).collect::<std::io::Result<_>>()?;
        let (requests, requested) = channel::<u32>();
        let (read_rows, rows_read) = channel();
        let reader = std::thread::Builder::new().name("triad-hot-rows".into()).spawn(move || {
            // Ends when either side is gone.
            for channel in requested {
                if read_rows.send((channel, rows.read(channel))).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self {
            hot,
            scales: scales.to_vec(),
            channels,
            requests: Some(requests),
            rows: rows_read,
            reader: Some(reader),
            statistics: HotRowStatistics::default(),
        })
    }

    /// Begins to read the rows that the outliers of `x` need and that are not in memory. To be called as soon as `x` is
    /// quantized: the reading runs beside the processor's matmul.
    ///
    /// # Panics
    /// If `x` has other channels than the weights.
    pub fn request(&mut self, x: &QuantizedRows) -> Requested {
        assert_eq!(x.in_features(), self.channels, "channels");
        let mut needed: Vec<u32> = (0..x.rows()).flat_map(|row| x.view().outliers_of(row).0).copied().collect();
        needed.sort_unstable();
        needed.dedup();
        let mut missing = Vec::new();
        for channel in &needed {
            if self.hot.contains_key(channel) {
                self.statistics.hits += 1;
            } else {
                let requests = self.requests.as_ref().expect("there until this is dropped");
                requests.send(*channel).expect("the reader runs as long as this value lives");
                missing.push(*channel);
            }
        }
        self.statistics.misses += missing.len() as u64;
        self.statistics.bytes_read += (missing.len() * self.scales.len()) as u64;
        Requested { missing }
    }

    /// Adds the shadow of `x` to what the processor computed, `out[rows, out_features]`, waiting for rows that are still
    /// being read. Gives what [`triad_kernels::int8::shadow`] gives, bit for bit.
    ///
    /// # Panics
    /// If `out` has another shape.
    pub fn join(&mut self, x: &QuantizedRows, requested: Requested, out: &mut [f32]) {
        let start = Instant::now();
        let cold: BTreeMap<u32, Vec<i8>> = requested
            .missing
            .into_iter()
            .map(|_| {
                let (channel, row) = self.rows.recv().expect("the reader runs as long as this value lives");
                (channel, row.expect("outlier channels are within the weights"))
            })
            .collect();
        self.statistics.stall_seconds += start.elapsed().as_secs_f64();
        let out_features = self.scales.len();
        assert_eq!(out.len(), x.rows() * out_features, "output is [{}, {out_features}]", x.rows());
        let mut sums = vec![0.0f32; out_features];
        for (row, out) in out.chunks_exact_mut(out_features).enumerate() {
            let (channels, remainders) = x.view().outliers_of(row);
            if channels.is_empty() {
                continue;
            }
            sums.fill(0.0);
            for (channel, remainder) in channels.iter().zip(remainders) {
                let weights = self.hot.get(channel).or_else(|| cold.get(channel)).expect("hot or requested");
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum += remainder * f32::from(*weight);
                }
            }
            for ((out, sum), scale) in out.iter_mut().zip(&sums).zip(&self.scales) {
                *out += sum * scale;
            }
        }
    }

    /// Bytes of the rows in memory.
    pub fn bytes(&self) -> usize {
        self.hot.values().map(Vec::len).sum()
    }

    /// What was saved and what it cost so far.
    pub fn statistics(&self) -> HotRowStatistics {
        self.statistics
    }
}

impl Drop for HotRows {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(reader) = self.reader.take() {
            // A reader that panicked has nothing left to say.
            let _ = reader.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;
    use triad_kernels::OutputMut;
    use triad_kernels::int8::{self, Int8Weight, matmul_int8, shadow};
    use triad_model::mapped::MappedFile;

    use super::*;

    /// A processor whose weights nobody else can read.
    struct HidingProcessor {
        packed: Vec<i8>,
        scales: Vec<f32>,
        sums: Vec<i32>,
        in_features: usize,
    }

    impl HidingProcessor {
        fn weight(&self) -> Int8Weight<'_> {
            let Self { packed, scales, sums, in_features } = self;
            Int8Weight { out_features: scales.len(), in_features: *in_features, packed, scales, sums }
        }

        fn run(&self, x: &QuantizedRows) -> Vec<f32> {
            let mut out = vec![0.0; x.rows() * self.scales.len()];
            matmul_int8(x.view(), self.weight(), None, OutputMut::new(&mut out, self.scales.len()));
            out
        }
    }

    fn processor(weight: &[f32], in_features: usize) -> (HidingProcessor, MappedBytes) {
        let out_features = weight.len() / in_features;
        let (mut scales, mut rows) = (vec![0.0; out_features], vec![0; weight.len()]);
        int8::quantize_weight_rows(weight, in_features, &mut scales, &mut rows);
        let mut packed = vec![0; int8::packed_len(out_features, in_features).unwrap()];
        int8::pack(&rows, out_features, in_features, &mut packed);
        let mut sums = vec![0; out_features];
        int8::row_sums(&rows, in_features, &mut sums);
        let by_channel: Vec<u8> =
            (0..weight.len()).map(|i| rows[(i % out_features) * in_features + i / out_features] as u8).collect();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&by_channel).unwrap();
        let mapped = MappedFile::open(file.path()).unwrap();
        (HidingProcessor { packed, scales, sums, in_features }, mapped.part(0..weight.len()))
    }

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        (0..count as u64).map(|i| ((i * 2_654_435_761 + seed) % 2001) as f32 / 1000.0 - 1.0).collect()
    }

    proptest! {
        #[test]
        fn a_hidden_processor_with_hot_rows_gives_what_shared_memory_gives(
            rows in 1usize..6, in_features in 1usize..40, out_features in 1usize..40, seed in 0u64..1000, hot in 0u32..8,
        ) {
            let (processor, bytes) = processor(&numbers(in_features * out_features, seed), in_features);
            let hot: Vec<u32> = (0..(in_features as u32).min(hot)).collect();
            let rows_of_channels = ChannelRows::new(bytes, out_features).unwrap();
            let mut hot_rows = HotRows::new(rows_of_channels, &hot, &processor.scales).unwrap();
            let mut x = QuantizedRows::default();
            for chunk in 0..3 {
                x.quantize_static(&numbers(rows * in_features, seed + chunk), in_features, 0.7 / 127.0, None, true);
                let requested = hot_rows.request(&x);
                let mut out = processor.run(&x);
                let mut expected = out.clone();
                hot_rows.join(&x, requested, &mut out);
                shadow(x.view(), processor.weight(), OutputMut::new(&mut expected, out_features));
                prop_assert_eq!(out, expected);
            }
            prop_assert_eq!(hot_rows.bytes(), hot.len() * out_features);
        }
    }

    #[test]
    fn hits_and_misses_are_counted_by_channel_and_pass() {
        let (processor, bytes) = processor(&numbers(3 * 5, 1), 3);
        let mut hot_rows = HotRows::new(ChannelRows::new(bytes, 5).unwrap(), &[1], &processor.scales).unwrap();
        let mut x = QuantizedRows::default();
        // Channel 1 is beyond the clip threshold in both rows, channel 2 in one.
        x.quantize_static(&[0.1, 9.0, 0.1, 0.1, 9.0, -9.0], 3, 1.0 / 127.0, None, true);
        let requested = hot_rows.request(&x);
        hot_rows.join(&x, requested, &mut [0.0; 10]);
        let HotRowStatistics { hits, misses, bytes_read, .. } = hot_rows.statistics();
        assert_eq!((hits, misses, bytes_read, hot_rows.statistics().hit_rate()), (1, 1, 5, 0.5));
    }

    #[test]
    fn a_hot_channel_that_is_not_there_is_an_error() {
        let (processor, bytes) = processor(&numbers(3 * 5, 1), 3);
        assert!(HotRows::new(ChannelRows::new(bytes, 5).unwrap(), &[3], &processor.scales).is_err());
    }
}
