//! Orders of the tasks of prompts that were planned ahead, and prompts that wait for one.

use std::collections::VecDeque;

use triad_plan::schedule::Dag;

/// Orders that are kept, at most, and prompts that wait for one.
const MOST: usize = 32;
/// An order is followed for tasks whose seconds differ by no more than this, as a part of all.
const MOST_DRIFT: f64 = 0.25;
/// For tasks whose seconds differ by more than this another order is planned. Of prompts whose CPU has half as much work as
/// the NPU, following the old one takes 1 % longer than that where the CPU's tasks take 1.15 times as long, and 6 % where they
/// take 1.5 times (simulated).
const NEW_ORDER: f64 = 0.05;

/// The orders so far: those that were planned latest last.
#[derive(Default)]
pub(super) struct Orders {
    kept: Vec<(Dag, Vec<usize>)>,
    /// Rows and positions of prompts.
    wanted: VecDeque<(usize, usize)>,
    /// Somebody plans.
    pub(super) is_planning: bool,
}

impl Orders {
    /// The order of tasks that take about as long as those it was planned for.
    pub(super) fn of(&self, dag: &Dag) -> Option<&[usize]> {
        let (drift, order) = self.nearest(dag)?;
        (drift <= MOST_DRIFT).then_some(order)
    }

    /// Whether another order is to be planned for these tasks.
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

    /// Prompts of so many rows at a position are to have an order.
    pub(super) fn want(&mut self, rows: usize, position: usize) {
        if !self.wanted.contains(&(rows, position)) {
            self.wanted.push_back((rows, position));
        }
        if self.wanted.len() > MOST {
            self.wanted.pop_front();
        }
    }

    /// Rows and position of the prompt that has waited for longest.
    pub(super) fn next(&mut self) -> Option<(usize, usize)> {
        self.wanted.pop_front()
    }

    /// Whether no prompt waits.
    pub(super) fn is_idle(&self) -> bool {
        self.wanted.is_empty() && !self.is_planning
    }

    /// Keeps an order, in place of those that it serves as well: of the same tasks, apart by no more than makes another one wanted.
    pub(super) fn keep(&mut self, dag: Dag, order: Vec<usize>) {
        self.kept
            .retain(|(other, _)| drift(other, &dag) > NEW_ORDER);
        if self.kept.len() == MOST {
            self.kept.remove(0);
        }
        self.kept.push((dag, order));
    }
}

/// The seconds by which tasks differ from those that were planned, as a part of all; infinite for other tasks.
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

    /// Two tasks, the first of which takes so long.
    fn dag(seconds: f64) -> Dag {
        Dag::new([(0, seconds, vec![]), (1, 1.0, vec![0])])
    }

    #[test]
    fn an_order_is_followed_until_costs_have_drifted_by_a_quarter_and_missing_from_a_twentieth_on()
    {
        let mut orders = Orders::default();
        assert!(orders.of(&dag(1.0)).is_none() && orders.is_missing(&dag(1.0)));
        orders.keep(dag(1.0), vec![0, 1]);
        assert_eq!(orders.of(&dag(1.4)), Some(&[0, 1][..]));
        assert!(!orders.is_missing(&dag(1.08)) && orders.is_missing(&dag(1.12)));
        assert_eq!(orders.of(&dag(1.6)), None);
        assert_eq!(
            orders.of(&Dag::new([(0, 1.0, vec![]), (1, 1.0, vec![])])),
            None,
            "other tasks"
        );
        (0..2 * MOST as i32).for_each(|times| orders.keep(dag(2f64.powi(times)), vec![0, 1]));
        assert_eq!(orders.kept.len(), MOST, "the latest ones");
    }

    #[test]
    fn a_prompt_waits_once() {
        let mut orders = Orders::default();
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
