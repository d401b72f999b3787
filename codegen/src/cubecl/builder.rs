//! A thin typed layer over CubeCL's scope: the one file, with `dialect`, that knows of CubeCL.
//!
//! What comes in are [`Term`]s: constants that are printed where they are used, and values that CubeCL names. Arithmetic is given as C++
//! templates over terms; buffers, vectors, variables, branches and loops are calls. What goes out is a [`CudaText`], the same bytes for the
//! same calls: CubeCL numbers its values as it allocates them, so they are numbered anew in the order in which the text names them.

use std::collections::HashMap;
use std::sync::Arc;

use cubecl_core::Compiler;
use cubecl_core::compute::KernelBuilder;
use cubecl_core::ir::dialect::branch::{IfOp, RangeLoopOp};
use cubecl_core::ir::dialect::general::ReinterpretCastOp;
use cubecl_core::ir::dialect::memory::{DeclareVariableOp, IndexOp, LoadOp, StoreOp};
use cubecl_core::ir::dialect::vector::{CompositeConstructOp, CompositeExtractOp};
use cubecl_core::ir::metadata::{Info, Metadata};
use cubecl_core::ir::prelude::{TypeHandle, Typed};
use cubecl_core::ir::settings::{Dim3, ExecutionMode, KernelSettings};
use cubecl_core::ir::types::scalar::{BoolType, Float32Type, Float64Type, IndexType};
use cubecl_core::ir::types::{PointerType, RuntimeArrayType, VectorType};
use cubecl_core::ir::{AddressSpace, AddressType, OpInserter, Scope};
use cubecl_cpp::shared::{CompilationOptions, CppCompiler};
use cubecl_cpp::target::Cuda;
use kiln_ir::cuda::{CudaArgument, CudaText};
use kiln_ir::gpu::GpuMemory;
use kiln_ir::{Code, Diagnostic};
use pliron::builtin::attributes::TypeAttr;
use pliron::builtin::types::{IntegerType, Signedness};
use pliron::value::Value as Named;
use smallvec::SmallVec;

use super::dialect::{ExpressionOp, ObservationOp, StatementOp, TouchOp};
use super::functions::Functions;
use super::module;

/// A type of C++ as texts here use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Ty {
    /// `bool`.
    Bool,
    /// `float`.
    F32,
    /// `double`.
    F64,
    /// `int`.
    I32,
    /// `long long`.
    I64,
    /// An unsigned byte, in memory alone.
    U8,
    /// Two bytes, in memory alone.
    U16,
    /// `unsigned`.
    U32,
    /// `unsigned long long`.
    U64,
    /// An element index: unsigned, of 32 or 64 bits as the kernel needs.
    Index,
}

impl Ty {
    /// Its name in C++, but for an index.
    pub(super) fn name(self) -> &'static str {
        match self {
            Ty::Bool => "bool",
            Ty::F32 => "float",
            Ty::F64 => "double",
            Ty::I32 => "int",
            Ty::I64 => "long long",
            Ty::U8 => "uint8_t",
            Ty::U16 => "uint16_t",
            Ty::U32 => "uint32_t",
            Ty::U64 => "uint64_t",
            Ty::Index => "index_t",
        }
    }

    /// Bytes of one; of an index, as if it had 32 bits.
    pub(super) fn size(self) -> usize {
        match self {
            Ty::Bool | Ty::U8 => 1,
            Ty::U16 => 2,
            Ty::F32 | Ty::I32 | Ty::U32 | Ty::Index => 4,
            Ty::F64 | Ty::I64 | Ty::U64 => 8,
        }
    }
}

/// A number in the text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Term {
    /// A constant, as C++ writes it; safe beside any operator.
    Constant(String),
    /// A value that is computed.
    Value(Named),
}

impl Term {
    /// A constant.
    pub(super) fn constant(text: impl Into<String>) -> Term {
        Term::Constant(text.into())
    }
}

/// A variable of the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variable {
    pointer: Named,
    ty: Ty,
}

/// A pointer to elements of a type, in global memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointer {
    pub(super) value: Named,
    ty: Ty,
}

/// How many bits element indices have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexWidth {
    /// 32.
    Narrow,
    /// 64.
    Wide,
}

/// What an expression computes: type, template, operands.
type Expression = (Ty, String, SmallVec<[Named; 4]>);

