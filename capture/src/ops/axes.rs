//! Which axes an op works on, as users write them.

use std::ops::RangeFull;

use kiln_ir::{Axes, Diagnostic, normalize_axis};

/// Axes as a user gives them: one (`1`, `-1` for the last), several (`[0, -1]`), or all (`..`).
///
/// ```
/// use kiln_capture::IntoAxes;
/// assert_eq!(&*(-1).axes(3)?, &[2]);
/// assert_eq!(&*[0, -1].axes(3)?, &[0, 2]);
/// assert_eq!(&*(..).axes(3)?, &[0, 1, 2]);
/// # Ok::<(), kiln_ir::Diagnostic>(())
/// ```
pub trait IntoAxes {
    /// The axes of a tensor of this rank, ascending. K0304 names one that is out of range or given twice.
    fn axes(&self, rank: usize) -> Result<Axes, Diagnostic>;
}

impl IntoAxes for RangeFull {
    fn axes(&self, rank: usize) -> Result<Axes, Diagnostic> {
        Ok(Axes::all(rank))
    }
}

impl IntoAxes for Axes {
    fn axes(&self, rank: usize) -> Result<Axes, Diagnostic> {
        several(&self.iter().map(|&axis| axis as isize).collect::<Vec<_>>(), rank)
    }
}

fn several(axes: &[isize], rank: usize) -> Result<Axes, Diagnostic> {
    Axes::new(axes, rank)
}

macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl IntoAxes for $integer {
            fn axes(&self, rank: usize) -> Result<Axes, Diagnostic> {
                // An axis beyond isize is out of range for every rank, and stays so.
                normalize_axis(isize::try_from(*self).unwrap_or(isize::MAX), rank).map(Axes::one)
            }
        }

        impl<const N: usize> IntoAxes for [$integer; N] {
            fn axes(&self, rank: usize) -> Result<Axes, Diagnostic> {
                self.as_slice().axes(rank)
            }
        }

        impl IntoAxes for &[$integer] {
            fn axes(&self, rank: usize) -> Result<Axes, Diagnostic> {
                let axes: Vec<isize> = self.iter().map(|&axis| isize::try_from(axis).unwrap_or(isize::MAX)).collect();
                several(&axes, rank)
            }
        }
    )*};
}

integers! { i32 isize usize i64 }
