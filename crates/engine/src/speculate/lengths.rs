//! Chooses the number of proposals of a step: the one with the most expected tokens per second, by the measured time of
//! steps and the recent acceptance of proposals of their kind.
//!
//! Unknown numbers of proposals are tried within a budget: compared with one token per step, only a small part of the
//! time can be lost. The caller measures the time.

/// The share of the time of plain decode that rejected proposals may cost.
const LOSS: f64 = 0.02;
/// The share of that loss that may be used to try whether proposals are accepted again.
const TRIES: f64 = 0.5;
/// The number of plain steps that may be lost at the beginning.
const HEAD_START: f64 = 0.5;
/// The number of plain steps that earlier gains may pay for.
const CREDIT: f64 = 4.0;
/// The estimated time of one proposal, before it is measured, as a part of a plain step.
const GUESSED_SLOPE: f64 = 0.25;
/// Plain steps before the first proposal: fewer are not a reliable measurement.
const PLAIN_STEPS: usize = 2;
/// The number of steps after which a plain step is measured again, since steps become slower as the context grows.
const STALE: usize = 64;
/// The minimum ratio of the expected tokens per second to those of a plain step.
const MARGIN: f64 = 1.02;
/// A measured time counts as at most this many times the mean, since an interrupted thread distorts it.
const SPIKE: f64 = 2.0;

/// A moving mean.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    value: f64,
    count: usize,
}

impl Mean {
    /// Adds a value. The latest value has a weight of at least an eighth.
    fn add(&mut self, value: f64) {
        let value = if self.count > 1 {
            value.min(SPIKE * self.value)
        } else {
            value
        };
        self.count += 1;
        self.value += (value - self.value) / self.count.min(8) as f64;
    }
}

/// The acceptance of proposals of one kind; the latest ones have the highest weight.
#[derive(Clone, Copy, Debug)]
struct Acceptance {
    accepted: f64,
    tried: f64,
}

impl Acceptance {
    /// The factor of a trial's weight with each later trial.
    const MEMORY: f64 = 0.9;
    /// The maximum share of accepted proposals that is assumed.
    const MAX: f64 = 0.98;

    /// Creates the acceptance before the first trial: one half.
    const fn unknown() -> Self {
        Self {
            accepted: 0.5,
            tried: 1.0,
        }
    }

    /// Adds the first `accepted` of `proposed`; if these are not all, the next one was rejected.
    fn add(&mut self, proposed: usize, accepted: usize) {
        for trial in 0..proposed.min(accepted + 1) {
            self.tried = self.tried * Self::MEMORY + 1.0;
            self.accepted = self.accepted * Self::MEMORY + f64::from(u8::from(trial < accepted));
        }
    }

    /// Returns the expected tokens of a step with `count` proposals.
    fn tokens(&self, count: usize) -> f64 {
        let share = (self.accepted / self.tried).min(Self::MAX);
        (1.0 - share.powf(count as f64 + 1.0)) / (1.0 - share)
    }
}

/// Chooses the number of proposals of a step.
#[derive(Clone, Debug)]
pub(crate) struct Lengths {
    most: usize,
    is_fixed: bool,
    /// Seconds of a step, by the number of proposals.
    seconds: Vec<Mean>,
    /// Acceptance by kind of proposals.
    acceptances: Vec<Acceptance>,
    /// The number of tokens so far.
    tokens: usize,
    /// Seconds that steps with proposals took longer than plain ones would have taken; negative if they were faster.
    lost: f64,
    steps_since_plain: usize,
}

impl Lengths {
    /// Creates lengths that are always `most`.
    pub(super) fn fixed(most: usize) -> Self {
        Self {
            is_fixed: true,
            ..Self::measured(most)
        }
    }

    /// Creates lengths from 0 to `most`.
    pub(super) fn measured(most: usize) -> Self {
        Self {
            most,
            is_fixed: false,
            seconds: vec![Mean::default(); most + 1],
            acceptances: Vec::new(),
            tokens: 0,
            lost: 0.0,
            steps_since_plain: 0,
        }
    }

    /// Returns the number of proposals of the next step, at most `most`, if the available proposals are of `kind`.
    pub(super) fn choose(&mut self, kind: usize, most: usize) -> usize {
        let most = most.min(self.most);
        if self.is_fixed || most == 0 {
            return most;
        }
        if self.seconds[0].count < PLAIN_STEPS || self.steps_since_plain >= STALE {
            return 0;
        }
        let acceptance = *self.of_kind(kind);
        let plain = self.seconds[0].value;
        let most_lost = plain * (HEAD_START + LOSS * self.tokens as f64);
        let fits = |count: &usize, most_lost: f64| {
            self.lost + self.expected_seconds(*count) - plain <= most_lost
        };
        let rate = |count: usize| self.rate_with(&acceptance, count);
        let best = (1..=most)
            .filter(|count| fits(count, most_lost))
            .max_by(|a, b| rate(*a).total_cmp(&rate(*b)));
        match best {
            Some(count) if rate(count) > MARGIN / plain => count,
            Some(_) if fits(&1, TRIES * most_lost) => 1,
            _ => 0,
        }
    }

    /// Returns the expected tokens per second of a step with `count` proposals of `kind`; tokens, if no step was measured.
    pub(super) fn rate(&mut self, kind: usize, count: usize) -> f64 {
        let acceptance = *self.of_kind(kind);
        match self.seconds[0].count {
            0 => acceptance.tokens(count),
            _ => self.rate_with(&acceptance, count),
        }
    }

