//! Computes comparable metrics from likelihoods, each with its standard error.

use serde::Serialize;
use triad_engine::Score;

use super::dataset::Task;
use super::prompts::ProcessorWork;
use super::question::{Judgement, Question};

/// The result of an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Its task.
    pub task: Task,
    /// The metrics; the first is the score of the task.
    pub metrics: Vec<Metric>,
    /// Rows or windows that were scored.
    pub count: usize,
    /// Tokens that went through the model. Parts that texts share are run once.
    pub tokens: usize,
    /// Time of the forward passes.
    pub seconds: f64,
    /// `tokens / seconds`.
    pub tokens_per_second: f64,
    /// The linear layers that each processor computed, if there were several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processors: Vec<ProcessorWork>,
    /// Remarks about the run.
    pub notes: Vec<String>,
    /// The result of each row, in the order of the file.
    pub rows: Rows,
}

/// One metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metric {
    /// `acc`, `acc_norm` or `perplexity`, as in the harness.
    pub name: &'static str,
    /// The estimate.
    pub value: f64,
    /// Standard deviation of the estimate, from the rows; infinite for a single one.
    pub standard_error: f64,
}

/// The results of each row or window, so that two methods can be compared row by row.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Rows {
    /// The results of questions.
    Questions {
        /// Whether each was answered right.
        correct: Vec<bool>,
        /// Natural logarithm of the likelihood of each choice.
        log_likelihoods: Vec<Vec<f64>>,
    },
    /// The results of windows of a text.
    Windows {
        /// Mean negative natural logarithm of the probability of a token.
        losses: Vec<f64>,
    },
}

/// Returns the metrics and rows of questions; `scores` has the scores of all their choices in order.
pub(super) fn questions(questions: &[&Question], scores: &[Score]) -> (Vec<Metric>, Rows) {
    let mut scores = scores.iter();
    let (mut right, mut right_per_character, mut last_words) = (Vec::new(), Vec::new(), Vec::new());
    let mut log_likelihoods = Vec::with_capacity(questions.len());
    for question in questions {
        let of_choices: Vec<_> = scores.by_ref().take(question.choices.len()).collect();
        let likelihoods: Vec<_> = of_choices
            .iter()
            .map(|score| score.log_likelihood())
            .collect();
        match question.judgement {
            Judgement::Greedy => {
                right.push(of_choices.iter().all(|score| score.greedy));
                last_words.push(-likelihoods[0]);
            }
            Judgement::Likeliest { right: index } => right.push(likeliest(&likelihoods) == index),
            Judgement::LikeliestPerCharacter { right: index } => {
                right.push(likeliest(&likelihoods) == index);
                let choices = likelihoods.iter().zip(&question.choices);
                let normalized: Vec<_> = choices
                    .map(|(likelihood, choice)| likelihood / choice.characters() as f64)
                    .collect();
                right_per_character.push(likeliest(&normalized) == index);
            }
        }
        log_likelihoods.push(likelihoods);
    }
    let mut metrics = vec![accuracy("acc", &right)];
    if !right_per_character.is_empty() {
        metrics.insert(0, accuracy("acc_norm", &right_per_character));
        right = right_per_character;
    }
    if !last_words.is_empty() {
        metrics.push(exponential(
            "perplexity",
            mean(&last_words),
            standard_error(&last_words),
            1.0,
        ));
    }
    (
        metrics,
        Rows::Questions {
            correct: right,
            log_likelihoods,
        },
    )
}

/// Returns the metrics and rows of windows of a text with the given tokens per word and per byte.
pub(super) fn windows(
    scores: &[Score],
    tokens_per_word: f64,
    tokens_per_byte: f64,
) -> (Vec<Metric>, Rows) {
    let losses: Vec<_> = scores
        .iter()
        .map(|score| -score.log_likelihood() / score.log_probabilities.len() as f64)
        .collect();
    let tokens: usize = scores
        .iter()
        .map(|score| score.log_probabilities.len())
        .sum();
    let loss = -scores.iter().map(Score::log_likelihood).sum::<f64>() / tokens as f64;
    let error = standard_error(&losses);
    let metrics = vec![
        exponential("token_perplexity", loss, error, 1.0),
        exponential("word_perplexity", loss, error, tokens_per_word),
        exponential("byte_perplexity", loss, error, tokens_per_byte),
        Metric {
            name: "loss",
            value: loss,
            standard_error: error,
        },
    ];
    (metrics, Rows::Windows { losses })
}

