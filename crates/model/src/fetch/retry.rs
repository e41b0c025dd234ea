//! Further attempts after a hub or the network has failed, and the pauses before them.

use std::time::Duration;

use ureq::Body;
use ureq::http::{Response, StatusCode, header};

use super::progress::Progress;
use crate::error::Error;

/// The reason why an attempt ended before the file was complete.
pub(super) enum Interruption {
    /// The network failed: the received bytes are valid, and the rest may follow later. The hub may ask to wait.
    Network {
        reason: String,
        wait: Option<Duration>,
    },
    /// The server is too slow: the received bytes are valid, but another attempt would take as long.
    Slow,
    /// Another attempt would fail in the same way.
    Final(Error),
}

impl Interruption {
    pub(super) fn network(reason: impl Into<String>) -> Self {
        Self::Network {
            reason: reason.into(),
            wait: None,
        }
    }
}

impl From<Error> for Interruption {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

/// The pauses between attempts that get no further.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    /// The first one. Each further one is twice as long.
    pub(super) first: Duration,
    /// The longest one that a hub may ask for.
    pub(super) longest: Duration,
    /// Maximum number of attempts that get no further.
    pub(super) attempts: usize,
}

impl Default for Pauses {
    /// Returns pauses of 15 seconds together.
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60),
            attempts: 5,
        }
    }
}

impl Pauses {
    /// Returns the pause after `fruitless` attempts, of which the last one ended in a response that `asked` for one; none
    /// if there is no further attempt.
    pub(super) fn after(&self, fruitless: usize, asked: Option<Duration>) -> Option<Duration> {
        if fruitless >= self.attempts || asked.is_some_and(|asked| asked > self.longest) {
            return None;
        }
        let doublings = u32::try_from(fruitless.saturating_sub(1)).unwrap_or(u32::MAX);
        let own = self.first.saturating_mul(2_u32.saturating_pow(doublings));
        Some(asked.unwrap_or_default().max(own.min(self.longest)))
    }

    /// Tells the user why a fetch waits, if it waits for long.
    pub(super) fn report(&self, progress: &dyn Progress, reason: &str, time: Duration) {
        if time >= Duration::from_secs(1) {
            progress.step(&format!("{reason}: trying again in {} s", time.as_secs()));
        }
    }
}

/// Returns the interruption that a response stands for after which another attempt may succeed.
pub(super) fn interrupted(response: &Response<Body>) -> Option<Interruption> {
    let status = response.status();
    let is_temporary = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
    is_temporary.then(|| {
        let wait = response.headers().get(header::RETRY_AFTER);
        // A date is not read: the own pauses hold then.
        let seconds = wait.and_then(|wait| wait.to_str().ok()?.trim().parse().ok());
        let wait = seconds.map(Duration::from_secs);
        let asked = wait.map_or_else(String::new, |wait| {
            format!(" and asked to wait for {} s", wait.as_secs())
        });
        Interruption::Network {
            reason: format!("the server answered {status}{asked}"),
            wait,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        let pauses = Pauses::default();
        let seconds = |fruitless, asked: Option<u64>| {
            let time = pauses.after(fruitless, asked.map(Duration::from_secs));
            time.map(|time| time.as_secs())
        };
        let own: Vec<_> = (0..6).map(|fruitless| seconds(fruitless, None)).collect();
        assert_eq!(own, [Some(1), Some(1), Some(2), Some(4), Some(8), None]);
        // A hub's own wish holds if it is longer, and is not kept without bound.
        assert_eq!(seconds(1, Some(30)), Some(30));
        assert_eq!(seconds(4, Some(3)), Some(8));
        assert_eq!(seconds(1, Some(60)), Some(60));
        assert_eq!(seconds(1, Some(61)), None);
        assert_eq!(seconds(1, Some(u64::MAX)), None);
    }
}