    fn rate_with(&self, acceptance: &Acceptance, count: usize) -> f64 {
        acceptance.tokens(count) / self.expected_seconds(count)
    }

    /// Records a step with `proposed` proposals of `kind` that took `seconds`; `accepted` of them were accepted.
    pub(super) fn observe(&mut self, kind: usize, proposed: usize, accepted: usize, seconds: f64) {
        if self.is_fixed {
            return;
        }
        self.seconds[proposed].add(seconds);
        self.tokens += accepted + 1;
        if proposed == 0 {
            self.steps_since_plain = 0;
            return;
        }
        self.steps_since_plain += 1;
        self.of_kind(kind).add(proposed, accepted);
        let plain = self.seconds[0].value;
        self.lost += self.expected_seconds(proposed) - plain * (accepted + 1) as f64;
        self.lost = self.lost.max(-CREDIT * plain);
    }

    fn of_kind(&mut self, kind: usize) -> &mut Acceptance {
        if self.acceptances.len() <= kind {
            self.acceptances.resize(kind + 1, Acceptance::unknown());
        }
        &mut self.acceptances[kind]
    }

    /// Returns the measured seconds, or an estimate from the nearest number of proposals that was measured; at least
    /// those of a plain step.
    fn expected_seconds(&self, proposed: usize) -> f64 {
        let plain = self.seconds[0].value;
        if self.seconds[proposed].count > 0 {
            return self.seconds[proposed].value.max(plain);
        }
        let measured = (1..self.seconds.len()).filter(|count| self.seconds[*count].count > 0);
        let slope = match measured.min_by_key(|count| count.abs_diff(proposed)) {
            Some(count) => ((self.seconds[count].value - plain) / count as f64).max(0.0),
            None => GUESSED_SLOPE * plain,
        };
        plain + slope * proposed as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Decodes `tokens` tokens and returns the total seconds. A proposal is accepted if `accepts` returns true for its
    /// position; `seconds` returns the time of a step by its number of proposals.
    fn decode(
        tokens: usize,
        accepts: impl Fn(usize) -> bool,
        seconds: impl Fn(usize) -> f64,
    ) -> f64 {
        let mut lengths = Lengths::measured(16);
        let (mut position, mut total) = (0, 0.0);
        while position < tokens {
            let proposed = lengths.choose(0, tokens - position - 1);
            let accepted = (0..proposed)
                .take_while(|index| accepts(position + index))
                .count();
            lengths.observe(0, proposed, accepted, seconds(proposed));
            total += seconds(proposed);
            position += accepted + 1;
        }
        total
    }

    #[test]
    fn steps_have_no_proposals_before_plain_ones_are_measured_and_when_those_are_stale() {
        let mut lengths = Lengths::measured(4);
        for _ in 0..PLAIN_STEPS {
            assert_eq!(lengths.choose(0, 9), 0);
            lengths.observe(0, 0, 0, 1.0);
        }
        let mut steps = 0;
        while lengths.choose(0, 9) > 0 {
            let proposed = lengths.choose(0, 9);
            lengths.observe(0, proposed, proposed, 1.1);
            steps += 1;
        }
        assert_eq!(steps, STALE);
    }

    #[test]
    fn where_all_are_accepted_most_steps_are_as_long_as_they_may_be() {
        // Steps of 17 rows cost as much as two.
        let total = decode(1700, |_| true, |proposed| 1.0 + proposed as f64 / 16.0);
        assert!(total < 1.15 * 200.0, "{total}");
    }

    #[test]
    fn what_is_accepted_later_is_found() {
        let total = decode(
            4000,
            |position| position >= 2000,
            |proposed| 1.0 + proposed as f64 / 8.0,
        );
        assert!(total < 2000.0 * 1.03 + 1000.0, "{total}");
    }

    #[test]
    fn kinds_are_distinguished() {
        let mut lengths = Lengths::measured(4);
        (0..100).for_each(|_| lengths.observe(0, 0, 0, 1.0));
        for _ in 0..20 {
            lengths.observe(0, 1, 0, 1.2);
            lengths.observe(1, 4, 4, 1.4);
        }
        lengths.observe(0, 0, 0, 1.0);
        assert_eq!(
            (lengths.choose(1, 4), lengths.choose(0, 4)),
            (4, 1),
            "the second tries only"
        );
        // 3.0 is more than the part of 4.92 plain steps that tries may lose.
        lengths.lost = 3.0;
        assert_eq!((lengths.choose(1, 4), lengths.choose(0, 4)), (4, 0));
    }

    proptest! {
        #[test]
        fn where_nothing_is_accepted_at_most_three_percent_are_lost(
            tokens in 100usize..3000, slope in 0.0f64..3.0, noise in 0.0f64..0.2,
        ) {
            let cost = |proposed: usize| (1.0 + slope * proposed as f64) * (1.0 + noise * ((proposed * 7 % 3) as f64 - 1.0));
            let total = decode(tokens, |_| false, cost);
            // A first try may cost more than expected.
            prop_assert!(total <= tokens as f64 * cost(0) * 1.03 + slope * 1.3, "{total} for {tokens}");
        }

        #[test]
        fn it_is_never_slower_than_plain_by_more_than_what_may_be_lost(
            accepted in prop::collection::vec(any::<bool>(), 400), slope in 0.01f64..1.5,
        ) {
            let total = decode(400, |position| accepted[position], |proposed| 1.0 + slope * proposed as f64);
            prop_assert!(total <= 400.0 * 1.03 + 2.0 * slope, "{total}");
        }
    }
}
