//! How many threads compute, and where.

use triad_kernels::Cores;
use triad_kernels::pool::Pool;

use crate::error::{Error, Result};

/// Threads that compute.
#[derive(Clone, Debug, Default)]
pub enum Threads {
    /// One for each core that the process may use, or each fast one where cores are of several speeds.
    #[default]
    Automatic,
    /// That many; the system decides on which cores.
    Count(usize),
    /// One on each of these cores.
    On(Cores),
}

impl Threads {
    /// How many they are.
    pub fn count(&self) -> usize {
        match self {
            Self::Automatic => {
                // Which also takes a container's share into account.
                let available = std::thread::available_parallelism().map_or(1, usize::from);
                Cores::fast().map_or(available, |fast| fast.len().min(available))
            }
            Self::Count(count) => *count,
            Self::On(cores) => cores.len(),
        }
    }

    /// Starts them.
    ///
    /// # Errors
    /// If there are none or more than 1024, or the system refuses them.
    pub(crate) fn start(&self) -> Result<Pool> {
        let threads = self.count();
        if !(1..=1024).contains(&threads) {
            let value = threads.to_string();
            return Err(Error::Option {
                name: "the number of threads",
                value,
                expected: "1 to 1024",
            });
        }
        let pool = match self {
            Self::On(cores) => Pool::pinned(cores),
            _ => Pool::new(threads),
        };
        pool.map_err(|source| Error::Threads { threads, source })
    }
}
