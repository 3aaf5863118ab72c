//! The mean of differences between what two variants did in the same cases.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// A mean difference, and how far the true one may be from it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedDifference {
    /// The mean over the cases.
    pub mean: f64,
    /// Half of its 95 % interval, by Student's distribution: cases are taken for independent, their
    /// differences for normal.
    pub margin: f64,
}

impl PairedDifference {
    /// Of at least two differences, else `None`.
    pub fn new(differences: &[f64]) -> Option<Self> {
        let n = differences.len();
        if n < 2 {
            return None;
        }
        let mean = differences.iter().sum::<f64>() / n as f64;
        let squares: f64 = differences.iter().map(|x| (x - mean).powi(2)).sum();
        let error = (squares / (n - 1) as f64 / n as f64).sqrt();
        let student = StudentsT::new(0.0, 1.0, (n - 1) as f64).ok()?;
        Some(Self { mean, margin: error * student.inverse_cdf(0.975) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_students() {
        assert_eq!(PairedDifference::new(&[]), None);
        assert_eq!(PairedDifference::new(&[1.0]), None);
        let same = PairedDifference::new(&[0.5; 4]).unwrap();
        assert_eq!(same, PairedDifference { mean: 0.5, margin: 0.0 });
        // Of 0, 1, 2, 3: a deviation of 1.29099, and 3.18245 for three degrees of freedom.
        let found = PairedDifference::new(&[0.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!(found.mean, 1.5);
        assert!((found.margin - 2.05426).abs() < 1e-4, "{found:?}");
    }
}
