//! Chooses the next token from logits.
//!
//! The steps have the order of `transformers`: bias, repetition penalty, frequency and presence penalty, the mask of
//! allowed tokens, suppressed tokens, temperature, top-k, top-p, min-p. One token is then drawn from those that remain.

use std::collections::HashMap;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use triad_model::checkpoint::GenerationDefaults;

use crate::error::{Error, Result};
use crate::token_mask::TokenMask;

/// Options of sampling. The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Divisor of the logits; 0 always takes the likeliest token.
    pub temperature: f32,
    /// Keeps only this number of the likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the fewest likeliest tokens with at least this sum of probabilities; 1 keeps all.
    pub top_p: f32,
    /// Drops tokens that are less likely than this share of the likeliest one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive logits of tokens in the prompt or answer so far by this, and multiplies negative ones; 1
    /// changes nothing.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of a token for each time that it occurs in the answer so far; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Subtracted from the logits of tokens that occur in the answer so far; 0 changes nothing.
    pub presence_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens that are chosen only where no other one is allowed.
    pub suppressed_tokens: Vec<u32>,
    /// The seed of the random numbers: the same seed chooses the same tokens.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            suppressed_tokens: Vec::new(),
            seed: 0,
        }
    }
}

/// The number of tokens that are sorted first, to find those that `top_p` keeps.
const LIKELY: usize = 256;

/// Options for answers of a model whose authors recommend none.
const EVERYDAY: Everyday = Everyday {
    temperature: 0.7,
    top_p: 0.95,
    repetition_penalty: 1.05,
};

struct Everyday {
    temperature: f32,
    top_p: f32,
    repetition_penalty: f32,
}

impl SamplerOptions {
    /// Returns the options that the model's authors recommend, with the user's `temperature` if it is given.
    ///
    /// Without any recommendation, the temperature is 0.7, `top_p` 0.95 and the repetition penalty 1.05. If the authors
    /// recommend other options but no temperature, it is 0.7. At temperature 0 only what they recommend is applied.
    pub fn recommended(defaults: &GenerationDefaults, temperature: Option<f32>) -> Self {
        let recommends_none = defaults.temperature.is_none()
            && defaults.top_k.is_none()
            && defaults.top_p.is_none()
            && defaults.min_p.is_none()
            && defaults.repetition_penalty.is_none();
        let temperature = temperature
            .or(defaults.temperature)
            .unwrap_or(EVERYDAY.temperature);
        let greedy = Self::default();
        let (top_p, repetition_penalty) = if recommends_none && temperature != 0.0 {
            (EVERYDAY.top_p, EVERYDAY.repetition_penalty)
        } else {
            (greedy.top_p, greedy.repetition_penalty)
        };
        Self {
            temperature,
            top_k: defaults.top_k.unwrap_or(greedy.top_k),
            top_p: defaults.top_p.unwrap_or(top_p),
            min_p: defaults.min_p.unwrap_or(greedy.min_p),
            repetition_penalty: defaults.repetition_penalty.unwrap_or(repetition_penalty),
            suppressed_tokens: defaults.suppressed_tokens.clone(),
            ..greedy
        }
    }

    fn check(&self) -> Result<()> {
        let one_to = |name, value: f32, valid: bool, expected| {
            if valid {
                Ok(())
            } else {
                Err(Error::Option {
                    name,
                    value: value.to_string(),
                    expected,
                })
            }
        };
        let share = |value: f32| (0.0..=1.0).contains(&value);
        let temperature = self.temperature;
        one_to(
            "temperature",
            temperature,
            temperature >= 0.0 && temperature.is_finite(),
            "0 (greedy) or more",
        )?;
        one_to(
            "top-p",
            self.top_p,
            share(self.top_p) && self.top_p > 0.0,
            "more than 0 and at most 1",
        )?;
        one_to("min-p", self.min_p, share(self.min_p), "0 to 1")?;
        let penalty = self.repetition_penalty;
        one_to(
            "repetition penalty",
            penalty,
            (0.01..=100.0).contains(&penalty),
            "0.01 to 100 (1 changes nothing)",
        )?;
        let (frequency, presence) = (self.frequency_penalty, self.presence_penalty);
        one_to(
            "frequency penalty",
            frequency,
            frequency.is_finite(),
            "a finite number (0 changes nothing)",
        )?;
        one_to(
            "presence penalty",
            presence,
            presence.is_finite(),
            "a finite number (0 changes nothing)",
        )?;
        let infinite = self.logit_bias.iter().find(|(_, bias)| !bias.is_finite());
        infinite.map_or(Ok(()), |(_, bias)| {
            one_to("logit bias", *bias, false, "a finite number")
        })
    }
}