/// A text under construction.
pub(super) struct Builder {
    root: KernelBuilder,
    /// Open branches and loops, each with what is registered when it closes.
    open: Vec<(Scope, Opened)>,
    /// The functions that it calls.
    pub(super) functions: Functions,
    arguments: Vec<(GpuMemory, Pointer)>,
    shared_bytes: u32,
    threads: u32,
    entry: String,
    width: IndexWidth,
    /// What has been computed and loaded at each open place: the same again is the same value.
    expressions: Vec<HashMap<Expression, Named>>,
    loads: Vec<HashMap<(Named, Named, u32), Vec<Term>>>,
}

enum Opened {
    If(IfOp),
    Loop(RangeLoopOp),
}

impl Builder {
    /// An empty text with this entry point, for blocks of so many threads.
    pub(super) fn new(entry: &str, threads: u32, width: IndexWidth) -> Builder {
        let address = match width {
            IndexWidth::Narrow => AddressType::U32,
            IndexWidth::Wide => AddressType::U64,
        };
        let settings = KernelSettings::new(Dim3::new_1d(threads), ExecutionMode::Unchecked, address).kernel_name(entry);
        Builder {
            root: KernelBuilder::new(settings),
            open: Vec::new(),
            functions: Functions::default(),
            arguments: Vec::new(),
            shared_bytes: 0,
            threads,
            entry: entry.to_owned(),
            width,
            expressions: vec![HashMap::new()],
            loads: vec![HashMap::new()],
        }
    }

    /// Threads of a block.
    pub(super) fn threads(&self) -> u32 {
        self.threads
    }

    fn scope(&self) -> &Scope {
        self.open.last().map_or(&self.root.scope, |(scope, _)| scope)
    }

    fn handle(&self, ty: Ty) -> TypeHandle {
        let ctx = self.root.scope.ctx_mut();
        let integer = |width, sign| IntegerType::get(ctx, width, sign).to_handle();
        match ty {
            Ty::Bool => BoolType::get(ctx).to_handle(),
            Ty::F32 => Float32Type::get(ctx).to_handle(),
            Ty::F64 => Float64Type::get(ctx).to_handle(),
            Ty::I32 => integer(32, Signedness::Signed),
            Ty::I64 => integer(64, Signedness::Signed),
            Ty::U8 => integer(8, Signedness::Unsigned),
            Ty::U16 => integer(16, Signedness::Unsigned),
            Ty::U32 => integer(32, Signedness::Unsigned),
            Ty::U64 => integer(64, Signedness::Unsigned),
            Ty::Index => IndexType::get(ctx).to_handle(),
        }
    }

    /// The parameter that points to a buffer, the same each time it is asked for.
    pub(super) fn argument(&mut self, memory: GpuMemory, ty: Ty) -> Pointer {
        if let Some((_, pointer)) = self.arguments.iter().find(|(known, _)| *known == memory) {
            return *pointer;
        }
        let handle = self.handle(ty);
        let pointer = Pointer { value: self.root.buffer(handle), ty };
        self.arguments.push((memory, pointer));
        pointer
    }

    /// The template with constants in it, and what is left of its operands.
    fn filled(template: &str, terms: &[Term]) -> (String, SmallVec<[Named; 4]>) {
        let mut values: SmallVec<[Named; 4]> = SmallVec::new();
        let mut text = String::with_capacity(template.len());
        let mut pieces = template.split('$');
        text.push_str(pieces.next().unwrap_or_default());
        for piece in pieces {
            let digits = piece.find(|c: char| !c.is_ascii_digit()).unwrap_or(piece.len());
            let index: usize = piece[..digits].parse().expect("a number follows each $");
            match &terms[index] {
                Term::Constant(constant) => text.push_str(constant),
                Term::Value(value) => {
                    let place = values.iter().position(|known| known == value).unwrap_or_else(|| {
                        values.push(*value);
                        values.len() - 1
                    });
                    text.push('$');
                    text.push_str(&place.to_string());
                }
            }
            text.push_str(&piece[digits..]);
        }
        (text, values)
    }

    /// A C++ expression in which `$i` stands for a term. It has no effect, and reads nothing that changes.
    pub(super) fn expression(&mut self, ty: Ty, template: &str, terms: &[Term]) -> Term {
        let (text, values) = Self::filled(template, terms);
        let key = (ty, text, values);
        if let Some(value) = self.expressions.iter().find_map(|known| known.get(&key)) {
            return Term::Value(*value);
        }
        let handle = self.handle(ty);
        let scope = self.scope();
        let op = ExpressionOp::new(scope.ctx_mut(), handle, &key.1, key.2.to_vec());
        let value = scope.register_with_result(&op);
        self.expressions.last_mut().expect("the body is open").insert(key, value);
        Term::Value(value)
    }

