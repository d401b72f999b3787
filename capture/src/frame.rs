//! Composites as the user sees them: one call on one line.
//!
//! While the body of a composite runs on a thread, every op it records carries the user's line and every mistake in it the composite's
//! name. The outermost composite counts: that is the one the user wrote. What is recorded inside are ordinary ops; a frame leaves no
//! trace in the graph.

use std::cell::RefCell;

use kiln_ir::{Diagnostic, Loc};

use crate::Tensor;
use crate::session::{renamed, session_of};
use crate::source::refuse;

struct Frame {
    name: &'static str,
    loc: Loc,
    /// What to panic with once the frame ends, at the user's line.
    panic: Option<Diagnostic>,
}

thread_local! {
    static FRAME: RefCell<Option<Frame>> = const { RefCell::new(None) };
}

/// Runs the body of a composite of this name on `operands` (all it has, parameters included).
///
/// The body may use the operands' shapes freely: where one of them is poisoned, the result is, and the body does not run.
///
/// ```
/// use kiln_capture::{composite, CaptureDevice, Tensor};
/// use kiln_ir::{Backend, DType};
///
/// #[track_caller]
/// fn squared_norm(x: &Tensor) -> Tensor {
///     composite("squared_norm", &[x], || (x * x).sum(..))
/// }
///
/// let device = CaptureDevice::new(Backend::Cpu);
/// let errors = device.capture_scope(|scope| squared_norm(&scope.input("x", DType::Bool, [3]))).unwrap_err();
/// assert_eq!(errors.first().op.as_deref(), Some("squared_norm"));
/// ```
#[track_caller]
pub fn composite(name: &'static str, operands: &[&Tensor], body: impl FnOnce() -> Tensor) -> Tensor {
    let loc = here();
    let outermost = FRAME.with_borrow_mut(|frame| {
        let outermost = frame.is_none();
        if outermost {
            *frame = Some(Frame { name, loc, panic: None });
        }
        outermost
    });
    // Made only where it is kept: it ends the frame when it goes.
    let exit = outermost.then(|| Exit);
    let result = match session_of(operands, loc) {
        Ok(session) if operands.iter().any(|operand| operand.is_poisoned()) => Tensor::poison(session, loc),
        Ok(_) => body(),
        Err(poison) => poison,
    };
    let pending = exit.as_ref().and_then(|_| FRAME.with_borrow_mut(|frame| frame.as_mut()?.panic.take()));
    drop(exit);
    if let Some(diagnostic) = pending {
        refuse(&diagnostic);
    }
    result
}

/// Ends the outermost frame, also where its body unwinds.
struct Exit;

impl Drop for Exit {
    fn drop(&mut self) {
        FRAME.with_borrow_mut(|frame| *frame = None);
    }
}

/// The user's line: that of the outermost composite, or the caller's.
#[track_caller]
pub(crate) fn here() -> Loc {
    let caller = Loc::caller();
    FRAME.with_borrow(|frame| frame.as_ref().map_or(caller, |frame| frame.loc))
}

/// The diagnostic at the user's line, and with the name of the composite the user called.
pub(crate) fn named(mut diagnostic: Diagnostic, loc: Loc) -> Diagnostic {
    if diagnostic.loc.is_unknown() {
        diagnostic.loc = loc;
    }
    FRAME.with_borrow(|frame| match frame {
        Some(frame) => renamed(diagnostic, frame.name),
        None => diagnostic,
    })
}

/// Has the panic raised where the frame ends, so that it points at the user's line. False where there is no frame.
pub(crate) fn defer_panic(diagnostic: &Diagnostic) -> bool {
    FRAME.with_borrow_mut(|frame| match frame {
        Some(frame) => {
            frame.panic.get_or_insert_with(|| diagnostic.clone());
            true
        }
        None => false,
    })
}
