//! Orders in which threads and blocks run.

/// An order in which threads, or blocks, take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadOrder {
    /// From the first to the last.
    #[default]
    Ascending,
    /// From the last to the first.
    Descending,
    /// A random order, drawn again at each barrier.
    Random(u32),
}

impl ThreadOrder {
    /// Number of the order in `emulation.h`.
    pub(crate) fn code(self) -> u64 {
        match self {
            Self::Ascending => 0,
            Self::Descending => 1,
            Self::Random(seed) => 2 + u64::from(seed),
        }
    }
}

/// The order of the threads of a block between barriers, and of the blocks of a grid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadSchedule {
    /// Order of threads.
    pub threads: ThreadOrder,
    /// Order of blocks, which run one after the other.
    pub blocks: ThreadOrder,
}

impl ThreadSchedule {
    /// Schedules that together reveal races and missing barriers.
    pub fn several() -> [Self; 4] {
        use ThreadOrder::{Ascending, Descending, Random};
        [
            (Ascending, Ascending),
            (Descending, Descending),
            (Random(1), Descending),
            (Random(2), Random(3)),
        ]
        .map(|(threads, blocks)| Self { threads, blocks })
    }
}
