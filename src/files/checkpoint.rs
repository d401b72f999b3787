//! Trees of arrays in safetensors files: models, and whole training states.
//!
//! Each leaf is one tensor, named as in the tree (`0.hidden.weight`). Plain data of a tree (an `eps`, a flag) is not written: it comes
//! from the tree that [`load`] is shown.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use kiln_ir::tree::Tree;
use kiln_ir::{Code, Diagnostic, HostData, Shape};
use kiln_runtime::{Array, IntoArray};
use safetensors::tensor::{SafeTensors, TensorView, serialize};

use crate::graph_file::{loaded, stored, unreadable, unwritable};
use crate::{Error, Result};

/// The name of the tensor of a tree that is one array.
const LONE: &str = "array";

/// Writes the arrays of a tree. The file is complete or not there: it is written beside and then given its name.
///
/// # Errors
///
/// K1001 where the file cannot be written, K0703 where an array was lost.
///
/// ```
/// use kiln::files::{load, save};
/// use kiln::prelude::*;
/// let device = Device::cpu();
/// let path = std::env::temp_dir().join(format!("kiln-doc-{}.safetensors", std::process::id()));
/// let model = (Array::new(&device, [1.0f32, 2.0])?, Array::new(&device, [[true], [false]])?);
/// save(&path, &model)?;
/// let like = (Array::zeros(&device, DType::F32, [2])?, Array::zeros(&device, DType::Bool, [2, 1])?);
/// let (weights, mask) = load(&path, &like)?;
/// assert_eq!(weights.to_vec::<f32>()?, [1.0, 2.0]);
/// assert_eq!(mask.to_vec::<bool>()?, [true, false]);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn save<M: Tree<Array>>(path: impl AsRef<Path>, tree: &M) -> Result<()> {
    let path = path.as_ref();
    let hosts = tree.leaves().into_iter().map(Array::to_host).collect::<std::result::Result<Vec<HostData>, _>>()?;
    let views = hosts.iter().map(|host| {
        TensorView::new(stored(host.dtype()), host.shape().to_vec(), host.bytes())
            .expect("the bytes of a tensor fit its shape")
    });
    let tensors: Vec<(String, TensorView<'_>)> = names(tree).into_iter().zip(views).collect();
    let failed = |error: &dyn std::fmt::Display| -> Error {
        Diagnostic::new(Code::K1001, format!("cannot write {}: {error}", path.display())).into()
    };
    let bytes = serialize(tensors, None).map_err(|error| failed(&error))?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    fs::write(&beside, bytes).map_err(|error| unwritable(Path::new(&beside), &error))?;
    fs::rename(&beside, path).map_err(|error| failed(&error))
}

/// Reads the arrays of a tree onto the devices of `like`, whose structure, shapes and element types the file must have.
///
/// # Errors
///
/// K1001 where the file cannot be read, K1002 where it is no safetensors file, K1003 for every leaf that is missing or of another type
/// and every tensor that belongs to no leaf, K0704 where there is no memory.
pub fn load<M: Tree<Array>>(path: impl AsRef<Path>, like: &M) -> Result<M> {
    let path = path.as_ref();
    let bytes = fs::read(path).map_err(|error| unreadable(path, &error))?;
    let tensors = SafeTensors::deserialize(&bytes)
        .map_err(|error| Diagnostic::new(Code::K1002, format!("{} is no safetensors file: {error}", path.display())))?;
    let mut found: HashMap<String, TensorView<'_>> = tensors.tensors().into_iter().collect();
    let (mut arrays, mut wrong) = (Vec::new(), Vec::new());
    for (name, leaf) in names(like).into_iter().zip(like.leaves()) {
        match found
            .remove(&name)
            .ok_or_else(|| format!("`{name}` is missing"))
            .and_then(|view| host(&name, &view, leaf))
        {
            Ok(host) => arrays.push(host.into_array(leaf.device())?),
            Err(why) => wrong.push(why),
        }
    }
    let mut surplus: Vec<String> = found.into_keys().map(|name| format!("`{name}` belongs to no leaf")).collect();
    surplus.sort_unstable();
    wrong.extend(surplus);
    let wrong = wrong
        .into_iter()
        .map(|why| Diagnostic::new(Code::K1003, format!("trees differ in structure: {}: {why}", path.display())));
    match kiln_ir::Diagnostics::from_list(wrong.collect()) {
        Some(diagnostics) => Err(diagnostics.into()),
        None => Ok(like.with_leaves(arrays)?),
    }
}

fn host(name: &str, view: &TensorView<'_>, leaf: &Array) -> std::result::Result<HostData, String> {
    let shape = Shape::from(view.shape());
    let dtype = loaded(view.dtype()).filter(|&dtype| dtype == leaf.dtype() && shape == *leaf.shape());
    let data = dtype.and_then(|dtype| HostData::new(dtype, shape.clone(), view.data()));
    data.ok_or_else(|| format!("`{name}` is {:?}{shape}, expected {}{}", view.dtype(), leaf.dtype(), leaf.shape()))
}

fn names<M: Tree<Array>>(tree: &M) -> Vec<String> {
    let named = |name: String| if name.is_empty() { LONE.to_owned() } else { name };
    tree.names().into_iter().map(named).collect()
}
