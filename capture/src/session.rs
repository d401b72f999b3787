//! What is behind a capture scope: the graph under construction, the diagnostics so far, and the rule that an op follows when it is
//! recorded.
//!
//! A [`Session`] is shared by its scope and by every ticket made in it. It lives as long as the last ticket, but gives its graph away
//! when the scope ends, so a ticket that escapes keeps no graph alive. Sessions have ids that are never used twice: a ticket cannot be
//! mistaken for one of a later scope.
//!
//! Who collects a mistake: the session of the operands, if it is open; else the innermost session open on this thread; else nobody can,
//! and the op panics at the user's line with the full text.

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kiln_ir::{Backend, Code, CustomOps, Diagnostic, Diagnostics, GraphBuilder, Loc, Value};

use smallvec::SmallVec;

use crate::captured::{Notice, Tap};
use crate::tracking::{Tracking, check_contexts};
use crate::{Scope, Tensor, frame, source};

/// What becomes of a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failing {
    /// It is kept until the scope ends.
    Collect,
    /// The op panics at the user's line.
    Fast,
}

/// What becomes of an element of a list that is not tracked for gradients, beside one that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    /// It is promoted: taken as it is, and not differentiated.
    Promote,
    /// It is a mistake, K0506.
    Strict,
}

/// How a device opens its scopes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) failing: Failing,
    pub(crate) lists: Lists,
    pub(crate) seed: Option<u64>,
}

/// One opening of a capture scope.
pub(crate) struct Session {
    id: u64,
    pub(crate) backend: Backend,
    pub(crate) opened: Loc,
    pub(crate) seed: Option<u64>,
    failing: Failing,
    open: AtomicBool,
    state: Mutex<State>,
}

/// The part of a session that grows while it is open.
pub(crate) struct State {
    pub(crate) builder: GraphBuilder,
    pub(crate) diagnostics: Vec<Diagnostic>,
    pub(crate) outputs: Vec<(String, Value)>,
    pub(crate) taps: Vec<Tap>,
    pub(crate) notices: Vec<Notice>,
    /// What `require_grad` marked.
    pub(crate) marks: Vec<Value>,
    pub(crate) lists: Lists,
    /// The custom ops that were called.
    pub(crate) customs: CustomOps,
    /// Streams handed out to random draws so far: no two draws of a capture share one.
    pub(crate) streams: u32,
}

impl State {
    fn new(name: &str, lists: Lists) -> State {
        State {
            builder: GraphBuilder::new(name),
            diagnostics: Vec::new(),
            outputs: Vec::new(),
            taps: Vec::new(),
            notices: Vec::new(),
            marks: Vec::new(),
            lists,
            customs: CustomOps::new(),
            streams: 0,
        }
    }
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Sessions whose scopes were opened on this thread and not closed yet, innermost last.
    static OPEN: RefCell<Vec<Arc<Session>>> = const { RefCell::new(Vec::new()) };
}

/// What a question about a poisoned ticket unwinds with, up to the end of its scope.
pub(crate) struct Stopped(u64);

impl Session {
    pub(crate) fn new(name: &str, backend: Backend, manner: Manner, opened: Loc) -> Arc<Session> {
        Arc::new(Session {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            backend,
            opened,
            seed: manner.seed,
            failing: manner.failing,
            open: AtomicBool::new(true),
            state: Mutex::new(State::new(name, manner.lists)),
        })
    }

    /// The innermost session open on this thread.
    pub(crate) fn current() -> Option<Arc<Session>> {
        OPEN.with_borrow(|open| open.last().cloned())
    }

    /// Makes this session the innermost one of this thread.
    pub(crate) fn enter(self: &Arc<Session>) {
        OPEN.with_borrow_mut(|open| open.push(self.clone()));
    }

