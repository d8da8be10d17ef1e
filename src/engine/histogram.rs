//! A histogram of lengths of time, small and fast enough to record every lock operation.
//!
//! Log-linear: each power of two is cut into 16 equal parts, so a quantile is at most 1/16 above
//! the true one, over the whole range, in 4 KB. As in Prometheus, buckets include their upper
//! limit, so the counts at powers of two are exact.

use super::Millis;

/// Each power of two is cut into this many parts.
const PARTS: usize = 1 << PARTS_BITS;
const PARTS_BITS: u32 = 4;
/// Lengths up to 2^32 ms, 49.7 days, are distinguished.
const BITS: u32 = 32;
const BUCKETS: usize = (BITS - PARTS_BITS + 1) as usize * PARTS;

/// Counts lengths of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    count: u64,
    sum: u64,
    max: u64,
    buckets: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::EMPTY
    }
}

impl Histogram {
    /// No lengths.
    pub const EMPTY: Histogram = Histogram { count: 0, sum: 0, max: 0, buckets: [0; BUCKETS] };

    /// Adds one length. In the quantiles, a length above 2^32 ms counts as 2^32 ms.
    #[inline]
    pub fn record(&mut self, length: Millis) {
        let millis = length.get();
        self.count += 1;
        self.sum = self.sum.wrapping_add(millis);
        self.max = self.max.max(millis);
        self.buckets[bucket_of(millis)] += 1;
    }

    /// How many lengths there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum of all lengths, modulo 2^64 ms.
    pub fn sum(&self) -> Millis {
        Millis::new(self.sum)
    }

    /// The longest.
    pub fn max(&self) -> Millis {
        Millis::new(self.max)
    }

    /// The quantile at `per_mille`: the upper limit of its bucket, so never below the true
    /// quantile, and at most 1/16 and 1 ms above. Zero without any lengths.
    pub fn quantile(&self, per_mille: u64) -> Millis {
        let rank = (self.count * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Millis::new(upper_limit(bucket).min(self.max));
            }
        }
        Millis::ZERO
    }

    /// How many lengths are at most 1, 2, 4, ... 2^(`powers` - 1) ms: each limit with its exact
    /// count.
    pub fn up_to_powers(&self, powers: u32) -> impl Iterator<Item = (Millis, u64)> {
        let mut counts = self.buckets.iter().enumerate().peekable();
        let mut seen = 0;
        (0..powers.min(BITS)).map(move |power| {
            let limit = 1_u64 << power;
            while let Some((_, count)) = counts.next_if(|&(bucket, _)| upper_limit(bucket) <= limit)
            {
                seen += count;
            }
            (Millis::new(limit), seen)
        })
    }
}

/// The bucket of a length. 1 is subtracted so that buckets include their upper limit; 0 goes with
/// 1.
#[inline]
fn bucket_of(millis: u64) -> usize {
    let value = millis.saturating_sub(1).min((1 << BITS) - 1);
    let row = (value | (PARTS as u64 - 1)).ilog2() + 1 - PARTS_BITS;
    let part = (value >> row.saturating_sub(1)) as usize & (PARTS - 1);
    row as usize * PARTS + part
}

/// The longest length in a bucket.
fn upper_limit(bucket: usize) -> u64 {
    let (row, part) = (bucket / PARTS, (bucket % PARTS) as u64);
    match row {
        0 => part + 1,
        row => (PARTS as u64 + part + 1) << (row - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn histogram(lengths: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        lengths.iter().for_each(|&length| histogram.record(Millis::new(length)));
        histogram
    }

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        let mut last = 0;
        for bucket in 0..BUCKETS {
            let limit = upper_limit(bucket);
            assert!(limit > last);
            assert_eq!((bucket_of(last + 1), bucket_of(limit)), (bucket, bucket));
            last = limit;
        }
        assert_eq!(last, 1 << BITS);
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn an_empty_histogram_is_all_zero() {
        let empty = Histogram::default();
        assert_eq!(
            (empty.quantile(500), empty.max(), empty.count()),
            (Millis::ZERO, Millis::ZERO, 0)
        );
        assert!(empty.up_to_powers(40).all(|(_, count)| count == 0));
        let limits: Vec<u64> = empty.up_to_powers(3).map(|(limit, _)| limit.get()).collect();
        assert_eq!(limits, [1, 2, 4]);
    }

    /// Lengths of all sizes, not mostly huge ones.
    fn length() -> impl Strategy<Value = u64> {
        (0..40_u32, any::<u64>()).prop_map(|(bits, number)| number & ((1 << bits) - 1))
    }

    proptest! {
        #[test]
        fn quantiles_are_close_above_the_exact_ones(
            mut lengths in proptest::collection::vec(length(), 1..300),
            per_mille in 1..=1000_u64,
        ) {
            let told = histogram(&lengths).quantile(per_mille).get();
            lengths.sort_unstable();
            let rank = (lengths.len() as u64 * per_mille).div_ceil(1000).max(1);
            let exact = lengths[rank as usize - 1];
            if exact <= 1 << BITS {
                prop_assert!(told >= exact, "{} < {}", told, exact);
                prop_assert!(told <= exact + exact / 16 + 1, "{} > {}", told, exact);
            }
        }

        #[test]
        fn counts_at_powers_of_two_are_exact(
            lengths in proptest::collection::vec(length(), 0..300),
        ) {
            let histogram = histogram(&lengths);
            for (limit, count) in histogram.up_to_powers(BITS) {
                let exact = lengths.iter().filter(|&&length| length <= limit.get()).count();
                prop_assert_eq!(count, exact as u64);
            }
            prop_assert_eq!(histogram.count(), lengths.len() as u64);
            prop_assert_eq!(histogram.sum().get(), lengths.iter().sum::<u64>());
            prop_assert_eq!(histogram.max().get(), lengths.iter().copied().max().unwrap_or(0));
        }
    }
}
