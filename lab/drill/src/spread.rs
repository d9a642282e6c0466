//! The mean and the range of a few values.

use serde::Serialize;

/// Several values of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The mean of the values.
    pub mean: f64,
    /// The smallest of the values.
    pub min: f64,
    /// The largest of the values.
    pub max: f64,
    /// Their standard deviation, of a sample; 0 for a single one.
    pub deviation: f64,
}

impl Spread {
    /// Of these values; all zero without any.
    pub fn new(values: &[f64]) -> Self {
        let Some((min, max)) = values.iter().fold(None, |range: Option<(f64, f64)>, value| {
            Some(range.map_or((*value, *value), |(min, max)| (min.min(*value), max.max(*value))))
        }) else {
            return Self::default();
        };
        #[expect(clippy::cast_precision_loss, reason = "values of a few runs")]
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = if values.len() > 1 {
            (squares / (count - 1.0)).sqrt()
        } else {
            0.0
        };
        Self {
            mean,
            min,
            max,
            deviation,
        }
    }
}
