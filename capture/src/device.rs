//! `CaptureDevice`: where programs are recorded for a backend.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use kiln_ir::tree::Tree;
use kiln_ir::{Backend, Code, Diagnostic, Diagnostics, Loc, Result, Value};

use crate::session::{Failing, Lists, Manner, Session};
use crate::source::refuse_all;
use crate::{CapturedGraph, Scope, Tensor, frame};

/// A device on which ops are recorded, not run. Clones are the same device.
///
/// ```
/// use kiln_capture::CaptureDevice;
/// use kiln_ir::{Backend, DType};
///
/// let device = CaptureDevice::new(Backend::Cpu);
/// let captured = device.capture_scope(|scope| {
///     let x = scope.input("x", DType::F32, [2, 3]);
///     (&x * 2.0).sum(1)
/// })?;
/// assert_eq!(captured.graph.ty(captured.graph.outputs[0].value).to_string(), "f32[2] @cpu");
/// # Ok::<(), kiln_ir::Diagnostics>(())
/// ```
#[derive(Clone, Debug)]
pub struct CaptureDevice {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    backend: Backend,
    slot: Mutex<Slot>,
}

#[derive(Debug)]
struct Slot {
    active: Option<Arc<Session>>,
    manner: Manner,
}

impl CaptureDevice {
    /// A device that records for a backend. Each call makes a device of its own.
    pub fn new(backend: Backend) -> CaptureDevice {
        let manner = Manner { failing: Failing::Collect, lists: Lists::Promote, seed: None };
        let slot = Slot { active: None, manner };
        CaptureDevice { shared: Arc::new(Shared { backend, slot: Mutex::new(slot) }) }
    }

    /// The backend that tensors are on unless told otherwise.
    pub fn backend(&self) -> Backend {
        self.shared.backend
    }

    /// Makes an op that goes wrong in a scope opened later panic at its line, with the full text, instead of collecting the mistake.
    pub fn fail_fast(&self) {
        self.slot().manner.failing = Failing::Fast;
    }

    /// Makes it a mistake (K0506), in scopes opened later, to join in one list tensors that are tracked for gradients and tensors that are
    /// not. By default the others are promoted: taken as they are, and not differentiated.
    ///
    /// ```
    /// use kiln_capture::{CaptureDevice, Tensor, concat};
    /// use kiln_ir::{Backend, Code, DType};
    /// let device = CaptureDevice::new(Backend::Cpu);
    /// device.strict();
    /// let errors = device.capture_scope(|scope| {
    ///     let x = scope.input("x", DType::F32, [2]).require_grad();
    ///     let y = scope.input("y", DType::F32, [2]);
    ///     let promoted = concat(&[&x, &Tensor::from_inner(&y)], 0);
    ///     (promoted, concat(&[&x, &y], 0))
    /// });
    /// assert_eq!(errors.unwrap_err().codes(), [Code::K0506]);
    /// ```
    pub fn strict(&self) {
        self.slot().manner.lists = Lists::Strict;
    }

    /// Sets the key of [`Scope::key`] in scopes opened later.
    ///
    /// # Errors
    ///
    /// K0103 while a scope is open: numbers drawn before and after would have different keys.
    #[track_caller]
    pub fn try_seed(&self, seed: u64) -> Result<()> {
        let loc = frame::here();
        let mut slot = self.slot();
        match &slot.active {
            None => {
                slot.manner.seed = Some(seed);
                Ok(())
            }
            Some(session) => Err(Diagnostic::new(Code::K0103, "seeding is not supported during graph capture")
                .at(loc)
                .note("scope", "still open,", "opened", session.opened)
                .help("pass a `Key` and draw from it, or seed before the scope is opened")
                .into()),
        }
    }

    /// [`CaptureDevice::try_seed`] whose K0103 is collected by the scope that is open.
    #[track_caller]
    pub fn seed(&self, seed: u64) {
        if let Err(errors) = self.try_seed(seed) {
            let active = self.slot().active.clone();
            match active {
                Some(session) => errors.into_iter().for_each(|error| session.fail(error)),
                None => refuse_all(&errors),
            }
        }
    }

    /// The scope that is open on this device.
    ///
    /// # Panics
    ///
    /// With K0101 at the caller's line where none is.
    #[track_caller]
    pub fn scope(&self) -> Scope {
        match self.try_scope() {
            Ok(scope) => scope,
            Err(errors) => refuse_all(&errors),
        }
    }

    /// The scope that is open on this device, or K0101.
    #[track_caller]
    pub fn try_scope(&self) -> Result<Scope> {
        match &self.slot().active {
            Some(session) => Ok(Scope::of(session.clone())),
            None => Err(outside().into()),
        }
    }

    /// Records what `body` does. The graph's outputs are the leaves of what it returns, named as in the tree (a lone tensor is `out`), after
    /// those marked by [`Scope::output`].
    ///
    /// # Errors
    ///
    /// All mistakes made in the scope, in order; K0104 where a scope is open on this device already.
    #[track_caller]
    pub fn capture_scope<R: Tree<Tensor>>(&self, body: impl FnOnce(&Scope) -> R) -> Result<CapturedGraph> {
        let open = self.begin("main")?;
        let result = open.run(body)?;
        open.finish(&result)
    }

