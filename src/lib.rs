//! placeholder

pub mod files;
pub mod graph_file;
