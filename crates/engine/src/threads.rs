//! The number of threads that compute, and their cores.

use triad_kernels::Cores;
use triad_kernels::pool::Pool;

use crate::error::{Error, Result};

/// The threads that compute.
#[derive(Clone, Debug, Default)]
pub enum Threads {
    /// One for each core that the process may use, or for each fast one if cores have different speeds.
    #[default]
    Automatic,
    /// This number; the system chooses their cores.
    Count(usize),
    /// One on each of these cores.
    On(Cores),
}

impl Threads {
    /// Returns the number of threads.
    pub fn count(&self) -> usize {
        match self {
            Self::Automatic => {
                // This also takes a container's CPU quota into account.
                let available = std::thread::available_parallelism().map_or(1, usize::from);
                Cores::fast().map_or(available, |fast| fast.len().min(available))
            }
            Self::Count(count) => *count,
            Self::On(cores) => cores.len(),
        }
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// If there are none or more than 1024, or the system cannot start them.
    pub fn start(&self) -> Result<Pool> {
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
