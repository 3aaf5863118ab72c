//! When everything is read in place of what a pipeline chose, as the command line names it.

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FallBack {
    /// Never.
    Never,
    /// Where a list, and looking at its sample, count for more rows than there are.
    ByCount,
    /// There, and wherever that was faster in the steps before: what is read depends on the machine then, and a second run
    /// may read otherwise.
    ByClock,
}

impl From<FallBack> for vattention::FallBack {
    fn from(fall_back: FallBack) -> Self {
        match fall_back {
            FallBack::Never => Self::Never,
            FallBack::ByCount => Self::ByCount,
            FallBack::ByClock => Self::ByClock,
        }
    }
}
