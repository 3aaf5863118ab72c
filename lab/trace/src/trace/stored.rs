//! Rows of a layer as a cache stores them.

use half::{bf16, f16};
use ndarray::{Array3, Axis};
use vattention_core::{Storage, step::round_row};

use super::TraceLayer;

impl TraceLayer {
    /// Returns the layer with keys and values rounded to a number type; the error is the first
    /// number that is too large for the type.
    pub(super) fn rounded_to(&self, storage: Storage) -> Result<Self, f32> {
        let mut rounded = self.clone();
        for array in [&mut rounded.keys, &mut rounded.values] {
            round(array, storage)?;
        }
        Ok(rounded)
    }
}

fn round(array: &mut Array3<f32>, storage: Storage) -> Result<(), f32> {
    match storage {
        Storage::F32 => {}
        Storage::F16 => {
            let large = array.iter().find(|x| x.abs() > f16::MAX.to_f32());
            large.map_or(Ok(()), |&x| Err(x))?;
            array.mapv_inplace(|x| f16::from_f32(x).to_f32());
        }
        Storage::Bf16 => array.mapv_inplace(|x| bf16::from_f32(x).to_f32()),
        Storage::Q8 => {
            let mut integers = vec![0; array.dim().2];
            for mut row in array.lanes_mut(Axis(2)) {
                let scale = round_row(&row.to_vec(), &mut integers);
                row.iter_mut().zip(&integers).for_each(|(x, &i)| *x = f32::from(i) * scale);
            }
        }
    }
    Ok(())
}