    /// The value of a C++ expression that stays where it stands: it reads what changes, or other threads take part.
    pub(super) fn observe(&mut self, ty: Ty, template: &str, terms: &[Term]) -> Term {
        let (text, values) = Self::filled(template, terms);
        let handle = self.handle(ty);
        let scope = self.scope();
        let op = ObservationOp::new(scope.ctx_mut(), handle, &text, values.to_vec());
        Term::Value(scope.register_with_result(&op))
    }

    /// A C++ statement in which `$i` stands for a term.
    pub(super) fn statement(&mut self, template: &str, terms: &[Term]) {
        let (text, values) = Self::filled(template, terms);
        let scope = self.scope();
        scope.register(&StatementOp::new(scope.ctx_mut(), &text, values.to_vec()));
    }

    /// Threads of the block meet; what they have written before, all see.
    pub(super) fn barrier(&mut self) {
        self.statement("__syncthreads();", &[]);
    }

    /// The term as a value that CubeCL knows.
    fn value(&mut self, ty: Ty, term: &Term) -> Named {
        match term {
            Term::Value(value) => *value,
            Term::Constant(_) => match self.expression(ty, "$0", std::slice::from_ref(term)) {
                Term::Value(value) => value,
                Term::Constant(_) => unreachable!("an expression is a value"),
            },
        }
    }

    /// A variable that begins with a value.
    pub(super) fn variable(&mut self, ty: Ty, start: &Term) -> Variable {
        let handle = self.handle(ty);
        let scope = self.scope();
        let ctx = scope.ctx_mut();
        let op = DeclareVariableOp::new(ctx, TypeAttr::new(handle), AddressSpace::Local, ty.size(), None);
        let pointer = scope.register_with_result(&op);
        let variable = Variable { pointer, ty };
        self.set(variable, start);
        variable
    }

    /// What a variable holds.
    pub(super) fn get(&mut self, variable: Variable) -> Term {
        let scope = self.scope();
        Term::Value(scope.register_with_result(&LoadOp::new(scope.ctx_mut(), variable.pointer)))
    }

    /// Assigns a variable.
    pub(super) fn set(&mut self, variable: Variable, term: &Term) {
        let value = self.value(variable.ty, term);
        let scope = self.scope();
        scope.register(&StoreOp::new(scope.ctx_mut(), variable.pointer, value));
    }

    /// What follows is done where a condition holds, up to [`Builder::close`].
    pub(super) fn open_if(&mut self, condition: &Term) {
        let condition = self.value(Ty::Bool, condition);
        let scope = self.scope();
        let op = IfOp::new(scope.ctx_mut(), condition);
        let otherwise = scope.child(OpInserter::new_at_block_end(op.else_block(scope.ctx())));
        otherwise.terminate_yield();
        let body = scope.child(OpInserter::new_at_block_end(op.then_block(scope.ctx())));
        self.enter(body, Opened::If(op));
    }

    /// What follows is done for every index from `start` to below `end` by `step`, up to [`Builder::close`]. Gives the index.
    pub(super) fn open_loop(&mut self, start: &Term, end: &Term, step: &Term) -> Term {
        let [start, end, step] = [start, end, step].map(|term| self.value(Ty::Index, term));
        let scope = self.scope();
        let op = RangeLoopOp::new(scope.ctx_mut(), start, end, step);
        let index = op.iter_var(scope.ctx());
        let body = scope.child(OpInserter::new_at_block_end(op.loop_body(scope.ctx())));
        self.enter(body, Opened::Loop(op));
        Term::Value(index)
    }

    fn enter(&mut self, body: Scope, opened: Opened) {
        self.open.push((body, opened));
        self.expressions.push(HashMap::new());
        self.loads.push(HashMap::new());
    }

    /// Ends the innermost branch or loop.
    pub(super) fn close(&mut self) {
        let (body, opened) = self.open.pop().expect("what is closed was opened");
        self.expressions.pop();
        self.loads.pop();
        body.terminate_yield();
        drop(body);
        match opened {
            Opened::If(op) => self.scope().register(&op),
            Opened::Loop(op) => self.scope().register(&op),
        }
    }

