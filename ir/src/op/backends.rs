//! One backend for all operands: who is elsewhere, and who is blamed.
//!
//! The check looks at all operands at once. The backend that most of them share is the expected one and the others are *strays*, whichever
//! came first. Where no backend has the most, nobody is blamed and all operands are told.

use smallvec::SmallVec;

use super::Op;
use crate::{Backend, Code, Diagnostic, TensorType};

/// Operands that are not where the others are: what [`strays`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strays {
    /// The backend of most operands; that of the first one where no backend has the most.
    pub expected: Backend,
    /// Places of the operands that are elsewhere, ascending; never empty.
    pub places: SmallVec<[usize; 4]>,
    /// Whether more operands are on the expected backend than on any other.
    pub standing: Standing,
}

/// Whether backends have a majority among the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// More operands are on the expected backend than on any other: the strays are to blame.
    Majority,
    /// No backend has the most operands.
    Tie,
}

/// The operands that are elsewhere than most, by their backends; `None` where all share one.
///
/// ```
/// use kiln_ir::{strays, Backend::{Cpu, Cuda, Wgpu}, Standing};
/// assert_eq!(strays(&[Cpu, Cpu]), None);
/// let found = strays(&[Wgpu, Cpu, Cpu]).unwrap();
/// assert_eq!((found.expected, &found.places[..], found.standing), (Cpu, &[0][..], Standing::Majority));
/// let found = strays(&[Wgpu, Cpu, Cuda]).unwrap();
/// assert_eq!((found.expected, &found.places[..], found.standing), (Wgpu, &[1, 2][..], Standing::Tie));
/// ```
pub fn strays(backends: &[Backend]) -> Option<Strays> {
    let &first = backends.first()?;
    if backends.iter().all(|&backend| backend == first) {
        return None;
    }
    let count = |backend: Backend| backends.iter().filter(|&&other| other == backend).count();
    let most = Backend::ALL.into_iter().map(count).max().unwrap_or(0);
    let mut leading = Backend::ALL.into_iter().filter(|&backend| count(backend) == most);
    let (expected, standing) = match (leading.next(), leading.next()) {
        (Some(leader), None) => (leader, Standing::Majority),
        _ => (first, Standing::Tie),
    };
    let places = (0..backends.len()).filter(|&place| backends[place] != expected).collect();
    Some(Strays { expected, places, standing })
}

impl Strays {
    /// What the caret says: the strays of an op, or all operands where nobody is to blame. `roles` names the operands.
    pub fn label(&self, op: &str, roles: &[String], backends: &[Backend]) -> String {
        let told: Vec<usize> = match self.standing {
            Standing::Majority => self.places.to_vec(),
            Standing::Tie => (0..backends.len()).collect(),
        };
        let told = told.into_iter().map(|place| (&roles[place], backends[place])).enumerate();
        let told: Vec<String> =
            told.map(|(index, (role, backend))| {
                if index == 0 { format!("{role} of `{op}` is on {backend}") } else { format!("{role} on {backend}") }
            })
            .collect();
        told.join(", ")
    }

    /// The way out.
    pub fn help(&self) -> String {
        let which = match (self.standing, self.places.len()) {
            (Standing::Majority, 1) => "it",
            (Standing::Majority, _) => "each of them",
            (Standing::Tie, 1) => "one",
            (Standing::Tie, _) => "the others",
        };
        format!("move {which} with `.to(Backend::{})`; it is the only op that crosses backends", self.expected)
    }

    /// K0201: operands that have no names, on different backends.
    pub fn of_operands(&self, op: &str, roles: &[String], backends: &[Backend]) -> Diagnostic {
        let first = backends[0];
        let (a, b) = match self.standing {
            Standing::Majority => (self.expected, backends[self.places[0]]),
            Standing::Tie => (first, backends.iter().copied().find(|&backend| backend != first).unwrap_or(first)),
        };
        let message = format!("The provided tensors are not on the same backend. Got backends {a} and {b}.");
        let label = match backends.len() {
            2 => format!("inputs of `{op}` are on different backends"),
            _ => self.label(op, roles, backends),
        };
        Diagnostic::new(Code::K0201, message).label(label).help(self.help())
    }

    /// K0204: an operand of a custom op, which knows it by name.
    fn of_custom(&self, op: &str, roles: &[String], backends: &[Backend]) -> Diagnostic {
        let message = format!("input tensor `{}` is on the wrong backend", roles[self.places[0]]);
        Diagnostic::new(Code::K0204, message).label(self.label(op, roles, backends)).help(self.help())
    }

    /// K0202: elements of a list on another backend than the rest.
    pub fn of_elements(&self, op: &str, roles: &[String], backends: &[Backend]) -> Diagnostic {
        Diagnostic::new(Code::K0202, format!("Tensor is on the wrong backend (expected {}).", self.expected))
            .label(self.label(op, roles, backends))
            .help(self.help())
    }
}

/// All operands of an op share one backend; else K0202 for ops of lists, K0204 for custom ops and K0201 for the others.
pub(super) fn one_backend(op: &Op, operands: &[&TensorType]) -> Result<(), Diagnostic> {
    let backends: SmallVec<[Backend; 4]> = operands.iter().map(|ty| ty.backend).collect();
    let Some(strays) = strays(&backends) else { return Ok(()) };
    let roles: Vec<String> = (0..operands.len()).map(|place| op.role(place, operands.len())).collect();
    Err(if matches!(op, Op::Concat { .. }) {
        strays.of_elements(&op.name(), &roles, &backends)
    } else if let Op::Custom(custom) = op {
        strays.of_custom(&custom.name, &roles, &backends)
    } else {
        strays.of_operands(&op.name(), &roles, &backends)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, ScalarOp, infer};
    use Backend::{Cpu, Cuda, NdArray, Wgpu};

    fn label(op: &Op, backends: &[Backend]) -> (String, String) {
        let types: Vec<TensorType> =
            backends.iter().map(|&backend| TensorType::new(DType::F32, [2], backend)).collect();
        let types: Vec<&TensorType> = types.iter().collect();
        let diagnostic = infer(op, &types).expect_err("backends differ");
        (diagnostic.message, diagnostic.label.expect("it says who"))
    }

    #[test]
    fn the_minority_is_blamed_wherever_it_stands() {
        for (backends, stray) in [([Wgpu, Cpu, Cpu], "input"), ([Cpu, Wgpu, Cpu], "low"), ([Cpu, Cpu, Wgpu], "high")] {
            let (message, label) = label(&Op::Scalar(ScalarOp::Clamp), &backends);
            assert!(message.ends_with("Got backends Cpu and Wgpu."), "{message}");
            assert_eq!(label, format!("{stray} of `clamp` is on Wgpu"));
        }
    }

    #[test]
    fn all_are_listed_where_no_backend_has_the_most() {
        let (message, label) = label(&Op::Scalar(ScalarOp::Clamp), &[Wgpu, Cpu, NdArray]);
        assert!(message.ends_with("Got backends Wgpu and Cpu."), "{message}");
        assert_eq!(label, "input of `clamp` is on Wgpu, low on Cpu, high on NdArray");
    }

    #[test]
    fn every_stray_of_a_list_is_told() {
        let (message, label) = label(&Op::Concat { axis: 0 }, &[Cuda, Cpu, Cpu, Wgpu]);
        assert_eq!(message, "Tensor is on the wrong backend (expected Cpu).");
        assert_eq!(label, "element 0 of `concat` is on Cuda, element 3 on Wgpu");
    }
}
