//! Timing of runs: the loop that repeats them, and the median.

use std::time::Instant;

/// Returns the seconds of one run.
pub fn seconds_of(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

/// Runs several things in turn, and returns their times: at least `runs` turns that take at least `seconds` for each
/// thing, after one warm-up turn. A turn returns the seconds of each thing.
pub fn turns<const N: usize>(
    runs: usize,
    seconds: f64,
    mut turn: impl FnMut() -> [f64; N],
) -> [Vec<f64>; N] {
    turn();
    let (mut times, mut sum) = (std::array::from_fn::<_, N, _>(|_| Vec::new()), 0.0);
    while times.first().is_some_and(|times| times.len() < runs) || sum < seconds * N as f64 {
        for (times, seconds) in times.iter_mut().zip(turn()) {
            sum += seconds;
            times.push(seconds);
        }
    }
    times
}

/// Returns the median: the value in the middle, or the mean of the two there; 0 if there are no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        count if count.is_multiple_of(2) => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_value_in_the_middle_or_the_mean_of_two() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn turns_go_on_until_there_are_enough_and_they_took_long_enough() {
        let [one, other] = turns(3, 0.0, || [1.0, 2.0]);
        assert_eq!((one, other), (vec![1.0; 3], vec![2.0; 3]));
        let [long] = turns(1, 10.0, || [3.0]);
        assert_eq!(long.len(), 4);
    }
}
