//! Arrays in files: numpy's `.npy`, and whole trees as safetensors.

mod checkpoint;
mod npy;

pub use checkpoint::{load, save};
pub use npy::{read_npy, write_npy};
