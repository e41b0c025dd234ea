//! The table that `triad eval` prints of several methods or tasks: a row for each method, a column for each task.

use std::collections::BTreeSet;

use triad_evaluate::{Dataset, Task};

use super::Outcome;
use super::methods::Variant;

/// `100.00 ± 10.00`
const NUMBER: usize = 14;
/// `100.00`
const PERCENT: usize = 6;
/// The mark in place of a result that was not measured.
const OPEN: &str = "-";

/// A table that is printed row by row, as results are finished. The widths of its columns are known from the start.
pub struct Table {
    label: usize,
    tasks: Vec<Task>,
    /// Whether there are several accuracies, so that the table has their mean.
    average: bool,
    /// Whether there is a float model to compare with.
    difference: bool,
    float: Option<f64>,
    notes: BTreeSet<String>,
}

impl Table {
    /// Creates a table for these rows and columns.
    pub fn new(variants: &[Variant], datasets: &[Dataset]) -> Self {
        let tasks: Vec<_> = datasets.iter().map(Dataset::task).collect();
        let accuracies = tasks.iter().filter(|task| is_accuracy(**task)).count();
        let compared = variants.len() > 1 && variants.iter().any(Variant::is_float);
        let labels = variants.iter().map(|variant| variant.label.len());
        Self {
            label: labels.chain(["method".len()]).max().unwrap_or(0),
            tasks,
            average: accuracies > 1,
            difference: compared && accuracies > 0,
            float: None,
            notes: BTreeSet::new(),
        }
    }

    /// Returns the names of the columns.
    pub fn head(&self) -> String {
        let tasks = self
            .tasks
            .iter()
            .map(|task| task.name().to_owned())
            .collect();
        self.line("method", tasks, "average", "difference")
    }

    /// Returns the row of one method: accuracies in percent, their mean, and its difference from that of float in
    /// points. If the command was interrupted, `outcomes` has only the first tasks. The others, and the mean, are then
    /// left open.
    pub fn row(&mut self, variant: &Variant, outcomes: &[Outcome]) -> String {
        let (mut accuracies, mut cells) = (Vec::new(), Vec::new());
        for Outcome {
            evaluation, pruned, ..
        } in outcomes
        {
            // The first metric is the score of the task.
            let metric = &evaluation.metrics[0];
            let factor = if is_accuracy(evaluation.task) {
                100.0
            } else {
                1.0
            };
            let (value, error) = (metric.value * factor, metric.standard_error * factor);
            cells.push(format!("{value:.2} ± {error:.2}"));
            if is_accuracy(evaluation.task) {
                accuracies.push(value);
            }
            let notes = evaluation
                .notes
                .iter()
                .map(|note| format!("{}: {note}", evaluation.task.name()));
            self.notes.extend(notes);
            if let Some(share) = pruned.filter(|_| !variant.has_rate()) {
                self.notes.insert(format!(
                    "{}: {:.0} % of the shadows left out",
                    variant.label,
                    100.0 * share
                ));
            }
        }
        let is_whole = cells.len() == self.tasks.len();
        cells.resize(self.tasks.len(), OPEN.to_owned());
        if !is_whole {
            return self.line(&variant.label, cells, OPEN, OPEN);
        }
        let average = accuracies.iter().sum::<f64>() / accuracies.len() as f64;
        if variant.is_float() {
            self.float = Some(average);
        }
        let difference = self.float.map_or(0.0, |float| average - float);
        self.line(
            &variant.label,
            cells,
            &format!("{average:.2}"),
            &format!("{difference:+.2}"),
        )
    }

    /// Returns the notes on the results, one per line.
    pub fn notes(&self) -> impl Iterator<Item = &str> {
        self.notes.iter().map(String::as_str)
    }

    fn line(&self, label: &str, tasks: Vec<String>, average: &str, difference: &str) -> String {
        let mut line = format!("{label:0$}", self.label);
        for cell in tasks {
            line += &format!("  {cell:>NUMBER$}");
        }
        if self.average {
            line += &format!("  {average:>0$}", PERCENT.max("average".len()));
        }
        if self.difference {
            line += &format!("  {difference:>0$}", PERCENT.max("difference".len()));
        }
        line
    }
}

fn is_accuracy(task: Task) -> bool {
    task != Task::Perplexity
}

#[cfg(test)]
mod tests {
    use triad_evaluate::{Evaluation, Metric, Rows};

    use super::*;

    fn outcome(task: Task, value: f64) -> Outcome {
        let metrics = vec![Metric {
            name: "acc",
            value,
            standard_error: 0.01,
        }];
        let rows = Rows::Windows { losses: Vec::new() };
        let notes = Vec::new();
        let evaluation = Evaluation {
            task,
            metrics,
            count: 0,
            tokens: 0,
            seconds: 0.0,
            tokens_per_second: 0.0,
            processors: Vec::new(),
            notes,
            rows,
        };
        Outcome {
            method: "",
            pruned: None,
            smoothing: None,
            prepare_seconds: 0.0,
            evaluation,
        }
    }

    #[test]
    fn accuracies_are_in_percent_and_compared_with_float_in_points() {
        let tasks = vec![Task::Lambada, Task::Perplexity, Task::Mmlu];
        let notes = BTreeSet::new();
        let mut table = Table {
            label: 6,
            tasks,
            average: true,
            difference: true,
            float: None,
            notes,
        };
        let mut cells = |method, lambada, perplexity, mmlu| {
            let variant = Variant::as_it_is(method);
            let outcomes = [
                (Task::Lambada, lambada),
                (Task::Perplexity, perplexity),
                (Task::Mmlu, mmlu),
            ]
            .map(|(task, value)| outcome(task, value));
            let row = table.row(&variant, &outcomes);
            let cells: Vec<_> = row
                .split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect();
            cells.join(" | ")
        };
        assert_eq!(
            cells("float", 0.5, 20.0, 0.25),
            "float | 50.00 ± 1.00 | 20.00 ± 0.01 | 25.00 ± 1.00 | 37.50 | +0.00"
        );
        assert_eq!(
            cells("w8a8", 0.4, 30.5, 0.25),
            "w8a8 | 40.00 ± 1.00 | 30.50 ± 0.01 | 25.00 ± 1.00 | 32.50 | -5.00"
        );
        let interrupted = table.row(&Variant::as_it_is("shadow"), &[outcome(Task::Lambada, 0.5)]);
        let cells: Vec<_> = interrupted
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect();
        assert_eq!(cells, ["shadow", "50.00 ± 1.00", "-", "-", "-", "-"]);
    }
}