    /// As [`Builder::load_again`], of elements that no thread stores before it last loads them: what has been loaded is not loaded again.
    pub(super) fn load(&mut self, pointer: Pointer, index: &Term, width: u32) -> Vec<Term> {
        let at = self.value(Ty::Index, index);
        let key = (pointer.value, at, width);
        if let Some(loaded) = self.loads.iter().find_map(|known| known.get(&key)) {
            return loaded.clone();
        }
        let loaded = self.load_again(pointer, &Term::Value(at), width);
        self.loads.last_mut().expect("the body is open").insert(key, loaded.clone());
        loaded
    }

    /// `width` neighbouring elements from an index that is a multiple of it, in one access: 1, or up to 16 bytes of them.
    pub(super) fn load_again(&mut self, pointer: Pointer, index: &Term, width: u32) -> Vec<Term> {
        let ty = pointer.ty;
        let at = self.address(pointer, index, ty, width);
        let scope = self.scope();
        let loaded = scope.register_with_result(&LoadOp::new(scope.ctx_mut(), at));
        if width == 1 {
            return vec![Term::Value(loaded)];
        }
        (0..width as usize)
            .map(|lane| {
                let op = CompositeExtractOp::new(scope.ctx_mut(), loaded, lane);
                Term::Value(scope.register_with_result(&op))
            })
            .collect()
    }

    /// Stores neighbouring elements in one access, as [`Builder::load`] reads them.
    pub(super) fn store(&mut self, pointer: Pointer, index: &Term, values: &[Term]) {
        let ty = pointer.ty;
        let width = values.len() as u32;
        let values: Vec<Named> = values.iter().map(|value| self.value(ty, value)).collect();
        let at = self.address(pointer, index, ty, width);
        let scope = self.scope();
        let value = match values.as_slice() {
            [value] => *value,
            several => {
                let vector = VectorType::get(scope.ctx_mut(), several[0].get_type(scope.ctx()), several.len());
                let op = CompositeConstructOp::new(scope.ctx_mut(), vector.to_handle(), values);
                scope.register_with_result(&op)
            }
        };
        scope.register(&StoreOp::new(scope.ctx_mut(), at, value));
    }

    fn address(&mut self, pointer: Pointer, index: &Term, ty: Ty, width: u32) -> Named {
        let index = self.value(Ty::Index, index);
        let handle = self.handle(ty);
        let scope = self.scope();
        let at = scope.register_with_result(&IndexOp::new(scope.ctx_mut(), pointer.value, index, None));
        if width == 1 {
            return at;
        }
        let ctx = scope.ctx_mut();
        let vector = VectorType::get(ctx, handle, width as usize).to_handle();
        let space = space(ctx, pointer.value);
        let ty = PointerType::get(ctx, vector, space).to_handle();
        scope.register_with_result(&ReinterpretCastOp::new(ctx, ty, at))
    }

    /// The same memory as elements of another type.
    pub(super) fn view(&mut self, pointer: Pointer, ty: Ty) -> Pointer {
        if pointer.ty == ty {
            return pointer;
        }
        let handle = self.handle(ty);
        let scope = self.scope();
        let ctx = scope.ctx_mut();
        let array = RuntimeArrayType::get(ctx, handle).to_handle();
        let space = space(ctx, pointer.value);
        let to = PointerType::get(ctx, array, space).to_handle();
        Pointer { value: scope.register_with_result(&ReinterpretCastOp::new(ctx, to, pointer.value)), ty }
    }

    /// One of several buffers of one type, by a number that all threads of the block share.
    pub(super) fn choose(&mut self, which: &Term, among: &[Pointer]) -> Pointer {
        let first = among[0];
        if among.iter().all(|pointer| pointer.value == first.value) {
            return first;
        }
        let number = self.value(Ty::Index, which);
        let mut cases = String::from("[&] { switch ($0) {");
        for place in 1..among.len() {
            cases.push_str(&format!(" case {place}: return ${};", place + 1));
        }
        cases.push_str(" default: return $1; } }()");
        let scope = self.scope();
        let ctx = scope.ctx_mut();
        let operands: Vec<Named> = std::iter::once(number).chain(among.iter().map(|pointer| pointer.value)).collect();
        scope.register(&TouchOp::new(ctx, operands[1..].to_vec()));
        let ty = first.value.get_type(ctx);
        let op = ExpressionOp::new(ctx, ty, &cases, operands);
        Pointer { value: scope.register_with_result(&op), ty: first.ty }
    }

