//! The cores of this machine: which a thread may run on, and which are fast.

use std::io;

/// Some cores, by the numbers that the system gives them, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(Vec<usize>);

/// Numbers that a set of cores can hold, at most.
const MOST: usize = 1024;

impl Cores {
    /// One core.
    pub(crate) fn one(core: usize) -> Self {
        Self(vec![core])
    }

    /// Reads numbers and ranges as the system writes them: `0-3,6`.
    ///
    /// # Errors
    /// If it is none, names a core twice, or one beyond 1023: what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || format!("expected numbers of cores from 0 to {}, each once, such as 0-3,6", MOST - 1);
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<usize>().ok().filter(|core| *core < MOST);
            let (first, last) = number(first).zip(number(last)).ok_or_else(expected)?;
            if first > last {
                return Err(expected());
            }
            cores.extend(first..=last);
        }
        cores.sort_unstable();
        if cores.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(expected());
        }
        Ok(Self(cores))
    }

    /// How many there are.
    #[allow(clippy::len_without_is_empty, reason = "a set of cores has some")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Their numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = usize> {
        self.0.iter().copied()
    }

    /// The fast ones of those that this thread may run on: at least four fifths as fast as the fastest, as the
    /// system's capacities or else highest clocks say. `None` if all are, or the system does not say.
    pub fn fast() -> Option<Self> {
        let all = Self::of_this_thread()?;
        let speeds = ["cpu_capacity", "cpufreq/cpuinfo_max_freq"].iter().find_map(|file| speeds(&all, file))?;
        all.fast_of(&speeds)
    }

    fn fast_of(&self, speeds: &[u64]) -> Option<Self> {
        let fastest = *speeds.iter().max()?;
        let fast =
            |(core, speed): (usize, &u64)| (speed.saturating_mul(5) >= fastest.saturating_mul(4)).then_some(core);
        let fast: Vec<_> = self.iter().zip(speeds).filter_map(fast).collect();
        (fast.len() < self.len()).then_some(Self(fast))
    }
}

/// A speed of each core, from a file in its folder; `None` if one has none.
fn speeds(cores: &Cores, file: &str) -> Option<Vec<u64>> {
    let speed = |core| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{core}/{file}")).ok()?;
        text.trim().parse().ok()
    };
    cores.iter().map(speed).collect()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Cores {
    /// Those that this thread may run on, if the system tells.
    pub fn of_this_thread() -> Option<Self> {
        let set = rustix::thread::sched_getaffinity(None).ok()?;
        let cores: Vec<_> = (0..MOST).filter(|core| set.is_set(*core)).collect();
        (!cores.is_empty()).then_some(Self(cores))
    }

    /// Keeps this thread on these cores.
    ///
    /// # Errors
    /// If the system does not let it run on any of them.
    pub(crate) fn keep_this_thread(&self) -> io::Result<()> {
        let mut set = rustix::thread::CpuSet::new();
        self.iter().for_each(|core| set.set(core));
        rustix::thread::sched_setaffinity(None, &set).map_err(|error| {
            let list: Vec<_> = self.iter().map(|core| core.to_string()).collect();
            io::Error::new(error.kind(), format!("no thread can be kept on core {}: {error}", list.join(", ")))
        })
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl Cores {
    /// Those that this thread may run on, if the system tells.
    pub fn of_this_thread() -> Option<Self> {
        None
    }

    /// Keeps this thread on these cores.
    ///
    /// # Errors
    /// Always: this system has no call for it.
    pub(crate) fn keep_this_thread(&self) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this system does not keep threads on cores"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_read_as_the_system_writes_them() {
        assert_eq!(Cores::parse("0-2, 6"), Ok(Cores(vec![0, 1, 2, 6])));
        assert_eq!(Cores::parse("3"), Ok(Cores(vec![3])));
        for wrong in ["", "x", "1-", "3-1", "1,1", "0-2,2", "1024", "0-99999999999", "-1"] {
            assert!(Cores::parse(wrong).unwrap_err().starts_with("expected numbers of cores"), "{wrong}");
        }
    }

    #[test]
    fn fast_cores_are_those_near_the_fastest() {
        let eight = Cores((0..8).collect());
        let speeds = [300, 300, 300, 300, 850, 850, 850, 1024];
        assert_eq!(eight.fast_of(&speeds), Some(Cores(vec![4, 5, 6, 7])));
        assert_eq!(eight.fast_of(&[5; 8]), None, "cores of one speed are not told apart");
    }
}
