//! Indexes of a KV head's keys that selectors and samplers share: labels, 2-bit codes, hash tables,
//! clusters and columns. [`Segmented`] is memory that indexes of several sequences share, and
//! [`tensor_file`] reads learned parameters from files.

mod bounded;
pub mod clusters;
mod columns;
mod hash_tables;
mod labels;
mod rotated_codes;
mod rotation;
mod segmented;
pub mod tensor_file;

pub use bounded::Bounded;
pub use columns::Columns;
pub use hash_tables::{
    BLOCK, Collisions, HashTableIndex, HashTables, Lsh, Rule, TableBits, Transform,
};
pub use labels::{LabelBits, Labels, Rounding, Term};
pub use rotated_codes::{CodeDeviations, CodeScan, PART, RotatedCodes};
pub use rotation::Rotation;
pub use segmented::{Segment, Segmented};
