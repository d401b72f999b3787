//! Random numbers made on the host: initial weights and shuffles, the same on every machine.
//!
//! Numbers inside a compiled function come from a [`Key`]; both use Philox 4x32-10, and neither has global state.

use kiln_capture::Key;
use kiln_ir::{Result, philox};
use kiln_runtime::{Array, Device};

/// A source of random numbers on the host, which starts the same for the same seed.
///
/// ```
/// use kiln::random::Random;
/// let mut random = Random::new(7);
/// let first = random.uniform();
/// assert!((0.0..1.0).contains(&first));
/// assert_eq!(Random::new(7).uniform(), first);
/// ```
#[derive(Clone, Debug)]
pub struct Random {
    key: [u32; 2],
    drawn: u64,
}

/// The stream that host draws take from a key: the last, which no capture reaches.
const STREAM: u32 = u32::MAX;

impl Random {
    /// A source from a seed.
    pub fn new(seed: u64) -> Random {
        Random { key: [seed as u32, (seed >> 32) as u32], drawn: 0 }
    }

    /// 32 random bits.
    pub fn bits(&mut self) -> u32 {
        let bits = philox::element(self.key, STREAM, self.drawn);
        self.drawn += 1;
        bits
    }

    /// A number from 0 up to but not including 1, in steps of 2^-24.
    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 8) as f32 * (-24f32).exp2()
    }

    /// A number of the standard normal distribution.
    pub fn normal(&mut self) -> f32 {
        let radius = (f64::from(self.bits()) + 1.0) * (-32f64).exp2();
        let angle = f64::from(self.uniform()) * std::f64::consts::TAU;
        ((-2.0 * radius.ln()).sqrt() * angle.cos()) as f32
    }

    /// A whole number from 0 up to but not including `end`, which must not be 0.
    pub fn below(&mut self, end: u32) -> u32 {
        // The high half of the product is uniform but for a bias below 2^-32 * end.
        ((u64::from(self.bits()) * u64::from(end)) >> 32) as u32
    }

    /// Puts a slice in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u32 + 1) as usize);
        }
    }

    /// A key for draws inside a compiled function.
    pub fn key(&mut self, device: &Device) -> Result<Key<Array>> {
        let words = [self.bits(), self.bits()];
        Ok(Key::from_bits(Array::new(device, words)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_every_item_and_changes_the_order() {
        let mut items: Vec<u32> = (0..1000).collect();
        Random::new(1).shuffle(&mut items);
        assert_ne!(items, (0..1000).collect::<Vec<u32>>());
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<u32>>());
    }

    #[test]
    fn normal_numbers_have_mean_0_and_variance_1() {
        let mut random = Random::new(3);
        let numbers: Vec<f64> = (0..20_000).map(|_| f64::from(random.normal())).collect();
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / numbers.len() as f64;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.04, "{mean} {variance}");
    }
}
