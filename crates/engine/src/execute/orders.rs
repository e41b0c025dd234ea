//! Orders of the tasks of prompts that were planned ahead, and prompts that wait for one.

use std::collections::VecDeque;

use triad_plan::schedule::Dag;

/// Orders that are kept, at most, and prompts that wait for one.
const MOST: usize = 32;
/// An order is made anew for tasks whose seconds differ by more than this, as a part of all.
const DRIFT: f64 = 0.25;

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
        let drifts = self.kept.iter().map(|(planned, order)| (drift(planned, dag), order));
        let nearest = drifts.min_by(|one, other| one.0.total_cmp(&other.0));
        nearest.filter(|(drift, _)| *drift <= DRIFT).map(|(_, order)| &order[..])
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

    /// Keeps an order, in place of those that it serves as well: of the same tasks, apart by no more than a drift.
    pub(super) fn keep(&mut self, dag: Dag, order: Vec<usize>) {
        self.kept.retain(|(other, _)| drift(other, &dag) > DRIFT);
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
    let apart: f64 = (0..now.len()).map(|task| (now.seconds(task) - planned.seconds(task)).abs()).sum();
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
    fn an_order_holds_until_costs_have_drifted_by_a_quarter() {
        let mut orders = Orders::default();
        assert_eq!(orders.of(&dag(1.0)), None);
        orders.keep(dag(1.0), vec![0, 1]);
        assert_eq!(orders.of(&dag(1.4)), Some(&[0, 1][..]));
        assert_eq!(orders.of(&dag(1.6)), None);
        assert_eq!(orders.of(&Dag::new([(0, 1.0, vec![]), (1, 1.0, vec![])])), None, "other tasks");
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
        assert_eq!([orders.next(), orders.next(), orders.next()], [Some((256, 0)), Some((512, 0)), None]);
        assert!(orders.is_idle());
    }
}
