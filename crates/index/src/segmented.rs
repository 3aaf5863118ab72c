//! Growing lists whose older parts several indexes share.
//!
//! A list consists of a few long parts, which never change and which clones share, and of a part of
//! its own at the end, to which items are appended. A list that was never
//! [shared](Segmented::share) has its own part only, so a scan of it is one loop over contiguous
//! memory.

use std::ops::Range;
use std::sync::Arc;

/// Consecutive items of an index, in memory of their own.
pub trait Segment: Clone {
    /// Creates a segment of the same form without items.
    #[must_use]
    fn without_items(&self) -> Self;

    /// Number of items.
    fn items(&self) -> usize;

    /// Removes all but the first `items` items, of which there are more.
    fn keep_first(&mut self, items: usize);

    /// Size of the items in bytes.
    fn byte_size(&self) -> usize;
}

/// Columns of equal length, `[columns][items]`, at least one.
impl<T: Clone> Segment for Vec<Vec<T>> {
    fn without_items(&self) -> Self {
        vec![Vec::new(); self.len()]
    }

    fn items(&self) -> usize {
        self[0].len()
    }

    fn keep_first(&mut self, items: usize) {
        for column in self {
            column.truncate(items);
        }
    }

    fn byte_size(&self) -> usize {
        self.iter().map(|column| size_of_val(&column[..])).sum()
    }
}

/// A growing list: shared segments, and then a segment of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Segmented<S> {
    shared: Vec<SharedSegment<S>>,
    own: S,
}

/// The first items of a segment that several lists use.
#[derive(Clone, Debug, PartialEq)]
struct SharedSegment<S> {
    segment: Arc<S>,
    /// Number of items that belong to the list, at least 1.
    used: usize,
}

impl<S: Segment> Segmented<S> {
    /// Creates a list of the items of `own`, none of which is shared.
    pub fn new(own: S) -> Self {
        Self { shared: Vec::new(), own }
    }

    /// Number of items.
    pub fn items(&self) -> usize {
        self.shared_items() + self.own.items()
    }

    /// Number of items in shared segments.
    fn shared_items(&self) -> usize {
        self.shared.iter().map(|shared| shared.used).sum()
    }

    /// Segment of this list alone, to which new items are appended.
    pub fn own_mut(&mut self) -> &mut S {
        &mut self.own
    }

    /// Moves the list's own items to a segment that later clones share. O(1).
    pub fn share(&mut self) {
        let used = self.own.items();
        if used > 0 {
            let empty = self.own.without_items();
            let segment = Arc::new(std::mem::replace(&mut self.own, empty));
            self.shared.push(SharedSegment { segment, used });
        }
    }

    /// Removes all but the first `items` items. Other lists keep theirs.
    pub fn truncate(&mut self, items: usize) {
        let own = items.saturating_sub(self.shared_items());
        if own < self.own.items() {
            self.own.keep_first(own);
        }
        let mut left = items;
        for shared in &mut self.shared {
            shared.used = shared.used.min(left);
            left -= shared.used;
        }
        self.shared.retain(|shared| shared.used > 0);
    }

    /// Segments of the first `items` items in order, each with the range of the list that it has.
    /// A segment may contain further items, which do not belong to the list.
    pub fn segments(&self, items: usize) -> impl Iterator<Item = (Range<usize>, &S)> {
        let shared = self.shared.iter().map(|shared| (shared.used, &*shared.segment));
        let mut end = 0;
        let place = move |(used, segment): (usize, _)| {
            let start = end.min(items);
            end += used;
            (start..end.min(items), segment)
        };
        let own = (self.own.items(), &self.own);
        shared.chain([own]).map(place).filter(|(range, _)| !range.is_empty())
    }

    /// Segment that has an item, with the range of the list that it has.
    ///
    /// # Panics
    /// If there is no such item.
    pub fn segment_of(&self, item: usize) -> (Range<usize>, &S) {
        let segment = self.segments(item + 1).last();
        segment.filter(|(range, _)| range.end > item).expect("the list has the item")
    }

    /// Size in bytes. Each of `n` lists that share a segment counts an `n`-th of it.
    pub fn bytes(&self) -> usize {
        let part = |shared: &SharedSegment<S>| {
            shared.segment.byte_size() / Arc::strong_count(&shared.segment)
        };
        self.shared.iter().map(part).sum::<usize>() + self.own.byte_size()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type List = Segmented<Vec<Vec<u32>>>;

    fn push(list: &mut List, number: u32) {
        list.own_mut()[0].push(number);
    }

    /// First `items` numbers of a list, read segment by segment.
    fn read(list: &List, items: usize) -> Vec<u32> {
        let mut numbers = vec![u32::MAX; items.min(list.items())];
        for (range, segment) in list.segments(items) {
            let len = range.len();
            numbers[range].copy_from_slice(&segment[0][..len]);
        }
        numbers
    }

    /// A change of one of two lists.
    #[derive(Clone, Debug)]
    enum Change {
        Push(bool),
        Share(bool),
        Truncate(bool, usize),
        /// Replaces the other list by a clone of this one.
        Clone(bool),
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let truncate = |(list, items)| Change::Truncate(list, items);
        let change = prop_oneof![
            8 => any::<bool>().prop_map(Change::Push),
            2 => any::<bool>().prop_map(Change::Share),
            1 => (any::<bool>(), 0_usize..40).prop_map(truncate),
            1 => any::<bool>().prop_map(Change::Clone),
        ];
        prop::collection::vec(change, 0..150)
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, ..ProptestConfig::default()
        })]
        /// Two lists that share segments, grow and shrink have the numbers of plain lists.
        #[test]
        fn lists_that_share_segments_are_independent(changes in changes()) {
            let mut lists = [(); 2].map(|()| List::new(vec![Vec::new()]));
            let mut plain = [Vec::new(), Vec::new()];
            for (number, change) in (0_u32..).zip(changes) {
                match change {
                    Change::Push(which) => {
                        push(&mut lists[usize::from(which)], number);
                        plain[usize::from(which)].push(number);
                    }
                    Change::Share(which) => lists[usize::from(which)].share(),
                    Change::Truncate(which, items) => {
                        lists[usize::from(which)].truncate(items);
                        plain[usize::from(which)].truncate(items);
                    }
                    Change::Clone(which) => {
                        lists[usize::from(!which)] = lists[usize::from(which)].clone();
                        plain[usize::from(!which)] = plain[usize::from(which)].clone();
                    }
                }
                for (list, plain) in lists.iter().zip(&plain) {
                    prop_assert_eq!(list.items(), plain.len());
                    prop_assert_eq!(&read(list, plain.len()), plain);
                    let half = plain.len() / 2;
                    prop_assert_eq!(&read(list, half), &plain[..half]);
                }
            }
        }
    }

    #[test]
    fn shared_bytes_are_counted_once() {
        let mut list = List::new(vec![Vec::new()]);
        (0..100).for_each(|number| push(&mut list, number));
        assert_eq!(list.bytes(), 400);
        list.share();
        assert_eq!(list.bytes(), 400);
        let mut clone = list.clone();
        clone.truncate(30);
        push(&mut clone, 7);
        assert_eq!([list.bytes(), clone.bytes()], [200, 204]);
        drop(list);
        assert_eq!(clone.bytes(), 404);
    }
}
