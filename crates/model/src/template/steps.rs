//! Limits for the time of a rendering, and of a single step.
//!
//! Fuel counts steps, but one step can compare lists nested in one another forty times: 2⁴⁰ comparisons that nothing
//! can interrupt. So a list or map is [weighed](Clock::hold) when it is built, counting everything in it as often as it
//! occurs: a value that is heavier or deeper than any conversation is refused, so any step with values takes a fraction
//! of a second. The [`Clock`] is checked between steps. Depth is also limited for the stack: values are compared,
//! written and dropped by recursion.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Time limit of a rendering and of the trial renderings before it, together. Templates in use take milliseconds.
const LONGEST: Duration = Duration::from_secs(5);
/// Maximum weight of a value: its elements, and a sixteenth of its bytes of text, each as often as it is written. A
/// conversation adds twice its own bytes.
const HEAVIEST: usize = 1 << 16;
/// Maximum depth of a value. Arguments of earlier calls in messages are up to 128 deep.
pub(super) const DEEPEST: usize = 200;
/// Maximum comparisons in a step that compares each element with each other one: a fraction of a second.
const COMPARISONS: usize = 1 << 26;
/// Bytes of text that count as one element.
const BYTES: usize = 16;

/// A function that returns whether to cancel a rendering.
pub type Stop = Arc<dyn Fn() -> bool + Send + Sync>;

/// The deadline and limits of a rendering, and of those that find out what a template reads before it.
#[derive(Clone)]
pub(super) struct Clock {
    end: Instant,
    heaviest: usize,
    stop: Option<Stop>,
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Clock")
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// The place in which a value is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a variable, a list or a map.
    Any,
    /// Among the named arguments of a call, which may be namespaces.
    Arguments,
    /// In a namespace: a namespace that contained itself would never end.
    Namespace,
}

impl Clock {
    /// Starts the clock; `stop` ends it early.
    pub(super) fn start(stop: Option<Stop>) -> Self {
        Self {
            end: Instant::now() + LONGEST,
            heaviest: HEAVIEST,
            stop,
        }
    }

    /// Returns the same clock, for a conversation of `bytes` bytes.
    pub(super) fn for_text(&self, bytes: usize) -> Self {
        Self {
            heaviest: HEAVIEST + 2 * bytes,
            ..self.clone()
        }
    }

    /// Returns an error if the time is over.
    pub(super) fn check(&self) -> Result<(), Error> {
        if Instant::now() >= self.end {
            let message = format!("it takes longer than {} seconds", LONGEST.as_secs());
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        match &self.stop {
            Some(stop) if stop() => {
                Err(Error::new(ErrorKind::InvalidOperation, "it was cancelled"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the weight of `value`, which is to be held in `place`.
    ///
    /// # Errors
    /// If it is heavier or deeper than any value in use, or contains a namespace where none is allowed.
    pub(super) fn hold(&self, value: &Value, place: Place) -> Result<usize, Error> {
        self.check()?;
        let mut weight = 0;
        self.weigh(value, place, 0, &mut weight)?;
        Ok(weight)
    }

    /// Refuses `value` if comparing each of its elements with many others would take too long.
    pub(super) fn hold_sorted(&self, value: &Value) -> Result<(), Error> {
        let weight = self.hold(value, Place::Arguments)?;
        let rounds = value.len().unwrap_or(0).max(1).ilog2() as usize + 1;
        if weight.saturating_mul(rounds) > 4 * self.heaviest {
            Err(too_heavy())
        } else {
            Ok(())
        }
    }

    /// Refuses a value whose `count` elements are compared with each other if that would take too long.
    pub(super) fn hold_compared(&self, value: &Value, count: usize) -> Result<(), Error> {
        let weight = self.hold(value, Place::Any)?;
        match weight.saturating_mul(count) > COMPARISONS {
            true => Err(too_heavy()),
            false => Ok(()),
        }
    }

    fn weigh(
        &self,
        value: &Value,
        place: Place,
        depth: usize,
        weight: &mut usize,
    ) -> Result<(), Error> {
        *weight += 1 + value.as_str().map_or(0, str::len) / BYTES;
        if *weight > self.heaviest {
            return Err(too_heavy());
        }
        let Some(object) = value.as_object() else {
            return Ok(());
        };
        if depth > DEEPEST {
            let message =
                format!("it builds a value of lists within lists, more than {DEEPEST} deep");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        let may_be_namespace = match place {
            Place::Any => depth == 0,
            Place::Arguments => depth <= 1,
            Place::Namespace => false,
        };
        if !may_be_namespace && object.type_name().ends_with("::Namespace") {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "it holds a namespace within another value",
            ));
        }
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                for item in object.try_iter().into_iter().flatten() {
                    self.weigh(&item, place, depth + 1, weight)?;
                }
            }
            ValueKind::Map => {
                for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                    self.weigh(&key, place, depth + 1, weight)?;
                    self.weigh(&item, place, depth + 1, weight)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn too_heavy() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        "it builds a larger value than any conversation needs",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_refuses_to_go_on_after_its_time_or_where_it_is_stopped() {
        let clock = Clock {
            end: Instant::now(),
            heaviest: 100,
            stop: None,
        };
        assert_eq!(
            clock.check().unwrap_err().detail(),
            Some("it takes longer than 5 seconds")
        );
        assert!(clock.hold(&Value::from(vec![1]), Place::Any).is_err());
        let stopped = Clock::start(Some(Arc::new(|| true)));
        assert_eq!(
            stopped.check().unwrap_err().detail(),
            Some("it was cancelled")
        );
        Clock::start(None).check().unwrap();
    }

    #[test]
    fn a_value_weighs_what_it_is_when_it_is_written_however_little_memory_it_takes() {
        let clock = Clock::start(None);
        let twice = |value: &Value| Value::from(vec![value.clone(), value.clone()]);
        let mut value = Value::from("a".repeat(BYTES));
        for doubled in 1..=14 {
            value = twice(&value);
            let whole = clock.hold(&value, Place::Any).unwrap();
            assert_eq!(whole, 2 * (1 << doubled) + (1 << doubled) - 1);
        }
        let heavy = twice(&value);
        assert!(
            clock
                .hold(&heavy, Place::Any)
                .unwrap_err()
                .to_string()
                .contains("larger value")
        );
        let many: Vec<_> = (0..30_000).collect();
        clock.hold(&Value::from(many.clone()), Place::Any).unwrap();
        assert!(clock.hold_sorted(&Value::from(many)).is_err());
        assert!(
            Clock::start(None)
                .for_text(heavy.to_string().len())
                .hold(&heavy, Place::Any)
                .is_ok()
        );
    }
}
