//! Holding a compiled function to numbers, in tests: how many kernels it may launch, how many bytes it may move.

use kiln_capture::Tensor;
use kiln_ir::tree::Tree;
use kiln_runtime::Executable;

use super::Report;
use crate::{Compiled, Jit, Step};

/// Whatever was compiled and can tell what it became.
///
/// ```
/// use kiln::prelude::*;
/// use kiln::Explain;
/// fn launches(compiled: &impl Explain) -> usize {
///     compiled.report().launches()
/// }
/// let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| scope.input("x", DType::F32, [3]).exp())?;
/// assert_eq!(launches(&kiln::compile(&captured, &Device::cpu())?), 1);
/// # Ok::<(), kiln::Error>(())
/// ```
pub trait Explain {
    /// What it was compiled to.
    fn report(&self) -> Report;
}

impl Explain for Report {
    fn report(&self) -> Report {
        self.clone()
    }
}

/// The plan's name is the report's; there is no cache and no capture to tell of.
impl Explain for Executable {
    fn report(&self) -> Report {
        let mut report = Report { runs: self.statistics().runs, ..Report::default() };
        if let Some(plan) = self.plan() {
            report.name = plan.name.to_string();
            report.describe_plan(plan);
            report.describe_schedules(plan, self.device());
        }
        report
    }
}

impl Explain for Compiled {
    fn report(&self) -> Report {
        Explain::report(&**self)
    }
}

impl<A: Tree<Tensor>, O: Tree<Tensor>, F: Fn(A) -> O> Explain for Jit<A, O, F> {
    fn report(&self) -> Report {
        Jit::report(self)
    }
}

impl<S: Tree<Tensor>, A: Tree<Tensor>, O: Tree<Tensor>, F: Fn(S, A) -> (S, O)> Explain for Step<S, A, O, F> {
    fn report(&self) -> Report {
        Step::report(self)
    }
}

impl<T: Explain + ?Sized> Explain for &T {
    fn report(&self) -> Report {
        T::report(self)
    }
}

/// What the macros count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Launches per call.
    Kernels,
    /// Bytes loaded and stored per call.
    Bytes,
}

/// What a count must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// `<=`
    AtMost(u64),
    /// `<`
    Below(u64),
    /// `==`
    Exactly(u64),
}

impl Quantity {
    /// Panics with the whole report where the count is another one, or where nothing was compiled that could be counted. The macros call it.
    #[track_caller]
    pub fn assert(self, compiled: &impl Explain, holds: Holds) {
        let report = compiled.report();
        let (count, name) = match self {
            Quantity::Kernels => (report.launches() as u64, "kernels"),
            Quantity::Bytes => (report.bytes(), "bytes"),
        };
        // A plan has buffers; without one the count would say nothing.
        assert!(
            !report.memory.is_empty(),
            "`{}` has no {name} to count: it was not called yet, or runs op by op on the reference interpreter",
            report.name
        );
        let (fine, wanted) = match holds {
            Holds::AtMost(most) => (count <= most, format!("at most {most}")),
            Holds::Below(limit) => (count < limit, format!("fewer than {limit}")),
            Holds::Exactly(number) => (count == number, format!("exactly {number}")),
        };
        assert!(fine, "`{}` takes {count} {name} per call, and {wanted} are allowed\n\n{report}", report.name);
    }
}

/// Asserts how many kernels a call launches: `<=`, `<` or `==` a number. Takes a [`Jit`], a [`Step`], an [`Executable`] or a [`Report`];
/// a function must have been called before. Where it fails the message is the whole report, with the reason for every value that was left
/// in memory between kernels.
///
/// ```
/// use kiln::prelude::*;
/// let normalize = jit(&Device::cpu(), |x: Tensor| x.softmax(1));
/// normalize.call(Array::new(&Device::cpu(), [[1.0f32, 2.0], [3.0, 4.0]])?)?;
/// kiln::assert_kernels!(normalize, == 1);
/// kiln::assert_kernels!(normalize.report(), <= 2);
/// # Ok::<(), kiln::Error>(())
/// ```
#[macro_export]
macro_rules! assert_kernels {
    ($compiled:expr, <= $most:expr) => {
        $crate::Quantity::Kernels.assert(&$compiled, $crate::Holds::AtMost($most))
    };
    ($compiled:expr, < $limit:expr) => {
        $crate::Quantity::Kernels.assert(&$compiled, $crate::Holds::Below($limit))
    };
    ($compiled:expr, == $number:expr) => {
        $crate::Quantity::Kernels.assert(&$compiled, $crate::Holds::Exactly($number))
    };
}

/// Asserts how many bytes the kernels of a call load and store, as [`assert_kernels!`] does for their number.
///
/// ```
/// use kiln::prelude::*;
/// let scale = jit(&Device::cpu(), |(x, by): (Tensor, Tensor)| (&x * by).exp() + x);
/// scale.call((Array::new(&Device::cpu(), [1.0f32; 100])?, 2.0))?;
/// // Each element is read once and written once; the factor is read once.
/// kiln::assert_bytes!(scale, == 804);
/// # Ok::<(), kiln::Error>(())
/// ```
#[macro_export]
macro_rules! assert_bytes {
    ($compiled:expr, <= $most:expr) => {
        $crate::Quantity::Bytes.assert(&$compiled, $crate::Holds::AtMost($most))
    };
    ($compiled:expr, < $limit:expr) => {
        $crate::Quantity::Bytes.assert(&$compiled, $crate::Holds::Below($limit))
    };
    ($compiled:expr, == $number:expr) => {
        $crate::Quantity::Bytes.assert(&$compiled, $crate::Holds::Exactly($number))
    };
}
