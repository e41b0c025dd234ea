//! How often a server that ends is started again.

use std::time::{Duration, Instant};

/// The time before the second start in a row. It doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest time between two starts.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A server whose last start is this long ago has not ended often.
const LONG: Duration = Duration::from_secs(600);

/// The starts of a server after its first one.
///
/// There is always a next one: a client whose calls end a server makes it slow to come back, and does not take it away from
/// the others.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    /// The number of starts in a row, each less than [`LONG`] after the one before.
    count: u32,
    last: Option<Instant>,
}

impl Restarts {
    /// Begins a start, if it is time for it.
    ///
    /// # Errors
    /// The time that is left until the next start.
    pub(crate) fn begin(&mut self, now: Instant) -> Result<(), Duration> {
        let since = self.last.map(|last| now.saturating_duration_since(last));
        if since.is_none_or(|since| since >= LONG) {
            self.count = 0;
        }
        let wait = match self.count {
            0 => Duration::ZERO,
            count => (FIRST_WAIT * (1 << (count - 1).min(6))).min(LONGEST_WAIT),
        };
        if let Some(left) = since.and_then(|since| wait.checked_sub(since))
            && !left.is_zero()
        {
            return Err(left);
        }
        self.count += 1;
        self.last = Some(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_again_and_again_is_started_at_most_once_a_minute_and_never_given_up() {
        let (mut restarts, mut now) = (Restarts::default(), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..10 {
            let wait = restarts.begin(now).err().unwrap_or_default();
            waits.push(wait.as_secs());
            now += wait;
            if !wait.is_zero() {
                restarts.begin(now).unwrap();
            }
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        now += LONG;
        restarts.begin(now).unwrap();
        assert_eq!(restarts.begin(now).unwrap_err(), FIRST_WAIT);
    }
}
