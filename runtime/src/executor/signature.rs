//! What a compiled graph takes and gives, and the check of arguments against it.

use std::sync::Arc;

use kiln_ir::{Code, Diagnostic, Diagnostics, Result, TensorType};

use super::Argument;
use crate::Device;

/// Names and types of arguments and results.
#[derive(Debug)]
pub(super) struct Signature {
    pub(super) inputs: Vec<(Arc<str>, TensorType)>,
    pub(super) outputs: Vec<(Arc<str>, TensorType)>,
}

impl Signature {
    pub(super) fn new(inputs: Vec<(Arc<str>, TensorType)>, outputs: Vec<(Arc<str>, TensorType)>) -> Signature {
        Signature { inputs, outputs }
    }

    /// All that is wrong with the arguments.
    pub(super) fn check(&self, arguments: &[Argument], device: &Device) -> Result<()> {
        if arguments.len() != self.inputs.len() {
            let names: Vec<&str> = self.inputs.iter().map(|(name, _)| &**name).collect();
            let message = format!("expected {} arguments, got {}", self.inputs.len(), arguments.len());
            return Err(Diagnostic::new(Code::K0701, message).help(format!("they are: {}", names.join(", "))).into());
        }
        let pairs = self.inputs.iter().zip(arguments);
        let wrong = pairs.filter_map(|((name, ty), argument)| check_one(name, ty, argument, device)).collect();
        Diagnostics::from_list(wrong).map_or(Ok(()), Err)
    }
}

fn check_one(name: &str, expected: &TensorType, argument: &Argument, device: &Device) -> Option<Diagnostic> {
    let array = argument.array();
    if array.is_lost() {
        let message = format!("argument `{name}`: state was lost in a device fault");
        return Some(Diagnostic::new(Code::K0703, message).help("load a checkpoint, or make the state anew"));
    }
    // Beside a GPU there is only one CPU.
    let (wanted, found) = (expected.backend, array.device());
    let there = if wanted == device.backend() { found == device } else { found.backend() == wanted };
    if !there {
        let wanted = if wanted == device.backend() { device.to_string() } else { wanted.keyword().to_owned() };
        let message = format!("argument `{name}`: expected an array on device {wanted}, got one on {found}");
        return Some(Diagnostic::new(Code::K0701, message).help("move it with `.to_device(&device)`"));
    }
    if array.ty() != expected {
        let message = format!("argument `{name}`: expected {expected}, got {}", array.ty());
        return Some(Diagnostic::new(Code::K0701, message));
    }
    None
}
