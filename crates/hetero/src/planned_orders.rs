//! Planned orders of the tasks of prompts, and the queue of prompts to plan.

use std::collections::VecDeque;

use triad_plan::schedule::Dag;

/// Maximum number of kept orders, and of queued prompts.
const MAX: usize = 32;
/// Maximum drift at which an order is followed: the total difference of task times, as a share of the total planned
/// time.
const MAX_DRIFT: f64 = 0.25;
/// Drift from which another order is planned. For prompts whose CPU has half as much work as the NPU, following the old
/// order takes 1 % longer than a new one if the CPU's tasks take 1.15 times as long, and 6 % if they take 1.5 times
/// (simulated).
const NEW_ORDER: f64 = 0.05;

/// The kept orders, the latest last, and the queue of prompts to plan.
#[derive(Default)]
pub(super) struct PlannedOrders {
    kept: Vec<(Dag, Vec<usize>)>,
    /// Rows and positions of the queued prompts.
    wanted: VecDeque<(usize, usize)>,
    /// Whether an order is being planned.
    pub(super) is_planning: bool,
}

impl PlannedOrders {
    /// Returns the order of tasks that take about as long as those of `dag`.
    pub(super) fn order(&self, dag: &Dag) -> Option<&[usize]> {
        let (drift, order) = self.nearest(dag)?;
        (drift <= MAX_DRIFT).then_some(order)
    }

    /// Returns whether another order has to be planned for these tasks.
    pub(super) fn is_missing(&self, dag: &Dag) -> bool {
        self.nearest(dag).is_none_or(|(drift, _)| drift > NEW_ORDER)
    }

    fn nearest(&self, dag: &Dag) -> Option<(f64, &[usize])> {
        let drifts = self
            .kept
            .iter()
            .map(|(planned, order)| (drift(planned, dag), &order[..]));
        drifts.min_by(|one, other| one.0.total_cmp(&other.0))
    }

    /// Queues prompts of `rows` rows at a position.
    pub(super) fn want(&mut self, rows: usize, position: usize) {
        if !self.wanted.contains(&(rows, position)) {
            self.wanted.push_back((rows, position));
        }
        if self.wanted.len() > MAX {
            self.wanted.pop_front();
        }
    }

    /// Removes and returns rows and position of the prompt that was queued first.
    pub(super) fn next(&mut self) -> Option<(usize, usize)> {
        self.wanted.pop_front()
    }

    /// Returns whether no prompt is queued or being planned.
    pub(super) fn is_idle(&self) -> bool {
        self.wanted.is_empty() && !self.is_planning
    }

    /// Keeps an order. Replaces orders of the same tasks whose drift is too small to require another order.
    pub(super) fn keep(&mut self, dag: Dag, order: Vec<usize>) {
        self.kept
            .retain(|(other, _)| drift(other, &dag) > NEW_ORDER);
        if self.kept.len() == MAX {
            self.kept.remove(0);
        }
        self.kept.push((dag, order));
    }
}

/// Returns the total difference of task times, as a share of the total planned time; infinite for other tasks.
fn drift(planned: &Dag, now: &Dag) -> f64 {
    if !planned.has_same_tasks(now) {
        return f64::INFINITY;
    }
    let then: f64 = (0..planned.len()).map(|task| planned.seconds(task)).sum();
    let apart: f64 = (0..now.len())
        .map(|task| (now.seconds(task) - planned.seconds(task)).abs())
        .sum();
    if apart > 0.0 { apart / then } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns two tasks, the first of which takes `seconds`.
    fn dag(seconds: f64) -> Dag {
        Dag::new([(0, seconds, vec![]), (1, 1.0, vec![0])])
    }

    #[test]
    fn an_order_is_followed_until_costs_have_drifted_by_a_quarter_and_missing_from_a_twentieth_on()
    {
        let mut orders = PlannedOrders::default();
        assert!(orders.order(&dag(1.0)).is_none() && orders.is_missing(&dag(1.0)));
        orders.keep(dag(1.0), vec![0, 1]);
        assert_eq!(orders.order(&dag(1.4)), Some(&[0, 1][..]));
        assert!(!orders.is_missing(&dag(1.08)) && orders.is_missing(&dag(1.12)));
        assert_eq!(orders.order(&dag(1.6)), None);
        assert_eq!(
            orders.order(&Dag::new([(0, 1.0, vec![]), (1, 1.0, vec![])])),
            None,
            "other tasks"
        );
        (0..2 * MAX as i32).for_each(|times| orders.keep(dag(2f64.powi(times)), vec![0, 1]));
        assert_eq!(orders.kept.len(), MAX, "the latest ones");
    }

    #[test]
    fn a_prompt_waits_once() {
        let mut orders = PlannedOrders::default();
        orders.want(256, 0);
        orders.want(512, 0);
        orders.want(256, 0);
        assert!(!orders.is_idle());
        assert_eq!(
            [orders.next(), orders.next(), orders.next()],
            [Some((256, 0)), Some((512, 0)), None]
        );
        assert!(orders.is_idle());
    }
}
