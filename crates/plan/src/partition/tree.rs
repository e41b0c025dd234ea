//! A regression tree (CART): a piecewise constant function, split where that reduces the squared error most.

/// Features and their target value.
#[derive(Clone, Copy, Debug)]
pub struct Sample<const FEATURES: usize> {
    /// Features, all above 0.
    pub features: [f64; FEATURES],
    /// The value to predict.
    pub target: f64,
}

/// Limits for the growth of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of splits from the root to a leaf.
    pub depth: usize,
    /// Minimum number of samples in a leaf.
    pub leaf: usize,
}

/// A regression tree.
#[derive(Clone, Debug)]
pub struct RegressionTree<const FEATURES: usize> {
    /// Nodes, the root first.
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, Debug)]
enum Node {
    Leaf(f64),
    /// Features below the threshold continue in the node `below`, others in `above`.
    Split {
        feature: usize,
        threshold: f64,
        below: usize,
        above: usize,
    },
}

/// A split of a node, and by how much it reduces the sum of squared errors.
#[derive(Clone, Copy)]
struct Split {
    feature: usize,
    threshold: f64,
    gain: f64,
}

/// Splits that gain less than this fraction of a node's squared error are rounding noise.
const MIN_GAIN: f64 = 1e-12;

impl<const FEATURES: usize> RegressionTree<FEATURES> {
    /// Fits a tree to samples. Thresholds are geometric means of adjacent values of a feature, the midpoints on a
    /// logarithmic scale.
    ///
    /// # Panics
    /// If there are no samples.
    pub fn fit(samples: &[Sample<FEATURES>], limits: Limits) -> Self {
        assert!(!samples.is_empty(), "a tree of no samples");
        let mut tree = Self { nodes: Vec::new() };
        tree.grow(&mut samples.to_vec(), limits);
        tree
    }

    /// Predicts the target of these features.
    pub fn predict(&self, features: &[f64; FEATURES]) -> f64 {
        let mut node = 0;
        loop {
            match self.nodes[node] {
                Node::Leaf(value) => return value,
                Node::Split {
                    feature,
                    threshold,
                    below,
                    above,
                } => {
                    node = if features[feature] < threshold {
                        below
                    } else {
                        above
                    };
                }
            }
        }
    }

    /// Adds a node for `samples` and all nodes below it. Returns its index.
    fn grow(&mut self, samples: &mut [Sample<FEATURES>], limits: Limits) -> usize {
        let index = self.nodes.len();
        let mean = samples.iter().map(|sample| sample.target).sum::<f64>() / samples.len() as f64;
        self.nodes.push(Node::Leaf(mean));
        if limits.depth > 0
            && let Some(Split {
                feature, threshold, ..
            }) = best_split(samples, mean, limits.leaf.max(1))
        {
            samples.sort_by(|a, b| a.features[feature].total_cmp(&b.features[feature]));
            let middle = samples.partition_point(|sample| sample.features[feature] < threshold);
            let (low, high) = samples.split_at_mut(middle);
            let limits = Limits {
                depth: limits.depth - 1,
                ..limits
            };
            let (below, above) = (self.grow(low, limits), self.grow(high, limits));
            self.nodes[index] = Node::Split {
                feature,
                threshold,
                below,
                above,
            };
        }
        index
    }
}

