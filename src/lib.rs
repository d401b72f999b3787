//! placeholder

pub mod graph_file;
