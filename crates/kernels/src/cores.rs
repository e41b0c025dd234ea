//! The cores of this machine: which ones a thread may run on, and which are fast.

use std::io;

/// Maximum number of cores in a set.
const MAX: usize = 1024;
const BITS: usize = u64::BITS as usize;

/// A set of cores, by the system's numbers. Copying needs no allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cores([u64; MAX / BITS]);

impl Cores {
    /// Returns a set of one core.
    pub(crate) fn one(core: usize) -> Self {
        Self::from_iter([core])
    }

    /// Parses numbers and ranges as the system writes them: `0-3,6`.
    ///
    /// # Errors
    /// A description of the expected format, if `text` is no such list, or names a core twice or one above 1023.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "expected numbers of cores from 0 to {}, each once, such as 0-3,6",
                MAX - 1
            )
        };
        let mut cores = Self::from_iter([]);
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<usize>().ok().filter(|core| *core < MAX);
            let (first, last) = number(first).zip(number(last)).ok_or_else(expected)?;
            if first > last || (first..=last).any(|core| cores.contains(core)) {
                return Err(expected());
            }
            (first..=last).for_each(|core| cores.add(core));
        }
        Ok(cores)
    }

    fn add(&mut self, core: usize) {
        self.0[core / BITS] |= 1 << (core % BITS);
    }

    fn contains(&self, core: usize) -> bool {
        self.0[core / BITS] >> (core % BITS) & 1 == 1
    }

    /// Returns the number of cores.
    #[allow(clippy::len_without_is_empty, reason = "a set of cores has some")]
    pub fn len(&self) -> usize {
        self.0.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    /// Returns the cores' numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        (0..MAX).filter(|core| self.contains(*core))
    }

    /// Returns the fast cores among those that this thread may run on: at least four fifths as fast as the fastest, by
    /// the system's capacities or else the highest clocks. `None` if all are fast, or if the system does not report
    /// speeds.
    pub fn fast() -> Option<Self> {
        let all = Self::of_this_thread()?;
        let speeds = ["cpu_capacity", "cpufreq/cpuinfo_max_freq"]
            .iter()
            .find_map(|file| speeds(&all, file))?;
        all.fast_of(&speeds)
    }

    fn fast_of(&self, speeds: &[u64]) -> Option<Self> {
        let fastest = *speeds.iter().max()?;
        let fast = |speed: u64| speed.saturating_mul(5) >= fastest.saturating_mul(4);
        let fast: Self = self
            .iter()
            .zip(speeds)
            .filter_map(|(core, speed)| fast(*speed).then_some(core))
            .collect();
        (fast.len() < self.len()).then_some(fast)
    }
}

impl FromIterator<usize> for Cores {
    /// # Panics
    /// If a number is above 1023.
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        let mut cores = Self([0; MAX / BITS]);
        numbers.into_iter().for_each(|core| cores.add(core));
        cores
    }
}

impl std::fmt::Debug for Cores {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Reads the speed of each core from a file in its folder; `None` if any core has none.
fn speeds(cores: &Cores, file: &str) -> Option<Vec<u64>> {
    let speed = |core| {
        let text =
            std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{core}/{file}")).ok()?;
        text.trim().parse().ok()
    };
    cores.iter().map(speed).collect()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Cores {
    /// Returns the cores that this thread may run on, if the system reports them.
    pub fn of_this_thread() -> Option<Self> {
        let set = rustix::thread::sched_getaffinity(None).ok()?;
        Some((0..MAX).filter(|core| set.is_set(*core)).collect())
    }

    /// Pins this thread to these cores.
    ///
    /// # Errors
    /// If the system does not let the thread run on any of them.
    pub fn keep_this_thread(&self) -> io::Result<()> {
        let mut set = rustix::thread::CpuSet::new();
        self.iter().for_each(|core| set.set(core));
        rustix::thread::sched_setaffinity(None, &set).map_err(|error| {
            let list: Vec<_> = self.iter().map(|core| core.to_string()).collect();
            io::Error::new(
                error.kind(),
                format!("no thread can be kept on core {}: {error}", list.join(", ")),
            )
        })
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl Cores {
    /// Returns the cores that this thread may run on, if the system reports them.
    pub fn of_this_thread() -> Option<Self> {
        None
    }

    /// Pins this thread to these cores.
    ///
    /// # Errors
    /// Always: this system has no call for it.
    pub fn keep_this_thread(&self) -> io::Result<()> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this system does not keep threads on cores",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_read_as_the_system_writes_them() {
        assert_eq!(Cores::parse("0-2, 6"), Ok(Cores::from_iter([0, 1, 2, 6])));
        assert_eq!(Cores::parse("3"), Ok(Cores::from_iter([3])));
        for wrong in [
            "",
            "x",
            "1-",
            "3-1",
            "1,1",
            "0-2,2",
            "1024",
            "0-99999999999",
            "-1",
        ] {
            assert!(
                Cores::parse(wrong)
                    .unwrap_err()
                    .starts_with("expected numbers of cores"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn fast_cores_are_those_near_the_fastest() {
        let eight: Cores = (0..8).collect();
        let speeds = [300, 300, 300, 300, 850, 850, 850, 1024];
        assert_eq!(eight.fast_of(&speeds), Some(Cores::from_iter([4, 5, 6, 7])));
        assert_eq!(
            eight.fast_of(&[5; 8]),
            None,
            "cores of one speed are not distinguished"
        );
    }
}