/// Returns the split that reduces the squared error of `samples` most and leaves at least `leaf` of them on either
/// side.
fn best_split<const FEATURES: usize>(
    samples: &mut [Sample<FEATURES>],
    mean: f64,
    leaf: usize,
) -> Option<Split> {
    let error: f64 = samples
        .iter()
        .map(|sample| (sample.target - mean).powi(2))
        .sum();
    let mut best: Option<Split> = None;
    for feature in 0..FEATURES {
        samples.sort_by(|a, b| a.features[feature].total_cmp(&b.features[feature]));
        // The sums of deviations from the mean on both sides differ only in sign.
        let mut sum = 0.0;
        for count in 1..samples.len() {
            sum += samples[count - 1].target - mean;
            let [low, high] = [count - 1, count].map(|index| samples[index].features[feature]);
            if low == high || count < leaf || samples.len() - count < leaf {
                continue;
            }
            let gain = sum * sum * (1.0 / count as f64 + 1.0 / (samples.len() - count) as f64);
            if gain > best.map_or(MIN_GAIN * error, |best| best.gain) {
                let middle = low.sqrt() * high.sqrt();
                let threshold = if middle > low { middle.min(high) } else { high };
                best = Some(Split {
                    feature,
                    threshold,
                    gain,
                });
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stairs(value: f64) -> f64 {
        (value / 32.0).ceil()
    }

    fn samples(values: impl Iterator<Item = usize>) -> Vec<Sample<1>> {
        values
            .map(|value| Sample {
                features: [value as f64],
                target: stairs(value as f64),
            })
            .collect()
    }

    #[test]
    fn a_tree_predicts_the_step_function_that_it_was_fitted_on() {
        let tree = RegressionTree::fit(&samples(1..=512), Limits { depth: 8, leaf: 1 });
        for value in 1..=512usize {
            assert!(
                (tree.predict(&[value as f64]) - stairs(value as f64)).abs() < 1e-9,
                "{value}"
            );
        }
        // Two values of each step are enough for all values in between.
        let edges = (0..16).flat_map(|step| [32 * step + 1, 32 * step + 32]);
        let tree = RegressionTree::fit(&samples(edges), Limits { depth: 8, leaf: 1 });
        for value in 1..=512usize {
            assert!(
                (tree.predict(&[value as f64]) - stairs(value as f64)).abs() < 1e-9,
                "{value}"
            );
        }
    }

    #[test]
    fn a_tree_cuts_the_feature_that_matters() {
        let samples: Vec<_> = (1..=64usize)
            .map(|value| Sample {
                features: [(value * 29 % 64 + 1) as f64, value as f64],
                target: stairs(value as f64),
            })
            .collect();
        let tree = RegressionTree::fit(&samples, Limits { depth: 1, leaf: 1 });
        assert_eq!(
            [32.0, 33.0].map(|value| tree.predict(&[1.0, value])),
            [1.0, 2.0]
        );
    }

    prop_compose! {
        fn any_samples()(
            samples in prop::collection::vec((1f64..100.0, 1f64..100.0, -10f64..10.0), 1..60),
        ) -> Vec<Sample<2>> {
            samples.into_iter().map(|(one, two, target)| Sample { features: [one.round(), two.round()], target }).collect()
        }
    }

    fn depth<const FEATURES: usize>(tree: &RegressionTree<FEATURES>, node: usize) -> usize {
        match tree.nodes[node] {
            Node::Leaf(_) => 0,
            Node::Split { below, above, .. } => 1 + depth(tree, below).max(depth(tree, above)),
        }
    }

    proptest! {
        #[test]
        fn a_tree_keeps_its_limits_and_predicts_means(samples in any_samples(), limit in 0usize..6, leaf in 1usize..8) {
            let tree = RegressionTree::fit(&samples, Limits { depth: limit, leaf });
            prop_assert!(depth(&tree, 0) <= limit);
            for sample in &samples {
                let predicted = tree.predict(&sample.features);
                let here: Vec<_> = samples.iter().filter(|other| tree.predict(&other.features) == predicted).collect();
                prop_assert!(here.len() >= leaf.min(samples.len()));
                let mean = here.iter().map(|other| other.target).sum::<f64>() / here.len() as f64;
                prop_assert!((mean - predicted).abs() < 1e-9);
            }
        }

        #[test]
        fn a_deeper_tree_is_never_further_off_what_it_was_fitted_on(samples in any_samples(), limit in 0usize..6) {
            let error = |depth: usize| -> f64 {
                let tree = RegressionTree::fit(&samples, Limits { depth, leaf: 1 });
                samples.iter().map(|sample| (tree.predict(&sample.features) - sample.target).powi(2)).sum()
            };
            prop_assert!(error(limit + 1) <= error(limit) + 1e-9);
        }
    }
}
