//! Blocks of one sequence.

use numpy::ndarray::ArrayView1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Dimensions of a pool that block tables refer to.
#[derive(Clone, Copy)]
pub(super) struct PoolSize {
    pub(super) blocks: usize,
    /// Number of rows of a block.
    pub(super) block: usize,
}

/// Blocks of the pool that have the rows of a sequence, and the number of its tokens.
pub(super) struct BlockTable {
    pub(super) blocks: Vec<u32>,
    pub(super) tokens: usize,
    /// Name of the argument with the number of tokens.
    pub(super) length_name: String,
}

impl BlockTable {
    /// Reads the used part of a table, and the number of tokens. The names are those of the two
    /// arguments.
    pub(super) fn new(
        [table_name, length_name]: [String; 2],
        table: ArrayView1<'_, i64>,
        length: i64,
        pool: PoolSize,
    ) -> PyResult<Self> {
        let most = table.len().saturating_mul(pool.block);
        let tokens = usize::try_from(length).ok().filter(|&tokens| tokens <= most);
        let tokens = tokens.ok_or_else(|| {
            let (blocks, block) = (table.len(), pool.block);
            PyValueError::new_err(format!(
                "{length_name}: expected 0 to {most} (a table of {blocks} blocks of {block} rows), \
                 got {length}"
            ))
        })?;
        let used = table.iter().take(tokens.div_ceil(pool.block));
        let parse = |(i, &number): (usize, &i64)| {
            let in_pool = |&block: &u32| (block as usize) < pool.blocks;
            u32::try_from(number).ok().filter(in_pool).ok_or_else(|| {
                let blocks = pool.blocks;
                PyValueError::new_err(format!(
                    "{table_name}[{i}]: expected a block of the pool, which has {blocks}, \
                     got {number}"
                ))
            })
        };
        let blocks = used.enumerate().map(parse).collect::<PyResult<_>>()?;
        Ok(Self { blocks, tokens, length_name })
    }
}
