//! `Scope`: where inputs and constants of a capture are declared and outputs marked.

use std::sync::Arc;

use kiln_ir::{Backend, Code, DType, Diagnostic, HostData, Literal, Loc, Result, Shape, TensorType, Value};

use crate::data::{IntoData, Scalar};
use crate::device::outside;
use crate::session::{Session, State, record_in};
use crate::source::{refuse, refuse_all};
use crate::tracking::Tracking;
use crate::{Tensor, frame};

/// A handle to an open capture scope. Clones are the same scope.
///
/// Everything that has no tensor to find its scope by is declared here: inputs, constants, filled and counted tensors.
#[derive(Clone, Debug)]
pub struct Scope {
    session: Arc<Session>,
    backend: Backend,
}

impl Scope {
    pub(crate) fn of(session: Arc<Session>) -> Scope {
        let backend = session.backend;
        Scope { session, backend }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The innermost scope open on this thread: inside `jit` and `step`, the one they opened.
    ///
    /// # Panics
    ///
    /// With K0101 at the caller's line where none is open.
    #[track_caller]
    pub fn current() -> Scope {
        match Scope::try_current() {
            Ok(scope) => scope,
            Err(errors) => refuse_all(&errors),
        }
    }

    /// [`Scope::current`], or K0101.
    #[track_caller]
    pub fn try_current() -> Result<Scope> {
        match Session::current() {
            Some(session) => Ok(Scope::of(session)),
            None => Err(outside().into()),
        }
    }

    /// The backend that tensors declared through this handle are on.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// This scope, declaring on another backend.
    ///
    /// ```
    /// use kiln_capture::CaptureDevice;
    /// use kiln_ir::{Backend, DType};
    /// let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    ///     let x = scope.input("x", DType::F32, [3]);
    ///     let y = scope.on(Backend::NdArray).input("y", DType::F32, [3]);
    ///     x + y.to(Backend::Cpu)
    /// })?;
    /// assert_eq!(captured.graph.backends(), [Backend::Cpu, Backend::NdArray]);
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    pub fn on(&self, backend: Backend) -> Scope {
        Scope { session: self.session.clone(), backend }
    }

    /// Declares an argument of the graph, on this handle's backend: `scope.on(Backend::Wgpu).input(..)` declares one elsewhere. K0107 where
    /// the name is taken.
    #[track_caller]
    pub fn input(&self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Tensor {
        self.declare(name, TensorType::new(dtype, shape, self.backend))
    }

    /// [`Scope::input`] with a whole type, backend included.
    #[track_caller]
    pub fn declare(&self, name: &str, ty: TensorType) -> Tensor {
        self.declare_at(name, ty, frame::here())
    }

    /// [`Scope::declare`] for someone else, whose line it is.
    #[track_caller]
    pub fn declare_at(&self, name: &str, ty: TensorType, loc: Loc) -> Tensor {
        self.record_at(loc, |state, loc| state.builder.input(name, ty, loc))
    }

    /// Bakes data into the graph: a number, an array of numbers (nested for more axes), a slice, a `Vec`, or [`HostData`](kiln_ir::HostData). Unsuffixed
    /// numbers are `f32` and `i32`. What is baked is listed in the report; feed what changes as an argument instead.
    ///
    /// ```
    /// use kiln_capture::CaptureDevice;
    /// use kiln_ir::Backend;
    /// CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    ///     let table = scope.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    ///     assert_eq!(table.to_string(), "%0 f32[2, 3] @cpu");
    ///     table
    /// })?;
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn constant(&self, data: impl IntoData) -> Tensor {
        let backend = self.backend;
        self.record(|state, loc| {
            let data = data.into_data()?;
            state.builder.constant(data, backend, loc)
        })
    }

    /// Bakes numbers into the graph as a tensor of this dtype and shape, in row-major order. They are weak: K0406 where one does not fit
    /// the dtype, K0303 where their number does not fit the shape.
    ///
    /// ```
    /// use kiln_capture::CaptureDevice;
    /// use kiln_ir::{Backend, DType};
    /// CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    ///     let table = scope.constant_of(DType::F64, [2, 2], [1.0, 0.1, 0.2, 0.3]);
    ///     assert_eq!(table.to_string(), "%0 f64[2, 2] @cpu");
    ///     table
    /// })?;
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn constant_of<N: Into<Scalar>>(
        &self,
        dtype: DType,
        shape: impl Into<Shape>,
        numbers: impl IntoIterator<Item = N>,
    ) -> Tensor {
        let (shape, backend) = (shape.into(), self.backend);
        let numbers: Vec<Scalar> = numbers.into_iter().map(Into::into).collect();
        self.record(|state, loc| {
            let literals: Result<Vec<Literal>, Diagnostic> =
                numbers.iter().map(|number| number.literal(dtype)).collect();
            let literals = literals.map_err(|mut diagnostic| {
                (diagnostic.label, diagnostic.help) = (None, Vec::new());
                diagnostic.in_op("constant_of").help("give a dtype that holds every number")
            })?;
            let data = HostData::from_literals(dtype, shape.clone(), &literals).ok_or_else(|| {
                let message = format!("{} numbers do not fill a tensor of shape {shape}", literals.len());
                Diagnostic::new(Code::K0303, message).in_op("constant_of")
            })?;
            state.builder.constant(data, backend, loc)
        })
    }

    /// Marks a tensor as an output of the graph under a name. K0107 where the name is taken, K0105 for a tensor of another capture.
    #[track_caller]
    pub fn output(&self, name: &str, tensor: &Tensor) {
        let loc = frame::here();
        if !tensor.session.is(&self.session) || !self.session.is_open() {
            self.record(|_, _| Err(foreign_output(name, tensor)));
            return;
        }
        let Some(value) = tensor.value else { return };
        let mut state = self.session.lock();
        let taken = state.outputs.iter().find(|(taken, _)| taken == name).map(|(_, value)| *value);
        match taken {
            None => state.outputs.push((name.to_owned(), value)),
            Some(first) => {
                let first = state.builder.node(first).loc;
                drop(state);
                let duplicate = Diagnostic::new(Code::K0107, format!("duplicate graph output tensor {name}"))
                    .note("first", tensor.to_string(), "made", first)
                    .note("second", tensor.to_string(), "made", tensor.loc)
                    .help("give one of them another name");
                self.session.fail(frame::named(duplicate, loc));
            }
        }
    }

    /// Records an op that has no operands.
    #[track_caller]
    pub(crate) fn record(&self, build: impl FnOnce(&mut State, Loc) -> Result<Value, Diagnostic>) -> Tensor {
        self.record_at(frame::here(), build)
    }

    #[track_caller]
    fn record_at(&self, loc: Loc, build: impl FnOnce(&mut State, Loc) -> Result<Value, Diagnostic>) -> Tensor {
        if self.session.is_open() {
            return record_in(&self.session, loc, Tracking::default(), build);
        }
        self.complete(loc)
    }

    /// K0105: this scope has returned.
    #[track_caller]
    pub(crate) fn complete(&self, loc: Loc) -> Tensor {
        let complete = Diagnostic::new(Code::K0105, "capture scope is already complete")
            .label("the scope that this belongs to has returned")
            .note("scope", "complete,", "opened", self.session.opened)
            .help("declare inside the scope, or use `Scope::current()`");
        let diagnostic = frame::named(complete, loc);
        match Session::current() {
            Some(session) => {
                session.fail(diagnostic);
                Tensor::poison(session, loc)
            }
            None => refuse(&diagnostic),
        }
    }
}

fn foreign_output(name: &str, tensor: &Tensor) -> Diagnostic {
    Diagnostic::new(Code::K0105, "capture scope is already complete")
        .label(format!("output `{name}` belongs to another capture"))
        .note("tensor", tensor.to_string(), "made", tensor.loc)
        .note("", "of a scope", "opened", tensor.session.opened)
        .help("a capture returns tensors of its own; feed a value of another one as an argument")
}
