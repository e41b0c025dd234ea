//! A game that renders on the GPU during a prefill (§5.5).
//!
//! Each frame is one job in the GPU's queue, which runs jobs in order and without preemption. If the engine submits
//! each kernel when the previous one is complete, a frame waits for at most one kernel. If it submits all kernels at
//! once, a frame waits for the whole prefill.

use crate::heterollm::Run;
use triad_plan::partition::profile::WeightOnlyCosts;
use triad_plan::schedule::{Dag, Policy};
use triad_plan::simulate::{Request, Work, simulate_requests};

/// Number of prompts, which start at different moments of the game. Results are their mean.
const PROMPTS: usize = 32;

/// A game.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Game {
    /// Frames per second.
    pub frames_per_second: f64,
    /// GPU seconds per frame.
    pub frame_seconds: f64,
}

/// Results of a prefill and a game on one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rendered {
    /// Seconds of the prefill.
    pub seconds: f64,
    /// Frames per second that were complete before the next one was due.
    pub frames_per_second: f64,
}

/// How kernels are submitted to the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submission {
    /// Each kernel when the ones that it waits for are complete.
    OneByOne,
    /// All at once: the queue holds them until the prefill is over.
    AllAtOnce,
}

impl Game {
    /// Simulates a prefill during this game: how long it takes, and how many frames are in time until it is over. Each
    /// frame reaches the GPU at another moment of its interval, when the CPU has finished its part, and is in time if
    /// it is complete within an interval after that. With the same moment for all frames, results would depend on how
    /// many frames fit into a layer of the model.
    pub fn during(&self, run: &Run, submission: Submission) -> Rendered {
        let gpu = WeightOnlyCosts::GPU.index();
        let queued = Dag::new([(gpu, run.timeline.seconds(), Vec::new())]);
        let dag = match submission {
            Submission::OneByOne => &run.dag,
            Submission::AllAtOnce => &queued,
        };
        let frame = Dag::new([(gpu, self.frame_seconds, Vec::new())]);
        let interval = 1.0 / self.frames_per_second;
        // An upper bound for the frames until the prefill is over: either the GPU has some time left, or it is done
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
            // Frames have no priority: the queue is first-in, first-out.
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
            let is_during = |since: f64| since >= prompt_at && since < prefill.end;
            for pass in served
                .passes
                .iter()
                .filter(|pass| pass.request != 0 && is_during(pass.since))
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

/// Returns a pseudorandom number from 0 to 1: the moment in its interval at which a frame reaches the GPU.
fn moment(prompt: usize, frame: usize) -> f64 {
    let mix = |hash: u64, shift: u32| (hash ^ (hash >> shift)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = mix(
        mix(mix(((prompt as u64) << 32) + frame as u64 + 1, 30), 27),
        31,
    );
    (hash >> 11) as f64 / (1u64 << 53) as f64
}
