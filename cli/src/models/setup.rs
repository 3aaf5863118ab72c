//! Which part of a prompt a pipeline reads, as the command line names it.

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Setup {
    A,
    B,
}

impl Setup {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }
}

impl From<Setup> for vattention_evaluate::Setup {
    fn from(setup: Setup) -> Self {
        match setup {
            Setup::A => Self::A,
            Setup::B => Self::B,
        }
    }
}