/// Chooses tokens; has the random number generator.
pub struct Sampler {
    options: SamplerOptions,
    random: ChaCha8Rng,
    candidates: Vec<Candidate>,
    /// For each token, whether it occurred.
    marks: Vec<bool>,
    /// The number of tokens before the answer.
    prompt: usize,
    /// `None`: all tokens are allowed.
    allowed: Option<TokenMask>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: u32,
    /// Logit, then probability (not normalized).
    weight: f32,
}

impl Sampler {
    /// Creates a sampler at the start of its random numbers.
    ///
    /// # Errors
    /// If an option is out of its range.
    pub fn new(options: &SamplerOptions) -> Result<Self> {
        options.check()?;
        let random = ChaCha8Rng::seed_from_u64(options.seed);
        let mut options = options.clone();
        options.suppressed_tokens.sort_unstable();
        Ok(Self {
            options,
            random,
            candidates: Vec::new(),
            marks: Vec::new(),
            prompt: 0,
            allowed: None,
        })
    }

    /// Marks the first `tokens` as the prompt, in which frequency and presence are not counted.
    pub fn begin_answer(&mut self, tokens: usize) {
        self.prompt = tokens;
    }

    /// Restricts the choice to these tokens from now on, at least one of which the logits must have; `None`: no
    /// restriction.
    pub fn allow(&mut self, allowed: Option<TokenMask>) {
        self.allowed = allowed;
    }

    /// Samples the next token, given `logits[vocab]` and the tokens `seen` before it.
    pub fn sample(&mut self, logits: &[f32], seen: &[u32]) -> u32 {
        self.weigh(logits, seen);
        self.draw()
    }

    /// Returns the distribution that [`Sampler::sample`] draws from, after temperature and filters.
    pub fn distribution(&mut self, logits: &[f32], seen: &[u32]) -> Distribution {
        self.weigh(logits, seen);
        Distribution::normalized(self.candidates.clone())
            .expect("the likeliest candidate has weight 1")
    }

    /// Draws a token of `distribution` with this sampler's random numbers.
    pub fn draw_from(&mut self, distribution: &Distribution) -> u32 {
        self.candidates.clone_from(&distribution.candidates);
        self.draw()
    }

