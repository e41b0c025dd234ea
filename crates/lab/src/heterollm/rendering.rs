//! A game that renders on the GPU beside a prefill (§5.5).
//!
//! Each frame is one job in the queue of the GPU, which runs jobs in order and none in part. Where the engine submits a
//! kernel when the one before it is done, a frame waits for one kernel at most; where it submits all of them at once, a
//! frame waits for the whole prefill.

use crate::heterollm::Run;
use triad_plan::partition::profile::WeightOnlyCosts;
use triad_plan::schedule::{Dag, Policy};
use triad_plan::simulate::{Request, Work, simulate_requests};

/// Prompts at as many moments of a game: results are the mean of all.
const PROMPTS: usize = 32;

/// A game.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Game {
    /// Frames in a second.
    pub frames_per_second: f64,
    /// Of the GPU, for one of them.
    pub frame_seconds: f64,
}

/// A prefill and a game on one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rendered {
    /// Of the prefill.
    pub seconds: f64,
    /// Frames in a second that were complete before the next one began.
    pub frames_per_second: f64,
}

/// How kernels get to the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submission {
    /// Each when what it waits for is done.
    OneByOne,
    /// All at once: the queue holds them until the prefill is over.
    AllAtOnce,
}

impl Game {
    /// What a prefill takes beside this game, and how many frames are in time until it is over. Each frame gets to the GPU
    /// at another moment of its interval, when the CPU is done with it, and is in time if it is complete an interval
    /// later. Were all of them at the same moment, results would depend on how many frames a block of the model takes.
    pub fn beside(&self, run: &Run, submission: Submission) -> Rendered {
        let gpu = WeightOnlyCosts::GPU.index();
        let queued = Dag::new([(gpu, run.timeline.seconds(), Vec::new())]);
        let dag = match submission {
            Submission::OneByOne => &run.dag,
            Submission::AllAtOnce => &queued,
        };
        let frame = Dag::new([(gpu, self.frame_seconds, Vec::new())]);
        let interval = 1.0 / self.frames_per_second;
        // More frames than there can be until the prefill is over: the GPU has a part of its time left, or else is done
        // after the first frame.
        let left = (1.0 - self.frame_seconds / interval).max(0.05);
        let frames = (2.0 * (run.timeline.seconds() / left + 1.0) / interval).ceil() as usize;
        let (mut seconds, mut kept, mut drawn) = (0.0, 0, 0);
        for number in 0..PROMPTS {
            let prompt_at = interval * number as f64 / PROMPTS as f64;
            let prompt = Request {
                at: prompt_at,
                dag,
                work: Work::Prompt,
            };
            let at = |index: usize| (index as f64 + moment(number, index)) * interval;
            let frames = (0..frames).map(|index| Request {
                at: at(index),
                dag: &frame,
                work: Work::Decode { steps: 1 },
            });
            let requests: Vec<_> = [prompt].into_iter().chain(frames).collect();
            // Frames do not yield: what is first in the queue is first.
            let served = simulate_requests(
                dag.processors().max(gpu + 1),
                Policy::InOrder,
                0.0,
                &requests,
                |dag, begin| dag.seconds(begin.task).into(),
            );
            let prefill = served
                .passes
                .iter()
                .find(|pass| pass.request == 0)
                .expect("every request is served");
            seconds += (prefill.end - prompt_at) / PROMPTS as f64;
            let beside = |since: f64| since >= prompt_at && since < prefill.end;
            for pass in served
                .passes
                .iter()
                .filter(|pass| pass.request != 0 && beside(pass.since))
            {
                drawn += 1;
                kept += usize::from(pass.end <= pass.since + interval);
            }
        }
        Rendered {
            seconds,
            frames_per_second: self.frames_per_second * f64::from(kept as u32)
                / f64::from(drawn.max(1)),
        }
    }
}

/// A number from 0 to 1, as if by chance: where in its interval a frame gets to the GPU.
fn moment(prompt: usize, frame: usize) -> f64 {
    let mix = |hash: u64, shift: u32| (hash ^ (hash >> shift)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = mix(
        mix(mix(((prompt as u64) << 32) + frame as u64 + 1, 30), 27),
        31,
    );
    (hash >> 11) as f64 / (1u64 << 53) as f64
}
