//! `keep_alive`: the time for which an idle model stays in memory.

use std::time::Duration;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult};

/// A time in seconds, or a text such as `5m` or `1h30m`. A negative time keeps the model.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a number of seconds, or a text such as 5m"
)]
pub(crate) enum KeepAlive {
    Seconds(f64),
    Text(String),
}

impl KeepAlive {
    /// Reads the time. `None` keeps the model until another one needs the memory.
    ///
    /// # Errors
    /// If the text is no duration.
    pub(crate) fn read(&self) -> ApiResult<Option<Duration>> {
        let seconds = match self {
            Self::Seconds(seconds) => Some(*seconds),
            Self::Text(text) => seconds(text),
        };
        let seconds = seconds
            .filter(|seconds| seconds.is_finite())
            .ok_or_else(|| {
                let message =
                    "expected a number of seconds, or a duration such as 30s, 5m, 1h30m or -1";
                ApiError::field("keep_alive", message)
            })?;
        if seconds < 0.0 {
            return Ok(None);
        }
        Ok(Duration::try_from_secs_f64(seconds).ok())
    }
}

/// Returns the seconds of a duration in Go's format, such as `1h30m` or `-1`.
fn seconds(text: &str) -> Option<f64> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let is_of_number = |letter: char| letter.is_ascii_digit() || letter == '.';
    if !text.is_empty() && text.chars().all(is_of_number) {
        return Some(sign * text.parse::<f64>().ok()?);
    }
    let (mut rest, mut sum) = (text, 0.0);
    while !rest.is_empty() {
        let unit = rest.find(|letter| !is_of_number(letter))?;
        let number = rest[..unit].parse::<f64>().ok()?;
        rest = &rest[unit..];
        let end = rest.find(is_of_number).unwrap_or(rest.len());
        sum += number
            * match &rest[..end] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[end..];
    }
    (!text.is_empty()).then_some(sign * sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_seconds_or_texts_of_go() {
        let of = |text: &str| {
            KeepAlive::Text(text.into())
                .read()
                .map_err(|error| error.detail.param)
        };
        for (text, seconds) in [
            ("0", 0.0),
            ("5m", 300.0),
            ("1h30m", 5400.0),
            ("1.5s", 1.5),
            ("250ms", 0.25),
        ] {
            assert_eq!(
                of(text),
                Ok(Some(Duration::from_secs_f64(seconds))),
                "{text}"
            );
        }
        for text in ["-1", "-5m", "1e400h"] {
            assert!(matches!(of(text), Ok(None) | Err(_)), "{text}");
        }
        assert_eq!(of("-1"), Ok(None));
        for text in ["", "-", "5", "m", "5 m", "5x", "1..5s", "soon", "1e3s"] {
            let read = of(text);
            assert!(read.is_err() || text == "5", "{text}: {read:?}");
        }
        assert_eq!(KeepAlive::Seconds(-1.0).read().unwrap(), None);
        assert_eq!(KeepAlive::Seconds(1e300).read().unwrap(), None);
        assert_eq!(
            KeepAlive::Seconds(60.0).read().unwrap(),
            Some(Duration::from_secs(60))
        );
    }
}