    /// Returns a random number from 0 to 1, excluding 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.random.next_u32() >> 8) as f32 / (1 << 24) as f32
    }

    /// Fills the candidates for the next token, with their weights; if greedy, one candidate.
    fn weigh(&mut self, logits: &[f32], seen: &[u32]) {
        let options = &self.options;
        self.candidates.clear();
        let candidates = logits.iter().zip(0..).map(|(logit, token)| Candidate {
            token,
            weight: *logit,
        });
        self.candidates.extend(candidates);
        for (token, bias) in &options.logit_bias {
            if let Some(candidate) = self.candidates.get_mut(*token as usize) {
                candidate.weight += bias;
            }
        }
        if options.repetition_penalty != 1.0 {
            self.marks.clear();
            self.marks.resize(logits.len(), false);
            for token in seen {
                let token = *token as usize;
                // Each token is made less likely once; rows of pictures are none of the vocabulary.
                if self
                    .marks
                    .get_mut(token)
                    .is_none_or(|mark| std::mem::replace(mark, true))
                {
                    continue;
                }
                let logit = &mut self.candidates[token].weight;
                *logit *= if *logit > 0.0 {
                    1.0 / options.repetition_penalty
                } else {
                    options.repetition_penalty
                };
            }
        }
        if options.frequency_penalty != 0.0 || options.presence_penalty != 0.0 {
            let mut counts = HashMap::<u32, f32>::new();
            seen.iter()
                .skip(self.prompt)
                .for_each(|token| *counts.entry(*token).or_default() += 1.0);
            for (token, count) in counts {
                let penalty = options.frequency_penalty * count + options.presence_penalty;
                self.candidates[token as usize].weight -= penalty;
            }
        }
        if let Some(allowed) = &self.allowed {
            self.candidates
                .retain(|candidate| allowed.allows(candidate.token));
        }
        if !options.suppressed_tokens.is_empty() {
            let suppressed = &options.suppressed_tokens;
            let is_chosen =
                |candidate: &Candidate| suppressed.binary_search(&candidate.token).is_err();
            if self.candidates.iter().any(is_chosen) {
                self.candidates.retain(is_chosen);
            }
        }
        if options.temperature == 0.0 {
            let token = likeliest(&self.candidates).token;
            self.candidates.clear();
            self.candidates.push(Candidate { token, weight: 1.0 });
            return;
        }
        self.keep_top_k();
        self.weigh_by_probability();
        self.keep_top_p();
        self.keep_min_p();
    }

    fn keep_top_k(&mut self) {
        let top_k = self.options.top_k;
        if top_k > 0 && top_k < self.candidates.len() {
            self.candidates
                .select_nth_unstable_by(top_k - 1, likelier_first);
            self.candidates.truncate(top_k);
        }
        // The order must not depend on the selection, since the draw depends on the order.
        if top_k > 0 {
            self.candidates.sort_unstable_by(likelier_first);
        }
    }

    fn weigh_by_probability(&mut self) {
        let largest = likeliest(&self.candidates).weight;
        for candidate in &mut self.candidates {
            candidate.weight = ((candidate.weight - largest) / self.options.temperature).exp();
        }
    }

    fn keep_top_p(&mut self) {
        if self.options.top_p < 1.0 {
            let enough = self.total() * self.options.top_p;
            // Few tokens are enough most of the time, so that most need not be sorted.
            let mut count = LIKELY;
            let kept = loop {
                let count_here = count.min(self.candidates.len());
                let is_all = count_here == self.candidates.len();
                if !is_all {
                    self.candidates
                        .select_nth_unstable_by(count_here - 1, likelier_first);
                }
                let likely = &mut self.candidates[..count_here];
                likely.sort_unstable_by(likelier_first);
                let mut sum = 0.0;
                let before = likely.iter().take_while(|candidate| {
                    let keep = sum < enough;
                    sum += candidate.weight;
                    keep
                });
                let kept = before.count();
                // The sum of the last one may be enough.
                if kept < count_here || sum >= enough || is_all {
                    break kept.max(1);
                }
                count *= 8;
            };
            self.candidates.truncate(kept);
        }
    }

    /// Applies min-p. The likeliest token has weight 1.
    fn keep_min_p(&mut self) {
        let least = self.options.min_p;
        self.candidates
            .retain(|candidate| candidate.weight >= least);
    }

    fn draw(&mut self) -> u32 {
        let mut rest = self.unit() * self.total();
        for candidate in &self.candidates {
            rest -= candidate.weight;
            if rest < 0.0 {
                return candidate.token;
            }
        }
        likeliest(&self.candidates).token
    }

    fn total(&self) -> f32 {
        total(&self.candidates)
    }
}

/// The tokens that may come next, with their probabilities.
#[derive(Clone, Debug)]
pub struct Distribution {
    /// Probabilities greater than 0, with sum 1.
    candidates: Vec<Candidate>,
}

impl Distribution {
    /// Normalizes weights; returns `None` if no weight is positive.
    fn normalized(mut candidates: Vec<Candidate>) -> Option<Self> {
        candidates.retain(|candidate| candidate.weight > 0.0);
        let total = total(&candidates);
        candidates
            .iter_mut()
            .for_each(|candidate| candidate.weight /= total);
        (!candidates.is_empty()).then_some(Self { candidates })
    }

    /// Returns the probability of `token`.
    pub fn probability(&self, token: u32) -> f32 {
        self.candidates
            .iter()
            .find(|candidate| candidate.token == token)
            .map_or(0.0, |candidate| candidate.weight)
    }

