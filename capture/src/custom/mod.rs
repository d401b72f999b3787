//! Custom ops: what Kiln does not have, declared by its user.
//!
//! A [`CustomOp`] is a value, cheap to clone. [`custom_op`] declares one by its *body* in tensor ops: such an op runs on every backend, fuses
//! with its neighbours, has a gradient, and may be given kernels of its own, whose oracle the body then is. [`opaque_op`] declares one by its
//! *types*: it is as good as its kernels. Either may have a gradient rule.
//!
//! Arguments and results are trees: a tensor, a tuple, or a struct that derives `ExtensionType`, whose fields are the named operands, with
//! options, lists and structs in them. Numbers in them become attributes. Every function of an op (types, body, kernels, gradient) is handed
//! the same tree, each time with other leaves: types, tickets, or the elements themselves.
//!
//! There is no registry. The capture in which an op is called remembers it ([`CapturedGraph::customs`](crate::CapturedGraph::customs)), and so
//! `jit` and `step` find its kernels.
//!
//! - this file: declaring; `arguments`: what calls accept; `call`: calling; `trace`: bodies and gradients as graphs; `rules`: gradients.

mod arguments;
mod call;
mod operands;
mod rules;
mod trace;

use std::fmt;
use std::sync::Arc;

use kiln_ir::TensorType;
use kiln_ir::custom::{CudaKernel, Identity, KernelResult, View, ViewMut, WgslKernel};
use kiln_ir::tree::{Fixed, Hole, Tree, With};

use crate::Tensor;

pub use arguments::Arguments;
pub(crate) use rules::prepare;

/// A tree of tensors with their types in their places.
pub type Types<A> = With<A, Tensor, TensorType>;

type TypeFunction<A, O> = Arc<dyn Fn(&Types<A>) -> Result<Types<O>, String> + Send + Sync>;
type Body<A, O> = Arc<dyn Fn(&A) -> O + Send + Sync>;
type GradientBody<A, O> = Arc<dyn Fn(&A, &O, &O) -> A + Send + Sync>;
type CpuBody<A, O> =
    Arc<dyn for<'v> Fn(&With<A, Tensor, View<'v>>, &mut With<O, Tensor, ViewMut<'v>>) -> KernelResult + Send + Sync>;
type Text<A, O, K> = Arc<dyn Fn(&Types<A>, &Types<O>) -> K + Send + Sync>;

/// An op from outside: made by [`custom_op`] and [`opaque_op`], called by [`CustomOp::call`]. Clones are the same op.
pub struct CustomOp<A: Tree<Tensor>, O: Tree<Tensor>> {
    name: Arc<str>,
    /// Names for the parts of arguments that have none of their own.
    names: Arc<[String]>,
    untracked: Arc<[String]>,
    types: Option<TypeFunction<A, O>>,
    body: Option<Body<A, O>>,
    gradient: Option<GradientBody<A, O>>,
    cpu: Option<CpuBody<A, O>>,
    wgsl: Option<Text<A, O, WgslKernel>>,
    cuda: Option<Text<A, O, CudaKernel>>,
    tolerance: Option<f64>,
    identity: Identity,
}

/// Declares an op by its body in tensor ops.
///
/// ```
/// use kiln_capture::{custom_op, CaptureDevice, Tensor};
/// use kiln_ir::{Backend, DType};
///
/// let swish = custom_op("swish", |(x, beta): &(Tensor, Tensor)| x * (x * beta).sigmoid()).names(["x", "beta"]);
/// let captured = CaptureDevice::new(Backend::Wgpu).capture_scope(|scope| {
///     let x = scope.input("x", DType::F32, [32, 10]);
///     swish.call((&x, scope.constant(1.5)))
/// })?;
/// assert_eq!(captured.graph.nodes.len(), 3);
/// # Ok::<(), kiln_ir::Diagnostics>(())
/// ```
pub fn custom_op<A, O, F>(name: impl Into<Arc<str>>, body: F) -> CustomOp<A, O>
where
    A: Tree<Tensor>,
    O: Tree<Tensor, Family: Fixed>,
    F: Fn(&A) -> O + Send + Sync + 'static,
{
    let body = Arc::new(body);
    let op = CustomOp::empty(name.into());
    CustomOp { identity: op.identity.with::<F, F>(&body), body: Some(body), ..op }
}

