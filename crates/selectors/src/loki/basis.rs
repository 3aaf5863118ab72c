//! File of principal components. Reading loads only those of one KV head.

use std::path::Path;

use vattention_core::{Shape, Site, Tokens};

use vattention_index::tensor_file::{TensorFile, mismatch};

const FORMAT: &str = "vattention-loki/1";

/// Tolerance for products of components, compared with those of an orthonormal basis. Rounding to
/// bf16 changes them by 2^−8 at most, to f16 by 2^−10.
const TOLERANCE: f32 = 5e-3;

/// Opens a file and checks its format.
pub(super) fn open(path: &Path) -> Result<TensorFile, String> {
    TensorFile::open(path, FORMAT)
}

/// Reads the first `rank` components at `site`, `[rank, head_dim]`. Errors name the file, and the
/// tensor if they concern one.
pub(super) fn read(path: &Path, site: &Site, rank: usize) -> Result<Vec<f32>, String> {
    let file = open(path)?;
    let read = || -> Result<Vec<f32>, String> {
        let Shape { kv_heads, head_dim: dim, .. } = site.shape;
        let name = format!("layers.{}.variance", site.layer);
        check_falling(&name, &read_head(&file, &name, site, &[kv_heads, dim])?)?;
        let name = format!("layers.{}.basis", site.layer);
        let mut basis = read_head(&file, &name, site, &[kv_heads, dim, dim])?;
        basis.truncate(rank * dim);
        check_orthonormal(&name, &basis, rank, dim)?;
        Ok(basis)
    };
    read().map_err(|reason| file.named(&reason))
}

/// Reads the numbers of the KV head at `site` in a tensor, and checks its shape.
fn read_head(
    file: &TensorFile,
    name: &str,
    site: &Site,
    shape: &[usize],
) -> Result<Vec<f32>, String> {
    let info = file.info(name)?;
    if info.shape != shape {
        return Err(mismatch(name, info, &format!("{shape:?}, KV heads first")));
    }
    file.row(name, site.kv_head)
}

fn check_falling(name: &str, variance: &[f32]) -> Result<(), String> {
    match variance.windows(2).find(|pair| pair[0] < pair[1]) {
        Some(pair) => Err(format!("`{name}` has {} before {}: expected falling", pair[0], pair[1])),
        None => Ok(()),
    }
}

fn check_orthonormal(name: &str, basis: &[f32], rank: usize, dim: usize) -> Result<(), String> {
    let rows = Tokens::new(basis, rank, dim);
    let mut products = vec![0.0; rank];
    for (i, row) in basis.chunks_exact(dim).enumerate() {
        rows.dots(0..i + 1, row, &mut products[..=i]);
        for (j, &product) in products[..=i].iter().enumerate() {
            let expected = if i == j { 1.0 } else { 0.0 };
            if (product - expected).abs() > TOLERANCE {
                return Err(format!(
                    "`{name}`: the product of components {j} and {i} is {product}: \
                     expected {expected}"
                ));
            }
        }
    }
    Ok(())
}
