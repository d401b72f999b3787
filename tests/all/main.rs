//! Everything that needs several crates of the project at once: one binary, one module a subject.

#![allow(clippy::unwrap_used)]

mod random;
mod text;