/// Declares an op by the types of its results, given those of its arguments. What it computes is told by [`CustomOp::cpu`] and its like.
///
/// ```
/// use kiln_capture::{opaque_op, CaptureDevice};
/// use kiln_ir::{Backend, DType, TensorType};
///
/// let reversed = opaque_op("reversed", |x: &TensorType| Ok(x.clone())).cpu(|x, y| {
///     let (x, y) = (x.as_slice::<f32>()?, y.as_mut_slice::<f32>()?);
///     y.iter_mut().zip(x.iter().rev()).for_each(|(y, x)| *y = *x);
///     Ok(())
/// });
/// let captured = CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
///     reversed.call(scope.input("x", DType::F32, [3]))
/// })?;
/// assert!(captured.customs.find("reversed", &[]).is_some());
/// # Ok::<(), kiln_ir::Diagnostics>(())
/// ```
pub fn opaque_op<A, O, F>(
    name: impl Into<Arc<str>>,
    types: F,
) -> CustomOp<With<A, TensorType, Tensor>, With<O, TensorType, Tensor>>
where
    A: Tree<TensorType>,
    O: Tree<TensorType, Family: Fixed>,
    F: Fn(&A) -> Result<O, String> + Send + Sync + 'static,
{
    CustomOp::empty(name.into()).types(types)
}

impl<A: Tree<Tensor>, O: Tree<Tensor>> CustomOp<A, O> {
    fn empty(name: Arc<str>) -> CustomOp<A, O> {
        CustomOp {
            name,
            names: [].into(),
            untracked: [].into(),
            types: None,
            body: None,
            gradient: None,
            cpu: None,
            wgsl: None,
            cuda: None,
            tolerance: None,
            identity: Identity::default(),
        }
    }

