//! PLACEHOLDER
use super::Function;
pub(super) const TABLE: &[Function] = &[];
