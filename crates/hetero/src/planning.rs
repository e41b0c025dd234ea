//! The thread that plans orders while the engine lives. It slows down while something is computed, so that no prompt
//! waits for it.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use triad_kernels::lock;
use triad_plan::planner::{Effort, plan};

use crate::shared::HeteroInner;
use crate::task_graph::Prompts;

/// How long it sleeps every few dozen microseconds while something is computed.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs the thread until the engine closes.
pub(super) fn serve(shared: &HeteroInner) {
    let mut state = lock(&shared.state);
    while !state.is_closing {
        let Some((rows, position)) = state.orders.next() else {
            state = shared
                .planning
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        state.orders.is_planning = true;
        let (planned, costs) = (
            state.joint_plan(shared, rows, position),
            state.costs().clone(),
        );
        drop(state);
        let dag = Prompts::new(shared, &costs, planned.as_ref(), (rows, position))
            .tasks
            .dag
            .clone();
        let is_missing = lock(&shared.state).orders.is_missing(&dag);
        let order =
            is_missing.then(|| plan(&dag, 0.0, Effort::default(), &mut || goes_on(shared)).order);
        state = lock(&shared.state);
        state.orders.is_planning = false;
        if let Some(order) = order {
            state.orders.keep(dag, order);
        }
        shared.planning.notify_all();
    }
}

/// Sleeps a moment while something is computed. Returns whether the engine still runs.
fn goes_on(shared: &HeteroInner) -> bool {
    if shared.is_computing.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
    }
    !shared.is_closing.load(Ordering::Relaxed)
}
