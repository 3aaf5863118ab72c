//! Maxima of the prefixes of a growing list of numbers.

/// Maxima of the prefixes of a growing list of numbers. Only numbers larger than all before them
/// are stored: about `ln n` of `n` numbers in random order, at 16 bytes each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrefixMax {
    len: usize,
    /// Numbers larger than all before them, each with its position in the list.
    records: Vec<(usize, f64)>,
    /// The last record, or zeros: the answer in most cases, without another access to memory.
    last: (usize, f64),
}

impl PrefixMax {
    /// Appends a number, at least 0. A NaN counts as infinite.
    pub fn push(&mut self, number: f64) {
        let number = if number.is_nan() { f64::INFINITY } else { number };
        if number > self.max_of_first(self.len) {
            self.last = (self.len, number);
            self.records.push(self.last);
        }
        self.len += 1;
    }

    /// Length of the list.
    #[allow(clippy::len_without_is_empty, reason = "no caller needs it")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Removes all but the first `count` numbers.
    pub fn truncate(&mut self, count: usize) {
        self.records.retain(|&(position, _)| position < count);
        self.last = self.records.last().copied().unwrap_or_default();
        self.len = self.len.min(count);
    }

    /// Largest of the first `count` numbers, or 0 if there are none. O(log records), with about
    /// `ln n` records.
    pub fn max_of_first(&self, count: usize) -> f64 {
        if self.last.0 < count {
            return self.last.1;
        }
        let records = self.records.partition_point(|&(position, _)| position < count);
        self.records[..records].last().map_or(0.0, |&(_, number)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_maxima_follow_pushes_and_truncation() {
        let numbers = [0.0, 2.0, 1.0, 2.0, 5.0, 0.0, 4.0, 7.0];
        let mut largest = PrefixMax::default();
        for number in numbers {
            largest.push(number);
        }
        for count in 0..=numbers.len() {
            let want = numbers[..count].iter().copied().fold(0.0, f64::max);
            assert_eq!(largest.max_of_first(count), want, "of the first {count}");
        }
        assert_eq!(largest.records.len(), 3);
        let mut unknown = largest.clone();
        unknown.push(f64::NAN);
        assert_eq!(unknown.max_of_first(numbers.len() + 1), f64::INFINITY);
        largest.truncate(6);
        largest.push(4.5);
        largest.push(6.0);
        assert_eq!([5, 7, 8].map(|count| largest.max_of_first(count)), [5.0, 5.0, 6.0]);
    }
}
