//! What custom ops do: the functions and texts behind [`Op::Custom`](crate::Op::Custom), which is plain data.
//!
//! A graph only names a custom op. A [`CustomOps`] holds the behaviour of those that one program uses: a function for the CPU, texts for
//! GPUs, a gradient rule. It is a value like any other: a capture collects it, whoever compiles or runs the graph is given it, and nothing
//! of it is global. Two programs may use one name for different ops; one program may not (K0107).
//!
//! - `view`: what a CPU function sees of its tensors;
//! - `text`: kernels as WGSL and CUDA texts, and what can be said about them without a compiler;
//! - this file: the set, and who can run what.

mod text;
mod view;

use std::any::TypeId;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

pub use text::{CudaKernel, KernelText, WgslKernel, check};
pub use view::{Number, View, ViewMut, WrongElement};

use crate::{Attribute, Backend, Code, Custom, Diagnostic, Graph, TensorType};

/// What a kernel's function gives: nothing, or why it could not compute. Any error fits, a text too (`Err("...".into())`).
pub type KernelResult = Result<(), Box<dyn Error + Send + Sync>>;

/// A function that computes a custom op on the CPU: operands in, results to be written, in the order of the node.
///
/// Results come zeroed. The function may be called from any thread.
pub type CpuFunction = Arc<dyn for<'a> Fn(Vec<View<'a>>, Vec<ViewMut<'a>>) -> KernelResult + Send + Sync>;

/// Makes a kernel's text for operands and results of these types.
pub type TextFunction<K> = Arc<dyn Fn(&[TensorType], &[TensorType]) -> K + Send + Sync>;

/// Records a custom op's gradient for operands and results of these types.
pub type GradientFunction = Arc<dyn Fn(&[TensorType], &[TensorType]) -> crate::Result<GradientRule> + Send + Sync>;

/// The gradient of a custom op on operands of certain types, as a graph.
///
/// Its inputs are the operands, then the results, then the gradients that arrive at the results; its outputs are gradients of operands.
#[derive(Clone, Debug)]
pub struct GradientRule {
    /// The graph.
    pub graph: Arc<Graph>,
    /// Which operand each output is the gradient of.
    pub operands: Vec<usize>,
    /// The custom ops that the graph uses in turn.
    pub customs: CustomOps,
}

/// What tells one declaration of a custom op from another: the functions it was declared with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity(Vec<(TypeId, usize)>);

impl Identity {
    /// Adds a function. One that captures nothing is the same wherever its line is run again; one that does is itself only.
    pub fn with<F: ?Sized, T: 'static>(mut self, function: &Arc<F>) -> Identity {
        let address = if size_of::<T>() == 0 { 0 } else { Arc::as_ptr(function).cast::<()>() as usize };
        self.0.push((TypeId::of::<T>(), address));
        self
    }
}

/// The behaviour of one custom op with certain attributes.
#[derive(Clone)]
pub struct CustomBehaviour {
    /// The op's name.
    pub name: Arc<str>,
    /// Its attributes, which the functions below were made for.
    pub attributes: Vec<(Arc<str>, Attribute)>,
    /// Computes it on the CPU.
    pub cpu: Option<CpuFunction>,
    /// Its kernel for wgpu.
    pub wgsl: Option<TextFunction<WgslKernel>>,
    /// Its kernel for CUDA.
    pub cuda: Option<TextFunction<CudaKernel>>,
    /// Its gradient.
    pub gradient: Option<GradientFunction>,
    /// How far a kernel's result may be from the body's, as a part of the largest element; `None` for what the dtype suggests.
    pub tolerance: Option<f64>,
    /// Tells it from other ops of its name.
    pub identity: Identity,
}

impl CustomBehaviour {
    /// Whether it has a kernel for a backend. The reference interpreter runs the CPU function.
    pub fn runs_on(&self, backend: Backend) -> bool {
        match backend {
            Backend::NdArray | Backend::Cpu => self.cpu.is_some(),
            Backend::Wgpu => self.wgsl.is_some(),
            Backend::Cuda => self.cuda.is_some(),
        }
    }

    /// The backends that it has a kernel for.
    pub fn backends(&self) -> Vec<Backend> {
        Backend::ALL.into_iter().filter(|&backend| self.runs_on(backend)).collect()
    }
}

impl fmt::Debug for CustomBehaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomBehaviour")
            .field("name", &self.name)
            .field("attributes", &self.attributes)
            .field("backends", &self.backends())
            .finish_non_exhaustive()
    }
}

