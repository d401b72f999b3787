//! Arrays in files: numpy's `.npy`.

mod npy;

pub use npy::{read_npy, write_npy};
