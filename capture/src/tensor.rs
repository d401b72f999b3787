//! `Tensor`: a ticket for a value of a capture.
//!
//! A ticket knows its type and where it was made, and nothing of its data, which does not exist before the compiled graph runs. It is
//! cheap to clone. After a mistake the ticket is *poisoned*: ops on it are silent and give poison again, so each mistake is reported once.

use std::fmt;
use std::sync::Arc;

use kiln_ir::{Backend, Code, DType, Diagnostic, HostData, Loc, Op, Result, Shape, TensorType, Value};

use crate::captured::Tap;
use crate::data::data_of;
use crate::session::{Session, record, record_as};
use crate::tracking::Tracking;
use crate::{Scope, frame};

/// A value of the graph that is being captured: what ops take and give.
///
/// Asking a poisoned ticket for its type ends the capture there, and the scope returns the mistakes made so far.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) session: Arc<Session>,
    /// `None` in a poisoned ticket.
    pub(crate) value: Option<Value>,
    ty: TensorType,
    pub(crate) loc: Loc,
    pub(crate) tracking: Tracking,
}

kiln_ir::leaf!(Tensor);

impl Tensor {
    pub(crate) fn new(session: Arc<Session>, value: Value, ty: TensorType, loc: Loc, tracking: Tracking) -> Tensor {
        Tensor { session, value: Some(value), ty, loc, tracking }
    }

    /// The ticket of an op that went wrong.
    pub(crate) fn poison(session: Arc<Session>, loc: Loc) -> Tensor {
        let ty = TensorType::new(DType::F32, [], session.backend);
        Tensor { session, value: None, ty, loc, tracking: Tracking::default() }
    }

    /// The same ticket, tracked by others.
    pub(crate) fn tracked_by(self, tracking: Tracking) -> Tensor {
        Tensor { tracking, ..self }
    }

    /// Whether an op that this ticket comes from went wrong.
    pub fn is_poisoned(&self) -> bool {
        self.value.is_none()
    }

    /// Shape, dtype and backend.
    pub fn ty(&self) -> &TensorType {
        if self.is_poisoned() && self.session.is_open() {
            self.session.stop();
        }
        &self.ty
    }

    /// Extents, outermost axis first.
    ///
    /// ```
    /// # use kiln_capture::CaptureDevice; use kiln_ir::{Backend, DType};
    /// # CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    /// let x = scope.input("x", DType::F32, [32, 10]);
    /// assert_eq!(x.shape()[1], 10);
    /// # })?; Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    pub fn shape(&self) -> &Shape {
        &self.ty().shape
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape().rank()
    }

    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape().num_elements()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.ty().dtype
    }

    /// Where the value lives.
    pub fn backend(&self) -> Backend {
        self.ty().backend
    }

    /// The value in the graph; `None` in a poisoned ticket.
    pub fn value(&self) -> Option<Value> {
        self.value
    }

    /// Where it was recorded.
    pub fn loc(&self) -> Loc {
        self.loc
    }

    /// The scope it belongs to, declaring on this tensor's backend.
    pub fn scope(&self) -> Scope {
        Scope::of(self.session.clone()).on(self.ty.backend)
    }

    /// The data, which only constants have.
    ///
    /// # Errors
    ///
    /// K0102 for a value that is computed or fed: it exists when the compiled graph has run.
    #[track_caller]
    pub fn try_data(&self) -> Result<HostData> {
        let loc = frame::here();
        let baked = self
            .value
            .filter(|_| self.session.is_open())
            .and_then(|value| data_of(&self.session.lock().builder.nodes().get(value.node.index())?.op));
        baked.ok_or_else(|| {
            let name = self.value.map_or_else(|| "%?".to_owned(), |value| value.to_string());
            Diagnostic::new(Code::K0102, format!("capture tensor {name} has no initialized value"))
                .at(loc)
                .label("a ticket holds no data, neither during nor after its capture")
                .note("tensor", self.to_string(), "recorded", self.loc)
                .help("return it from the capture and read the result, or look at it with `.tap(\"name\")`")
                .into()
        })
    }

    /// Takes the value out of the capture, which is never possible: what runs is the compiled graph.
    ///
    /// # Errors
    ///
    /// Always K0111.
    #[track_caller]
    pub fn try_into_data(self) -> Result<HostData> {
        Err(Diagnostic::new(Code::K0111, "Cannot move a tensor from a capture device")
            .at(frame::here())
            .label("a ticket stands for a value of the graph, which has no data before it runs")
            .note("tensor", self.to_string(), "recorded", self.loc)
            .help("return the tensor from the capture: the compiled graph gives its data as an `Array`")
            .into())
    }

    /// An argument or constant, just declared, on another backend: `scope.input(..).on(Backend::Wgpu)` is
    /// `scope.on(Backend::Wgpu).input(..)`. Nothing is moved, so nothing may have used it yet. K0202 for any other tensor.
    ///
    /// ```
    /// # use kiln_capture::CaptureDevice; use kiln_ir::{Backend, DType};
    /// # CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    /// let x = scope.input("x", DType::F32, [32, 10]).on(Backend::Cuda);
    /// assert_eq!(x.ty().to_string(), "f32[32, 10] @cuda");
    /// # })?; Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[track_caller]
    pub fn on(self, backend: Backend) -> Tensor {
        record_as("on", &[&self], |state, values, loc| match state.builder.place(values[0], backend) {
            Ok(()) => Ok(values[0]),
            Err(diagnostic) => Err(diagnostic.at(loc).in_op("on")),
        })
    }

    /// The value on another backend: the only op that crosses.
    #[track_caller]
    pub fn to(&self, backend: Backend) -> Tensor {
        if !self.is_poisoned() && self.ty.backend == backend && self.session.is_open() {
            return self.clone();
        }
        self.node(Op::Transfer(backend))
    }

    /// The value, of which gradients are 0.
    #[track_caller]
    pub fn detach(&self) -> Tensor {
        self.node(Op::StopGradient)
    }

    /// The value, of which gradients are 0: [`Tensor::detach`] by another name.
    #[track_caller]
    pub fn stop_gradient(&self) -> Tensor {
        self.detach()
    }

    /// The value, as one that no rewrite looks through.
    #[track_caller]
    pub fn barrier(&self) -> Tensor {
        self.node(Op::Barrier)
    }

    /// Names the value so that it can be seen inside a compiled step while taps are on. It costs nothing while they are off.
    #[track_caller]
    pub fn tap(&self, name: &str) -> Tensor {
        let loc = frame::here();
        record(&[self], |state, values, _| {
            state.taps.push(Tap { name: name.into(), value: values[0], loc });
            Ok(values[0])
        });
        self.clone()
    }

    /// A node on this tensor alone.
    #[track_caller]
    pub(crate) fn node(&self, op: Op) -> Tensor {
        record(&[self], |state, values, loc| state.builder.value(op, values, loc))
    }
}

/// `%7 f32[32, 10] @cpu`.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            Some(value) => write!(f, "{value} {}", self.ty),
            None => f.write_str("%? (of an op that went wrong)"),
        }
    }
}

/// `%7 f32[32, 10] @cpu`, and where its data is to be had.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let data = if self.session.is_open() {
            "a ticket without data: return it from the capture, or `.tap(..)` it"
        } else {
            "a ticket of a complete capture: its data is in the results of the compiled graph"
        };
        write!(f, "{self} ({data})")
    }
}