    /// Names the parts of the arguments, in order, where they are a tuple or a lone tensor. A struct's parts have the names of its fields.
    #[must_use]
    pub fn names<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.names = names.into_iter().map(Into::into).collect();
        self
    }

    /// Names operands through which no gradient may pass: a tensor that is tracked for gradients is a mistake there (K0509).
    #[must_use]
    pub fn untracked<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.untracked = names.into_iter().map(Into::into).collect();
        self
    }

    /// The types of the results, from those of the arguments, or what is wrong with these, in words. With a body it is only asked what is
    /// wrong: the types are the body's.
    #[must_use]
    pub fn types<F>(mut self, types: F) -> Self
    where
        F: Fn(&Types<A>) -> Result<Types<O>, String> + Send + Sync + 'static,
    {
        let types = Arc::new(types);
        self.identity = self.identity.with::<F, F>(&types);
        self.types = Some(types);
        self
    }

    /// The gradient rule, in tensor ops: from the arguments, the results, and the gradients that arrive at the results to the gradients of the
    /// arguments. What stands in the place of an argument that is no float, or untracked, is not looked at.
    ///
    /// With a body, the rule takes the place of the body's own gradient.
    ///
    /// ```
    /// use kiln_capture::{custom_op, value_and_grad, CaptureDevice, Tensor};
    /// use kiln_ir::{Backend, DType};
    ///
    /// // Rounds, and lets gradients pass as if it did not.
    /// let rounded = custom_op("rounded", |x: &Tensor| x.round()).gradient(|_, _, dy| dy.clone());
    /// CaptureDevice::new(Backend::Cpu).capture_scope(|scope| {
    ///     let x = scope.input("x", DType::F32, [3]);
    ///     value_and_grad(&x, |x| rounded.call(x).sum(..)).1
    /// })?;
    /// # Ok::<(), kiln_ir::Diagnostics>(())
    /// ```
    #[must_use]
    pub fn gradient<F>(mut self, gradient: F) -> Self
    where
        F: Fn(&A, &O, &O) -> A + Send + Sync + 'static,
    {
        let gradient = Arc::new(gradient);
        self.identity = self.identity.with::<F, F>(&gradient);
        self.gradient = Some(gradient);
        self
    }

    /// The kernel for the CPU: a function of the arguments' elements that writes the results', which are zeros at first. It must depend on
    /// nothing else (equal calls are made once, unused ones never) and may be called from any thread. An error it gives is told with the op's line (K0705), and so is a panic.
    #[must_use]
    pub fn cpu<F>(mut self, kernel: F) -> Self
    where
        F: for<'v> Fn(&With<A, Tensor, View<'v>>, &mut With<O, Tensor, ViewMut<'v>>) -> KernelResult
            + Send
            + Sync
            + 'static,
    {
        let kernel = Arc::new(kernel);
        self.identity = self.identity.with::<F, F>(&kernel);
        self.cpu = Some(kernel);
        self
    }

    /// The kernel for wgpu, a text for arguments and results of these types. K0211 where it does not fit the op.
    #[must_use]
    pub fn wgsl<F>(mut self, kernel: F) -> Self
    where
        F: Fn(&Types<A>, &Types<O>) -> WgslKernel + Send + Sync + 'static,
    {
        let kernel = Arc::new(kernel);
        self.identity = self.identity.with::<F, F>(&kernel);
        self.wgsl = Some(kernel);
        self
    }

    /// The kernel for CUDA, a text for arguments and results of these types. K0211 where it does not fit the op.
    #[must_use]
    pub fn cuda<F>(mut self, kernel: F) -> Self
    where
        F: Fn(&Types<A>, &Types<O>) -> CudaKernel + Send + Sync + 'static,
    {
        let kernel = Arc::new(kernel);
        self.identity = self.identity.with::<F, F>(&kernel);
        self.cuda = Some(kernel);
        self
    }

    /// How far a kernel's results may be from the body's when they are verified, as a part of the largest element.
    #[must_use]
    pub fn tolerance(mut self, relative: f64) -> Self {
        self.tolerance = Some(relative);
        self
    }

    /// The op's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<A: Tree<Tensor>, O: Tree<Tensor>> Clone for CustomOp<A, O> {
    fn clone(&self) -> Self {
        CustomOp {
            name: self.name.clone(),
            names: self.names.clone(),
            untracked: self.untracked.clone(),
            types: self.types.clone(),
            body: self.body.clone(),
            gradient: self.gradient.clone(),
            cpu: self.cpu.clone(),
            wgsl: self.wgsl.clone(),
            cuda: self.cuda.clone(),
            tolerance: self.tolerance,
            identity: self.identity.clone(),
        }
    }
}

impl<A: Tree<Tensor>, O: Tree<Tensor>> fmt::Debug for CustomOp<A, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |there: bool, what: &'static str| there.then_some(what);
        let parts = [
            has(self.body.is_some(), "a body"),
            has(self.cpu.is_some(), "a CPU function"),
            has(self.wgsl.is_some(), "a WGSL kernel"),
            has(self.cuda.is_some(), "a CUDA kernel"),
            has(self.gradient.is_some(), "a gradient rule"),
        ];
        let parts: Vec<&str> = parts.into_iter().flatten().collect();
        write!(
            f,
            "custom op `{}` with {}",
            self.name,
            if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
        )
    }
}

/// The arguments of an op without their tensors.
type Template<A> = With<A, Tensor, Hole>;

/// A tree of `leaves` in the places of a template's.
fn filled<A: Tree<Tensor>, L: kiln_ir::Leaf>(template: &Template<A>, leaves: Vec<L>) -> With<A, Tensor, L> {
    template.with_leaves(leaves).expect("an op has as many operands as its arguments have leaves")
}

/// Results made of `leaves`.
fn results<O, L>(leaves: impl IntoIterator<Item = L>) -> With<O, Tensor, L>
where
    O: Tree<Tensor, Family: Fixed>,
    L: kiln_ir::Leaf,
{
    let mut leaves = leaves.into_iter();
    <O::Family as Fixed>::fill(&mut || leaves.next().expect("an op has as many results as its type says"))
}