    /// Takes bytes of memory that the block shares, aligned to 16. Gives where they begin.
    pub(super) fn share(&mut self, bytes: u32) -> u32 {
        let begin = self.shared_bytes.next_multiple_of(16);
        self.shared_bytes = begin + bytes;
        begin
    }

    /// An element of shared memory that begins at a byte.
    pub(super) fn shared_load(&mut self, begin: u32, ty: Ty, index: &Term) -> Term {
        let template = format!("reinterpret_cast<{}*>(shared + {begin})[$0]", self.type_name(ty));
        self.observe(ty, &template, std::slice::from_ref(index))
    }

    /// Stores an element of shared memory.
    pub(super) fn shared_store(&mut self, begin: u32, ty: Ty, index: &Term, value: &Term) {
        let template = format!("reinterpret_cast<{}*>(shared + {begin})[$0] = $1;", self.type_name(ty));
        self.statement(&template, &[index.clone(), value.clone()]);
    }

    /// The name of a type, an index included.
    pub(super) fn type_name(&self, ty: Ty) -> &'static str {
        match (ty, self.width) {
            (Ty::Index, IndexWidth::Narrow) => "uint32_t",
            (Ty::Index, IndexWidth::Wide) => "uint64_t",
            (ty, _) => ty.name(),
        }
    }

    /// The text, to be launched in so many blocks.
    ///
    /// Errors: K0901 where CubeCL refuses it, which is a mistake of ours.
    pub(super) fn finish(self, blocks: [u32; 3]) -> Result<CudaText, Diagnostic> {
        let (functions, shared_bytes, threads) = (self.functions.clone(), self.shared_bytes, self.threads);
        let entry = Arc::from(&*self.entry);
        let arguments = self.arguments.iter().map(|(memory, _)| CudaArgument::Memory(*memory)).collect();
        let source = module::text(&self.printed()?, &functions, shared_bytes > 0);
        Ok(CudaText { source: Arc::from(source), entry, blocks, threads: [threads, 1, 1], shared_bytes, arguments })
    }

    /// What has been built as a function of another text, with these parameters after the buffers.
    ///
    /// Errors: as [`Builder::finish`].
    pub(super) fn function(self, parameters: &[String]) -> Result<Function, Diagnostic> {
        let (functions, entry) = (self.functions.clone(), self.entry.clone());
        let printed = self.printed()?;
        let (head, body) = module::parts(&printed);
        let (before, after) = body
            .split_once(&format!("{entry}("))
            .and_then(|(_, rest)| rest.split_once(") {"))
            .ok_or_else(|| Diagnostic::new(Code::K0901, "internal: CubeCL prints kernels in another way"))?;
        let all = [before.trim()].into_iter().filter(|buffers| !buffers.is_empty());
        let all: Vec<&str> = all.chain(parameters.iter().map(String::as_str)).collect();
        let text = format!("static __device__ __forceinline__ void {entry}({}) {{{after}", all.join(", "));
        Ok(Function { head, text, functions })
    }

    /// The text as CubeCL prints it.
    fn printed(self) -> Result<String, Diagnostic> {
        debug_assert!(self.open.is_empty(), "what was opened was closed");
        let mut definition = self.root.build();
        // Lengths are known: no text asks for them at run time.
        definition.info = Info {
            scalars: Vec::new(),
            sized_meta: None,
            has_dynamic_meta: false,
            dynamic_meta_offset: 0,
            metadata: Metadata::new(0, 0),
        };
        let printed = CppCompiler::<Cuda>::default()
            .compile(definition, &CompilationOptions::default())
            .map_err(|error| Diagnostic::new(Code::K0901, format!("internal: CubeCL refuses a kernel: {error:?}")))?;
        Ok(printed.source)
    }
}

/// A function of a text that is put together of several.
pub(super) struct Function {
    /// The types that it needs, a line each.
    pub(super) head: Vec<String>,
    /// Its own text.
    pub(super) text: String,
    /// The functions that it calls.
    pub(super) functions: Functions,
}

fn space(ctx: &pliron::context::Context, pointer: Named) -> AddressSpace {
    let ty = pointer.get_type(ctx).deref(ctx);
    ty.downcast_ref::<PointerType>().map(|ty| ty.address_space).expect("a buffer is a pointer")
}
