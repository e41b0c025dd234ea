//! Measures the machine's peak rates.

use serde::Serialize;
use triad_kernels::peak;

use triad_console::arithmetic::Arithmetic;
use triad_frontend::machine::Cache;

/// Peak rates of some threads together.
#[derive(Serialize)]
pub struct Peaks {
    #[serde(flatten)]
    pub arithmetic: Arithmetic,
    /// Memory levels, the nearest to the core first; the last one is memory.
    pub levels: Vec<Level>,
}

/// A level of the memory hierarchy.
#[derive(Clone, Serialize)]
pub struct Level {
    pub name: String,
    /// Bytes that it holds for all these threads together; `None` for memory.
    pub bytes: Option<u64>,
    pub bytes_read_per_second: f64,
}

impl Peaks {
    /// Measures for some seconds. `caches` are in the order of the machine's list, nearest first.
    pub fn measure(threads: usize, caches: &[Cache]) -> Self {
        let mut levels: Vec<_> = caches
            .iter()
            .map(|cache| {
                // Each thread has its own instance of the cache, as long as there are enough.
                let bytes = cache.bytes * cache.count.min(threads) as u64;
                Level {
                    name: format!("L{}", cache.level),
                    bytes: Some(bytes),
                    bytes_read_per_second: peak::bytes_read_per_second(threads, bytes as usize / 2),
                }
            })
            .collect();
        let bytes_read_per_second = peak::bytes_read_per_second(threads, peak::MEMORY);
        levels.push(Level {
            name: "memory".into(),
            bytes: None,
            bytes_read_per_second,
        });
        Self {
            arithmetic: Arithmetic::measure(threads),
            levels,
        }
    }

    /// Returns the nearest level that holds `bytes`.
    pub fn level_of(&self, bytes: usize) -> &Level {
        let holds = |level: &&Level| level.bytes.is_none_or(|room| bytes as u64 <= room);
        self.levels.iter().find(holds).expect("memory holds all")
    }

    /// Returns the memory level.
    pub fn memory(&self) -> &Level {
        self.levels.last().expect("a machine has memory")
    }

    /// Returns names and rates per second, for people.
    pub fn rates(&self) -> Vec<(String, String)> {
        let giga = |value: f64| format!("{:.0}", value / 1e9);
        let optional = |value: Option<f64>| value.map_or("-".into(), giga);
        let arithmetic = [
            ("INT8", optional(self.arithmetic.int8_operations_per_second)),
            (
                "INT16",
                optional(self.arithmetic.int16_operations_per_second),
            ),
            ("bf16", optional(self.arithmetic.bf16_operations_per_second)),
            ("f32", giga(self.arithmetic.f32_operations_per_second)),
        ];
        let arithmetic = arithmetic.map(|(name, rate)| (format!("{name}, Gop/s"), rate));
        let levels = self.levels.iter().map(|level| {
            (
                format!("{}, GB/s", level.name),
                giga(level.bytes_read_per_second),
            )
        });
        arithmetic.into_iter().chain(levels).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_belong_to_the_nearest_level_that_holds_them() {
        let level = |name: &str, bytes| Level {
            name: name.into(),
            bytes,
            bytes_read_per_second: 1e9,
        };
        let arithmetic = Arithmetic {
            threads: 1,
            int8_operations_per_second: None,
            int16_operations_per_second: None,
            bf16_operations_per_second: None,
            f32_operations_per_second: 1e9,
        };
        let peaks = Peaks {
            arithmetic,
            levels: vec![
                level("L1", Some(100)),
                level("L2", Some(1000)),
                level("memory", None),
            ],
        };
        let names =
            [1, 100, 101, 1000, 1001, usize::MAX].map(|bytes| peaks.level_of(bytes).name.as_str());
        assert_eq!(names, ["L1", "L1", "L2", "L2", "memory", "memory"]);
        assert_eq!(peaks.rates()[0], ("INT8, Gop/s".into(), "-".into()));
    }
}