/// The custom ops that a program uses. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CustomOps {
    known: Arc<Vec<Arc<CustomBehaviour>>>,
}

impl CustomOps {
    /// None.
    pub fn new() -> CustomOps {
        CustomOps::default()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// All of them, in the order in which they were first used.
    pub fn iter(&self) -> impl Iterator<Item = &CustomBehaviour> {
        self.known.iter().map(|behaviour| &**behaviour)
    }

    /// The behaviour of an op of this name and these attributes.
    pub fn find(&self, name: &str, attributes: &[(Arc<str>, Attribute)]) -> Option<&CustomBehaviour> {
        self.iter().find(|behaviour| *behaviour.name == *name && behaviour.attributes == attributes)
    }

    /// The behaviour of the op that a node names.
    pub fn of(&self, custom: &Custom) -> Option<&CustomBehaviour> {
        self.find(&custom.name, &custom.attributes)
    }

    /// Whether a node's op has a kernel for a backend.
    pub fn run_on(&self, custom: &Custom, backend: Backend) -> bool {
        self.of(custom).is_some_and(|behaviour| behaviour.runs_on(backend))
    }

    /// Adds an op. K0107 where another op has its name.
    pub fn add(&mut self, behaviour: CustomBehaviour) -> Result<(), Diagnostic> {
        let namesake = |known: &CustomBehaviour| known.name == behaviour.name && known.identity != behaviour.identity;
        if self.iter().any(namesake) {
            let message = format!("duplicate graph custom op {}", behaviour.name);
            return Err(Diagnostic::new(Code::K0107, message)
                .in_op(&*behaviour.name)
                .label("another op of this name is used in the same program")
                .help("declare the op once and clone it (clones are the same op), or give one of them another name"));
        }
        if self.find(&behaviour.name, &behaviour.attributes).is_none() {
            Arc::make_mut(&mut self.known).push(Arc::new(behaviour));
        }
        Ok(())
    }

    /// Adds all of another set. K0107 where one of them has the name of another op.
    pub fn join(&mut self, other: &CustomOps) -> Result<(), Diagnostic> {
        other.iter().try_for_each(|behaviour| self.add(behaviour.clone()))
    }
}

/// K0209: an op that a backend cannot run, with what could.
pub fn unsupported(custom: &Custom, backend: Backend, customs: &CustomOps) -> Diagnostic {
    let kernels = customs.of(custom).map(CustomBehaviour::backends).unwrap_or_default();
    let names: Vec<&str> = kernels.iter().map(|backend| backend.name()).collect();
    let help = match (customs.of(custom), names.is_empty()) {
        (None, _) => "nothing is known of this op but its name: pass the `CustomOps` that declares it".to_owned(),
        (Some(_), true) => "it has no kernels at all".to_owned(),
        (Some(_), false) => format!("it has kernels for {}", names.join(", ")),
    };
    Diagnostic::new(Code::K0209, format!("Backend not supported for custom op `{}`", custom.name))
        .in_op(&*custom.name)
        .label(format!("it has no kernel for {backend}, and no body"))
        .help(help)
        .help("give it a body in tensor ops, which every backend runs, or a kernel for this backend")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behaviour(name: &str, identity: Identity) -> CustomBehaviour {
        CustomBehaviour {
            name: name.into(),
            attributes: Vec::new(),
            cpu: None,
            wgsl: None,
            cuda: None,
            gradient: None,
            tolerance: None,
            identity,
        }
    }

    fn identity_of<F: Fn() + 'static>(function: F) -> Identity {
        Identity::default().with::<F, F>(&Arc::new(function))
    }

    #[test]
    fn a_declaration_that_runs_twice_is_one_op() {
        let declare = || behaviour("twice", identity_of(|| {}));
        let mut customs = CustomOps::new();
        assert!(customs.add(declare()).is_ok() && customs.add(declare()).is_ok());
        assert_eq!(customs.iter().count(), 1);
    }

    #[test]
    fn two_ops_of_one_name_are_a_mistake() {
        let mut customs = CustomOps::new();
        customs.add(behaviour("twice", identity_of(|| {}))).unwrap();
        let error = customs.add(behaviour("twice", identity_of(|| {}))).unwrap_err();
        assert_eq!(error.code, Code::K0107);
        let captured = 3;
        let capturing = |op: &str| behaviour(op, identity_of(move || assert!(captured == 3)));
        let (first, second) = (capturing("thrice"), capturing("thrice"));
        customs.add(first.clone()).unwrap();
        assert!(customs.add(first).is_ok());
        assert_eq!(customs.add(second).unwrap_err().code, Code::K0107);
    }
}
