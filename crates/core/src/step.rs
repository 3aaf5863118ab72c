//! One decode step of one KV head: its tokens, the rows that read them, and their picks.

mod exponentials;
pub(crate) mod picks;
mod prefetch;
mod prefix_max;
pub(crate) mod row;
mod rows_view;
mod scratch;
mod shape;
mod soft_cap;
mod softmax;
mod softmax_form;
pub(crate) mod stream;
mod threads;
mod token_class;
mod tokens;
pub(crate) mod top;

pub use exponentials::{exponentials, largest, sum, take_logarithms};
pub use picks::Picks;
pub use prefetch::{prefetch, prefetch_after};
pub use prefix_max::PrefixMax;
pub use row::{Row, Score, Step};
pub use rows_view::RowsView;
pub use scratch::{BufferPool, Pooled, Scratch};
pub use shape::{Shape, Site};
pub use soft_cap::{CAP_ROUNDING, TANH, TANH_LIMIT, cap_logits};
pub use softmax::Softmax;
pub use softmax_form::SoftmaxForm;
pub use stream::Stream;
pub use threads::{StepThreads, TaskRunner};
pub use token_class::TokenClass;
pub use tokens::{
    BlockLayout, Blocks, Element, MAX_MAGNITUDE, PageLayout, RowScales, SCALE_BYTES, StoredRows,
    Tokens, largest_query_integer, round_row,
};
pub use top::Rank;