/// Returns the index of the first of the largest values.
fn likeliest(values: &[f64]) -> usize {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = index;
        }
    }
    best
}

fn accuracy(name: &'static str, right: &[bool]) -> Metric {
    let values: Vec<_> = right
        .iter()
        .map(|right| f64::from(u8::from(*right)))
        .collect();
    Metric {
        name,
        value: mean(&values),
        standard_error: standard_error(&values),
    }
}

/// Returns e to the power of `factor` losses, and its error to first order.
fn exponential(name: &'static str, loss: f64, error: f64, factor: f64) -> Metric {
    let value = (loss * factor).exp();
    Metric {
        name,
        value,
        standard_error: value * factor * error,
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the standard error of the mean: √(Σ(x − mean)² / (n − 1) / n), which for shares is √(p(1 − p) / (n − 1)).
fn standard_error(values: &[f64]) -> f64 {
    let (mean, count) = (mean(values), values.len() as f64);
    if values.len() < 2 {
        return f64::INFINITY;
    }
    (values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / (count - 1.0)
        / count)
        .sqrt()
}

#[cfg(test)]
mod tests {
    use super::super::question::Choice;
    use super::*;

    fn score(log_probabilities: &[f32], greedy: bool) -> Score {
        Score {
            log_probabilities: log_probabilities.to_vec(),
            greedy,
        }
    }

    fn close(metric: &Metric, name: &str, value: f64, error: f64) {
        assert_eq!(metric.name, name);
        assert!(
            (metric.value - value).abs() <= 1e-9 * value
                && (metric.standard_error - error).abs() < 1e-6,
            "{metric:?}"
        );
    }

    #[test]
    fn choices_are_judged_by_likelihood_and_by_likelihood_per_character() {
        let choices = vec![
            Choice::after_space("x", "ab"),
            Choice::after_space("x", "abcdefgh"),
        ];
        let question = Question::new(1, choices, Judgement::LikeliestPerCharacter { right: 1 });
        // The first is likelier; per character, the second is.
        let scores = [
            score(&[-2.0], false),
            score(&[-1.0, -3.0], false),
            score(&[-1.0], false),
            score(&[-9.0], false),
        ];
        let (metrics, rows) = questions(&[&question, &question], &scores);
        close(&metrics[0], "acc_norm", 0.5, 0.5);
        close(&metrics[1], "acc", 0.0, 0.0);
        let log_likelihoods = vec![vec![-2.0, -4.0], vec![-1.0, -9.0]];
        assert_eq!(
            rows,
            Rows::Questions {
                correct: vec![true, false],
                log_likelihoods
            }
        );
    }

    #[test]
    fn last_words_are_right_when_the_model_would_say_them() {
        let question = Question::new(1, vec![Choice::after_space("x", "y")], Judgement::Greedy);
        let scores = [
            score(&[-0.5, -0.5], true),
            score(&[-3.0], false),
            score(&[-2.0], true),
        ];
        let (metrics, _) = questions(&[&question; 3], &scores);
        close(&metrics[0], "acc", 2.0 / 3.0, (2.0f64 / 9.0 / 2.0).sqrt());
        close(
            &metrics[1],
            "perplexity",
            2f64.exp(),
            2f64.exp() / 3f64.sqrt(),
        );
    }

    #[test]
    fn perplexity_counts_every_token_once() {
        let (metrics, rows) = windows(
            &[score(&[-1.0, -3.0, -2.0], false), score(&[-4.0], false)],
            1.5,
            0.25,
        );
        close(&metrics[3], "loss", 2.5, 1.0);
        close(&metrics[0], "token_perplexity", 2.5f64.exp(), 2.5f64.exp());
        close(
            &metrics[1],
            "word_perplexity",
            3.75f64.exp(),
            3.75f64.exp() * 1.5,
        );
        close(
            &metrics[2],
            "byte_perplexity",
            0.625f64.exp(),
            0.625f64.exp() * 0.25,
        );
        assert_eq!(
            rows,
            Rows::Windows {
                losses: vec![2.0, 4.0]
            }
        );
    }

    #[test]
    fn of_equally_likely_choices_the_first_is_the_answer() {
        assert_eq!(likeliest(&[-2.0, -1.0, -1.0]), 1);
    }
}