    /// Closes the session for good and gives what it holds.
    pub(crate) fn close(&self) -> State {
        OPEN.with_borrow_mut(|open| open.retain(|session| session.id != self.id));
        let mut state = self.lock();
        self.open.store(false, Ordering::Release);
        std::mem::replace(&mut *state, State::new("", Lists::Promote))
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    pub(crate) fn is(&self, other: &Session) -> bool {
        self.id == other.id
    }

    /// The state. A panic while it was locked leaves at most nodes behind that nothing uses.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, if the scope is still open: another thread may end it at any time, and takes the nodes with it.
    pub(crate) fn lock_open(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.lock();
        self.is_open().then_some(state)
    }

    /// Keeps a mistake until the scope ends, or panics with it.
    #[track_caller]
    pub(crate) fn fail(&self, diagnostic: Diagnostic) {
        self.lock().diagnostics.push(diagnostic.clone());
        if self.failing == Failing::Fast && !frame::defer_panic(&diagnostic) {
            source::refuse(&diagnostic);
        }
    }

    /// Ends recording at a question that a poisoned ticket cannot answer. The scope returns the diagnostics it has.
    pub(crate) fn stop(&self) -> ! {
        if cfg!(panic = "abort") {
            let first = self.lock().diagnostics.first().map(source::text);
            panic!("{}", first.unwrap_or_default());
        }
        std::panic::resume_unwind(Box::new(Stopped(self.id)))
    }

    /// Whether a panic's payload comes from [`Session::stop`] of this session.
    pub(crate) fn stopped_by(&self, payload: &(dyn std::any::Any + Send)) -> bool {
        payload.downcast_ref::<Stopped>().is_some_and(|stopped| stopped.0 == self.id)
    }

    /// The diagnostics so far.
    pub(crate) fn diagnostics(&self) -> Option<Diagnostics> {
        Diagnostics::from_list(self.lock().diagnostics.clone())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = if self.is_open() { "open" } else { "complete" };
        write!(f, "capture {} on {}, opened at {}, {open}", self.id, self.backend, self.opened)
    }
}

/// Records an op: checks that the operands belong to one open session, and runs `build` on their values. Its result is the ticket; its
/// error is kept, and the ticket poisoned. Where an operand is poisoned already, nothing is built and nothing is said.
#[track_caller]
pub(crate) fn record(
    operands: &[&Tensor],
    build: impl FnOnce(&mut State, &[Value], Loc) -> Result<Value, Diagnostic>,
) -> Tensor {
    let loc = frame::here();
    let session = match session_of(operands, loc) {
        Ok(session) => session,
        Err(poison) => return poison,
    };
    let Some(values) = operands.iter().map(|operand| operand.value).collect::<Option<SmallVec<[Value; 4]>>>() else {
        return Tensor::poison(session, loc);
    };
    record_in(&session, loc, Tracking::of(operands), |state, loc| build(state, &values, loc))
}

/// Records an op into a session, whose operands are tracked for gradients as `tracking` says.
#[track_caller]
pub(crate) fn record_in(
    session: &Arc<Session>,
    loc: Loc,
    tracking: Tracking,
    build: impl FnOnce(&mut State, Loc) -> Result<Value, Diagnostic>,
) -> Tensor {
    let Some(mut state) = session.lock_open() else { return Scope::of(session.clone()).complete(loc) };
    match build(&mut state, loc) {
        Ok(value) => {
            let ticket = ticket(session, &state, value, loc, &tracking);
            drop(state);
            ticket
        }
        Err(diagnostic) => {
            drop(state);
            session.fail(frame::named(diagnostic, loc));
            Tensor::poison(session.clone(), loc)
        }
    }
}

/// The ticket of a value whose operands are tracked as `tracking` says.
fn ticket(session: &Arc<Session>, state: &State, value: Value, loc: Loc, tracking: &Tracking) -> Tensor {
    let node = state.builder.node(value);
    let ty = node.types[value.result as usize].clone();
    Tensor::new(session.clone(), value, ty, loc, tracking.clone().of_result(node, value.result as usize))
}

/// [`record`] whose mistakes speak of the op by the name the user called it by, where the graph has another.
#[track_caller]
pub(crate) fn record_as(
    name: &str,
    operands: &[&Tensor],
    build: impl FnOnce(&mut State, &[Value], Loc) -> Result<Value, Diagnostic>,
) -> Tensor {
    record(operands, |state, values, loc| build(state, values, loc).map_err(|diagnostic| renamed(diagnostic, name)))
}

/// The diagnostic of an op that the user called by another name.
pub(crate) fn renamed(mut diagnostic: Diagnostic, name: &str) -> Diagnostic {
    if let Some(op) = &diagnostic.op {
        let (op, name) = (format!("`{op}`"), format!("`{name}`"));
        diagnostic.message = diagnostic.message.replace(&op, &name);
        diagnostic.label = diagnostic.label.map(|label| label.replace(&op, &name));
    }
    diagnostic.in_op(name)
}

/// [`record`] of ops with `count` results, all of them poisoned where something goes wrong.
#[track_caller]
pub(crate) fn record_many(
    operands: &[&Tensor],
    count: usize,
    build: impl FnOnce(&mut State, &[Value], Loc) -> Result<Vec<Value>, Diagnostic>,
) -> Vec<Tensor> {
    let tracking = Tracking::of(operands);
    let mut results = Vec::new();
    let first = record(operands, |state, values, loc| {
        let made = build(state, values, loc)?;
        let session = &operands[0].session;
        results = made.iter().map(|&value| ticket(session, state, value, loc, &tracking)).collect();
        Ok(values[0])
    });
    if first.is_poisoned() { vec![first; count] } else { results }
}

/// The open session that all operands belong to. Where there is none (K0105), or where an operand is tracked by a gradient that is over
/// (K0508), the mistake is collected by a session that can, whose poison is the error; or else this panics.
#[track_caller]
pub(crate) fn session_of(operands: &[&Tensor], loc: Loc) -> Result<Arc<Session>, Tensor> {
    let first = operands.first().expect("an op without operands is recorded through its scope");
    let session = &first.session;
    if session.is_open() && operands.iter().all(|operand| operand.session.is(session)) {
        return match check_contexts(operands, loc) {
            Ok(()) => Ok(session.clone()),
            Err(diagnostic) => {
                session.fail(frame::named(diagnostic, loc));
                Err(Tensor::poison(session.clone(), loc))
            }
        };
    }
    let diagnostic = frame::named(complete(operands, loc), loc);
    let open = operands.iter().map(|operand| &operand.session).find(|session| session.is_open()).cloned();
    let current = Session::current();
    let collector = current.filter(|current| open.is_none() || operands.iter().any(|o| o.session.is(current))).or(open);
    match collector {
        Some(session) => {
            session.fail(diagnostic);
            Err(Tensor::poison(session, loc))
        }
        None => source::refuse(&diagnostic),
    }
}

/// K0105, with the line of every operand and of its scope.
fn complete(operands: &[&Tensor], loc: Loc) -> Diagnostic {
    let stale = operands.iter().any(|operand| !operand.session.is_open());
    let (label, help) = if stale {
        (
            "a ticket is no data: it stands for a value of its own capture, which has returned",
            "return the tensor from the capture and read it from the result, or feed its data as an argument",
        )
    } else {
        (
            "the operands belong to two captures",
            "a capture sees values of another one as arguments only: declare an input and feed it",
        )
    };
    let mut diagnostic = Diagnostic::new(Code::K0105, "capture scope is already complete").at(loc).label(label);
    for (index, operand) in operands.iter().enumerate() {
        let role = if operands.len() == 1 { "tensor".to_owned() } else { format!("operand {index}") };
        diagnostic = diagnostic.note(role, operand.to_string(), "made", operand.loc);
        let scope = if operand.session.is_open() { "a scope still open," } else { "a complete scope," };
        diagnostic = diagnostic.note("", format!("of {scope}"), "opened", operand.session.opened);
    }
    diagnostic.help(help)
}