    /// Returns the distribution to draw from after a token of `proposed_from` is rejected: max(0, p − q), normalized
    /// (Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", §2.3). Returns `None` if both
    /// distributions are equal.
    #[must_use]
    pub fn residual(&self, proposed_from: &Self) -> Option<Self> {
        let proposed: HashMap<_, _> = proposed_from
            .candidates
            .iter()
            .map(|one| (one.token, one.weight))
            .collect();
        let rest = |candidate: &Candidate| {
            let weight = candidate.weight - proposed.get(&candidate.token).copied().unwrap_or(0.0);
            Candidate {
                weight,
                ..*candidate
            }
        };
        Self::normalized(self.candidates.iter().map(rest).collect())
    }
}

fn total(candidates: &[Candidate]) -> f32 {
    candidates.iter().map(|candidate| candidate.weight).sum()
}

/// Compares by likelihood. Of equally likely tokens, the one with the smaller id is first.
fn likelier_first(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.weight.total_cmp(&a.weight).then(a.token.cmp(&b.token))
}

fn likeliest(candidates: &[Candidate]) -> Candidate {
    *candidates
        .iter()
        .min_by(|a, b| likelier_first(a, b))
        .expect("a vocabulary has at least one token")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drawn(options: &SamplerOptions, logits: &[f32], count: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(options).unwrap();
        (0..count).map(|_| sampler.sample(logits, &[])).collect()
    }

    const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, -1.0, 2.5];

    #[test]
    fn greedy_takes_the_likeliest_and_of_equals_the_first() {
        assert_eq!(drawn(&SamplerOptions::default(), &LOGITS, 3), [1, 1, 1]);
        assert_eq!(drawn(&SamplerOptions::default(), &[0.0, 7.0, 7.0], 1), [1]);
    }

    #[test]
    fn a_model_without_recommendations_samples_with_a_light_guard_and_temperature_0_is_greedy() {
        let none = GenerationDefaults::default();
        let of = |defaults: &GenerationDefaults, temperature| {
            let options = SamplerOptions::recommended(defaults, temperature);
            (
                options.temperature,
                options.top_p,
                options.repetition_penalty,
            )
        };
        assert_eq!(of(&none, None), (0.7, 0.95, 1.05));
        assert_eq!(of(&none, Some(1.5)), (1.5, 0.95, 1.05));
        assert_eq!(
            SamplerOptions::recommended(&none, Some(0.0)),
            SamplerOptions::default()
        );
        // The end tokens are no recommendation of how to sample.
        let ends = GenerationDefaults {
            end_tokens: vec![2],
            ..none.clone()
        };
        assert_eq!(of(&ends, None), (0.7, 0.95, 1.05));
    }

    #[test]
    fn what_the_authors_recommend_is_taken_alone() {
        let of = |defaults: GenerationDefaults, temperature| {
            let options = SamplerOptions::recommended(&defaults, temperature);
            (
                options.temperature,
                options.top_p,
                options.repetition_penalty,
            )
        };
        let greedy = || GenerationDefaults {
            temperature: Some(0.0),
            ..GenerationDefaults::default()
        };
        assert_eq!(of(greedy(), None), (0.0, 1.0, 1.0));
        assert_eq!(of(greedy(), Some(0.5)), (0.5, 1.0, 1.0));
        let filtered = || GenerationDefaults {
            top_p: Some(0.8),
            ..GenerationDefaults::default()
        };
        assert_eq!(of(filtered(), None), (0.7, 0.8, 1.0));
        assert_eq!(of(filtered(), Some(0.0)), (0.0, 0.8, 1.0));
    }

    #[test]
    fn suppressed_tokens_are_chosen_only_where_no_other_is_allowed() {
        let likeliest = (0..LOGITS.len() as u32)
            .max_by(|one, other| LOGITS[*one as usize].total_cmp(&LOGITS[*other as usize]))
            .unwrap();
        for temperature in [0.0, 1.0] {
            let defaults = GenerationDefaults {
                suppressed_tokens: vec![likeliest, 1_000_000],
                ..GenerationDefaults::default()
            };
            let options = SamplerOptions {
                repetition_penalty: 1.0,
                ..SamplerOptions::recommended(&defaults, Some(temperature))
            };
            assert!(!drawn(&options, &LOGITS, 200).contains(&likeliest));
            let mut sampler = Sampler::new(&options).unwrap();
            sampler.allow(Some([likeliest].into_iter().collect()));
            assert_eq!(sampler.sample(&LOGITS, &[]), likeliest);
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_tokens_and_another_seed_others() {
        let options = SamplerOptions {
            temperature: 1.0,
            seed: 7,
            ..SamplerOptions::default()
        };
        assert_eq!(drawn(&options, &LOGITS, 50), drawn(&options, &LOGITS, 50));
        assert_ne!(
            drawn(&options, &LOGITS, 50),
            drawn(
                &SamplerOptions {
                    seed: 8,
                    ..options.clone()
                },
                &LOGITS,
                50
            )
        );
    }

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_likely() {
        let options = SamplerOptions {
            temperature: 0.5,
            ..SamplerOptions::default()
        };
        let tokens = drawn(&options, &LOGITS, 20_000);
        let weights: Vec<f64> = LOGITS
            .iter()
            .map(|logit| f64::from(logit / 0.5).exp())
            .collect();
        for (token, weight) in weights.iter().enumerate() {
            let expected = weight / weights.iter().sum::<f64>();
            let share = tokens
                .iter()
                .filter(|drawn| **drawn as usize == token)
                .count() as f64
                / tokens.len() as f64;
            assert!(
                (share - expected).abs() < 0.015,
                "token {token}: {share} of the draws, expected {expected}"
            );
        }
    }

    #[test]
    fn filters_keep_what_they_promise() {
        let hot = SamplerOptions {
            temperature: 100.0,
            ..SamplerOptions::default()
        };
        let kept = |options: SamplerOptions| {
            let mut tokens = drawn(&options, &LOGITS, 500);
            tokens.sort_unstable();
            tokens.dedup();
            tokens
        };
        assert_eq!(kept(hot.clone()), [0, 1, 2, 3, 4]);
        assert_eq!(
            kept(SamplerOptions {
                top_k: 2,
                ..hot.clone()
            }),
            [1, 4]
        );
        assert_eq!(
            kept(SamplerOptions {
                top_p: 0.5,
                ..hot.clone()
            }),
            [1, 2, 4]
        );
        assert_eq!(
            kept(SamplerOptions {
                top_p: 1e-6,
                ..hot.clone()
            }),
            [1]
        );
        let warm = SamplerOptions {
            temperature: 1.0,
            ..SamplerOptions::default()
        };
        assert_eq!(kept(SamplerOptions { min_p: 0.3, ..warm }), [1, 2, 4]);
    }

    #[test]
    fn top_p_keeps_the_likeliest_of_a_large_vocabulary_in_order() {
        // Nearly flat, so that several rounds of sorting are needed; some are equal.
        let logits: Vec<f32> = (0..5000)
            .map(|token| ((token * 7919) % 4999) as f32 * 1e-4)
            .collect();
        for top_p in [0.001, 0.05, 0.3, 0.95, 0.9999] {
            let options = SamplerOptions {
                temperature: 1.0,
                top_p,
                ..SamplerOptions::default()
            };
            let mut sampler = Sampler::new(&options).unwrap();
            sampler.weigh(&logits, &[]);
            let mut expected: Vec<_> = logits
                .iter()
                .zip(0..)
                .map(|(logit, token)| Candidate {
                    token,
                    weight: (logit - 0.4998).exp(),
                })
                .collect();
            let enough =
                expected.iter().map(|it| f64::from(it.weight)).sum::<f64>() * f64::from(top_p);
            expected.sort_by(likelier_first);
            let mut sum = 0.0;
            let count = expected.iter().take_while(|it| {
                let keep = sum < enough;
                sum += f64::from(it.weight);
                keep
            });
            let count = count.count();
            let kept: Vec<_> = sampler.candidates.iter().map(|it| it.token).collect();
            // Sums in f32 differ in the last tokens.
            assert!(
                kept.len().abs_diff(count) <= 2,
                "{top_p}: {} {count}",
                kept.len()
            );
            let expected: Vec<_> = expected
                .iter()
                .map(|it| it.token)
                .take(kept.len())
                .collect();
            assert_eq!(kept, expected, "{top_p}");
        }
    }

    #[test]
    fn a_repetition_penalty_makes_seen_tokens_less_likely() {
        let options = SamplerOptions {
            repetition_penalty: 1.5,
            ..SamplerOptions::default()
        };
        assert_eq!(
            Sampler::new(&options).unwrap().sample(&[3.0, 2.5], &[0, 0]),
            1
        );
        assert_eq!(
            Sampler::new(&options).unwrap().sample(&[-2.0, -2.5], &[0]),
            1
        );
    }

    #[test]
    fn an_option_out_of_range_is_named() {
        let cases = [
            (
                SamplerOptions {
                    temperature: -1.0,
                    ..SamplerOptions::default()
                },
                "temperature is -1",
            ),
            (
                SamplerOptions {
                    temperature: f32::NAN,
                    ..SamplerOptions::default()
                },
                "temperature is NaN",
            ),
            (
                SamplerOptions {
                    top_p: 0.0,
                    ..SamplerOptions::default()
                },
                "top-p is 0",
            ),
            (
                SamplerOptions {
                    min_p: 1.5,
                    ..SamplerOptions::default()
                },
                "min-p is 1.5",
            ),
            (
                SamplerOptions {
                    repetition_penalty: 0.0,
                    ..SamplerOptions::default()
                },
                "repetition penalty is 0",
            ),
            (
                SamplerOptions {
                    frequency_penalty: f32::NAN,
                    ..SamplerOptions::default()
                },
                "frequency penalty is NaN",
            ),
            (
                SamplerOptions {
                    presence_penalty: f32::INFINITY,
                    ..SamplerOptions::default()
                },
                "presence penalty is inf",
            ),
            (
                SamplerOptions {
                    logit_bias: vec![(0, f32::INFINITY)],
                    ..SamplerOptions::default()
                },
                "logit bias is inf",
            ),
        ];
        for (options, message) in cases {
            let Err(error) = Sampler::new(&options) else {
                panic!("{options:?} is accepted")
            };
            assert!(error.to_string().starts_with(message), "{error}");
        }
    }

    proptest! {
        #[test]
        fn bias_and_penalties_change_logits_as_a_plain_reference_does(
            logits in prop::collection::vec(-5f32..5.0, 6), prompt in prop::collection::vec(0u32..6, 0..5),
            answer in prop::collection::vec(0u32..6, 0..8), frequency_penalty in -2f32..2.0, presence_penalty in -2f32..2.0,
            repetition_penalty in 0.5f32..2.0, bias in prop::collection::vec((0u32..6, -3f32..3.0), 0..4),
        ) {
            let mut expected = logits.clone();
            for token in 0..6 {
                let logit = &mut expected[token as usize];
                for (biased, bias) in &bias {
                    *logit += if *biased == token { *bias } else { 0.0 };
                }
                if prompt.contains(&token) || answer.contains(&token) {
                    *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
                }
                let count = answer.iter().filter(|one| **one == token).count();
                *logit -= count as f32 * frequency_penalty + if count > 0 { presence_penalty } else { 0.0 };
            }
            let total: f64 = expected.iter().map(|logit| f64::from(*logit).exp()).sum();
            let options = SamplerOptions {
                temperature: 1.0, repetition_penalty, frequency_penalty, presence_penalty, logit_bias: bias,
                ..SamplerOptions::default()
            };
            let mut sampler = Sampler::new(&options).unwrap();
            sampler.begin_answer(prompt.len());
            let distribution = sampler.distribution(&logits, &[prompt, answer].concat());
            for (token, logit) in (0..).zip(&expected) {
                let probability = (f64::from(*logit).exp() / total) as f32;
                prop_assert!((distribution.probability(token) - probability).abs() < 1e-5);
            }
        }

        #[test]
        fn a_token_of_the_vocabulary_comes_out_whatever_goes_in(
            logits in prop::collection::vec(-50f32..50.0, 1..40), temperature in 0f32..5.0, top_k in 0usize..50,
            top_p in 0.0078125f32..=1.0, min_p in 0f32..=1.0, repetition_penalty in 0.125f32..3.0, seed: u64,
        ) {
            let options =
                SamplerOptions { temperature, top_k, top_p, min_p, repetition_penalty, seed, ..SamplerOptions::default() };
            let token = Sampler::new(&options).unwrap().sample(&logits, &[0]);
            prop_assert!((token as usize) < logits.len());
        }
    }
}
