//! The native CPU backend.

pub mod vmath;
