//! Measures the frames of an application that renders on the GPU that computes prompts (HeteroLLM, §5.5).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use triad_engine::{Cancel, Engine};

use crate::error::Result;
use triad_kernels::timing::median;

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Number of prompts with frames, which run in sequence, and number of prompts without frames.
    pub repeat: usize,
    /// Time between frames.
    pub interval: Duration,
}

/// A rendered frame.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Frame {
    /// Seconds from the start of its prompt to the time when it was due.
    pub at: f64,
    /// Seconds from that time until it was complete.
    pub seconds: f64,
}

/// Results.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rendering {
    /// Median seconds of a prompt without frames.
    pub prompt_alone_seconds: f64,
    /// Median seconds of a prompt with frames.
    pub prompt_concurrent_seconds: f64,
    /// Frames that were due while prompts were computed.
    pub due: usize,
    /// Frames that were complete before the next one was due.
    pub in_time: usize,
    /// All rendered frames. A late frame replaces those that became due in the meantime.
    pub frames: Vec<Frame>,
}

impl Rendering {
    /// Returns the share of the due frames that were in time.
    pub fn share(&self) -> f64 {
        self.in_time as f64 / self.due.max(1) as f64
    }

    /// Returns the seconds of the longest frame.
    pub fn longest(&self) -> f64 {
        self.frames
            .iter()
            .fold(0.0, |longest, frame| frame.seconds.max(longest))
    }

    /// Adds frames that were due at multiples of `interval` before `end`.
    fn add(&mut self, frames: Vec<Frame>, interval: f64, end: f64) {
        self.due += (end / interval).ceil() as usize;
        self.in_time += frames
            .iter()
            .filter(|frame| frame.seconds <= interval)
            .count();
        self.frames.extend(frames);
    }
}

/// Runs the prompts of `plan` on `engine`, without frames and while `render` is called for every frame. `render`
/// returns when the frame is complete.
///
/// # Errors
/// If `cancel` is set, or a prompt or a frame fails.
pub fn run(
    engine: &Engine,
    plan: &Plan,
    render: &(dyn Fn() -> triad_processors::Result<()> + Sync),
    cancel: &Cancel,
) -> Result<Rendering> {
    let vocab = engine.model().description().vocab;
    let prompt: Vec<_> = (0..plan.prompt)
        .map(|index| (index.wrapping_mul(7919) % vocab) as u32)
        .collect();
    let mut session = engine.session();
    let mut prefill = || -> Result<f64> {
        session.truncate(0);
        let start = Instant::now();
        session.prefill(&prompt, cancel, |_| {})?;
        Ok(start.elapsed().as_secs_f64())
    };
    // An unmeasured prompt, after which the length of slices has settled.
    prefill()?;
    let alone = (0..plan.repeat)
        .map(|_| prefill())
        .collect::<Result<Vec<_>>>()?;
    let (mut found, mut loaded) = (Rendering::default(), Vec::new());
    for _ in 0..plan.repeat {
        let is_over = AtomicBool::new(false);
        let (seconds, frames) = thread::scope(|scope| {
            let frames = scope.spawn(|| draw(plan.interval, render, &is_over));
            let seconds = prefill();
            is_over.store(true, Ordering::Relaxed);
            (seconds, frames.join().expect("a frame does not panic"))
        });
        let seconds = seconds?;
        found.add(frames?, plan.interval.as_secs_f64(), seconds);
        loaded.push(seconds);
    }
    (found.prompt_alone_seconds, found.prompt_concurrent_seconds) =
        (median(&alone), median(&loaded));
    Ok(found)
}

/// Renders a frame whenever one is due, until `is_over`. If several are due, it renders only the latest.
fn draw(
    interval: Duration,
    render: &(dyn Fn() -> triad_processors::Result<()> + Sync),
    is_over: &AtomicBool,
) -> Result<Vec<Frame>> {
    let (start, mut number, mut frames) = (Instant::now(), 0u32, Vec::new());
    loop {
        let due = interval * number;
        thread::sleep(due.saturating_sub(start.elapsed()));
        if is_over.load(Ordering::Relaxed) {
            return Ok(frames);
        }
        let rendered = render().map_err(triad_hetero::Error::Device);
        rendered.map_err(triad_engine::Error::from)?;
        let end = start.elapsed();
        frames.push(Frame {
            at: due.as_secs_f64(),
            seconds: (end - due).as_secs_f64(),
        });
        // Frames that became due during this one are lost.
        number = (number + 1).max(end.div_duration_f64(interval).floor() as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_takes_several_intervals_loses_those_that_were_due_meanwhile() {
        let frame = |at, seconds| Frame { at, seconds };
        let mut found = Rendering::default();
        // Frames are due at 0, 1, 2, 3 and 4. The second takes until 3.5, so that the frame of 2 is never rendered and
        // that of 3 is late.
        found.add(
            vec![
                frame(0.0, 0.5),
                frame(1.0, 2.5),
                frame(3.0, 1.5),
                frame(4.0, 0.1),
            ],
            1.0,
            4.5,
        );
        assert_eq!((found.due, found.in_time), (5, 2));
        assert_eq!((found.share(), found.longest()), (0.4, 2.5));
    }

    #[test]
    fn frames_go_on_until_it_is_over_and_fail_with_the_gpu() {
        let is_over = AtomicBool::new(false);
        let drawn = std::sync::atomic::AtomicUsize::new(0);
        let render = || {
            is_over.store(
                drawn.fetch_add(1, Ordering::Relaxed) == 4,
                Ordering::Relaxed,
            );
            Ok(())
        };
        assert_eq!(
            draw(Duration::from_millis(1), &render, &is_over)
                .unwrap()
                .len(),
            5
        );
        let failed = || {
            Err(triad_processors::Error::WholeModel {
                processor: "gpu".into(),
            })
        };
        assert!(draw(Duration::from_millis(1), &failed, &AtomicBool::new(false)).is_err());
    }
}