    /// Opens a scope by hand, under a name for its graph: what [`CaptureDevice::capture_scope`] is made of. It closes when it is finished or
    /// dropped.
    ///
    /// # Errors
    ///
    /// K0104 where a scope is open on this device already.
    #[track_caller]
    pub fn begin(&self, name: &str) -> Result<OpenScope> {
        self.begin_at(name, frame::here())
    }

    /// [`CaptureDevice::begin`] for someone else, whose line it is.
    ///
    /// # Errors
    ///
    /// K0104 where a scope is open on this device already.
    pub fn begin_at(&self, name: &str, loc: Loc) -> Result<OpenScope> {
        let mut slot = self.slot();
        if let Some(active) = &slot.active {
            return Err(Diagnostic::new(Code::K0104, "a capture scope is already active on this device")
                .at(loc)
                .note("scope", "still open,", "opened", active.opened)
                .help("a capture inside a capture needs a device of its own: `CaptureDevice::new(..)`")
                .into());
        }
        let session = Session::new(name, self.backend(), slot.manner, loc);
        slot.active = Some(session.clone());
        drop(slot);
        session.enter();
        Ok(OpenScope { scope: Scope::of(session), device: self.clone(), on_this_thread: std::marker::PhantomData })
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Slot> {
        self.shared.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// K0101.
#[track_caller]
pub(crate) fn outside() -> Diagnostic {
    Diagnostic::new(Code::K0101, "capture tensor operations must run inside CaptureDevice::capture_scope")
        .at(frame::here())
        .help("open one: `device.capture_scope(|scope| ..)`; `jit` and `step` do it for you")
}

/// A scope opened by hand. Dropping it closes the scope; what was recorded is lost.
///
/// ```
/// use kiln_capture::CaptureDevice;
/// use kiln_ir::{Backend, DType};
///
/// let open = CaptureDevice::new(Backend::Cpu).begin("double")?;
/// let x = open.input("x", DType::F32, [3]);
/// let y = open.run(|_| &x + &x)?;
/// let captured = open.finish(&y)?;
/// assert_eq!(&*captured.graph.name, "double");
/// # Ok::<(), kiln_ir::Diagnostics>(())
/// ```
#[derive(Debug)]
pub struct OpenScope {
    scope: Scope,
    device: CaptureDevice,
    /// The scope is the innermost one of the thread that opened it, and is closed there.
    on_this_thread: std::marker::PhantomData<*const ()>,
}

impl OpenScope {
    /// Runs a part of the recording. A question that a poisoned ticket cannot answer (its shape, say) ends `body` early.
    ///
    /// # Errors
    ///
    /// The mistakes so far, where `body` was ended by one. Other mistakes wait for [`OpenScope::finish`].
    pub fn run<R>(&self, body: impl FnOnce(&Scope) -> R) -> Result<R> {
        match catch_unwind(AssertUnwindSafe(|| body(&self.scope))) {
            Ok(result) => Ok(result),
            Err(payload) => match self.scope.session().diagnostics() {
                Some(diagnostics) if self.scope.session().stopped_by(&*payload) => Err(diagnostics),
                _ => resume_unwind(payload),
            },
        }
    }

    /// Closes the scope. The outputs are those marked by [`Scope::output`], then the leaves of `results`.
    ///
    /// # Errors
    ///
    /// All mistakes made in the scope, in order.
    #[track_caller]
    pub fn finish<R: Tree<Tensor>>(self, results: &R) -> Result<CapturedGraph> {
        let names = results.names().into_iter().map(|name| if name.is_empty() { "out".to_owned() } else { name });
        let outputs: Vec<(String, &Tensor)> = names.zip(results.leaves()).collect();
        self.finish_with(&outputs)
    }

    /// [`OpenScope::finish`] with named tensors.
    ///
    /// # Errors
    ///
    /// All mistakes made in the scope, in order; K0107 where two outputs have one name.
    #[track_caller]
    pub fn finish_with(self, outputs: &[(String, &Tensor)]) -> Result<CapturedGraph> {
        for (name, tensor) in outputs {
            self.scope.output(name, tensor);
        }
        let state = self.scope.session().close();
        match Diagnostics::from_list(state.diagnostics) {
            Some(diagnostics) => Err(diagnostics),
            None => {
                let outputs: Vec<(String, Value)> = state.outputs;
                let graph = state.builder.finish(outputs).map_err(|error| match error.loc {
                    Loc::Unknown => error.at(self.scope.session().opened),
                    Loc::Caller(_) | Loc::Text { .. } => error,
                })?;
                Ok(CapturedGraph::new(graph, state.taps, state.notices, state.customs))
            }
        }
    }
}

impl Deref for OpenScope {
    type Target = Scope;

    fn deref(&self) -> &Scope {
        &self.scope
    }
}

impl Drop for OpenScope {
    fn drop(&mut self) {
        self.scope.session().close();
        self.device.slot().active = None;
    }
}
