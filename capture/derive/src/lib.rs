//! `#[derive(Tree)]`: a user's struct or enum becomes a tree of tensors. `#[derive(ExtensionType)]`: a struct becomes an argument of custom ops,
//! which is a tree with named fields.
//!
//! In: the item. Out: impls of `Family`, `HasLeaf` and `Tree` from `kiln_ir::tree`. `input` reads the
//! item and refuses what cannot be a tree, at the place where it stands; `expand` writes the impls; `extension` is what
//! arguments of custom ops must be besides.
//! What a field's type must be is left to the compiler, whose errors point at the field.

mod expand;
mod extension;
mod input;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Makes a struct or an enum a tree, the value whose leaves are tensors.
///
/// Every type parameter stands for a tree, a tensor being the smallest, and every field is a tree in
/// turn: a tensor, a part of the model, a container of either, or plain data such as `eps` below. The
/// values of plain data are part of the tree's structure, so a compiled step is captured anew for
/// each. Fields keep their order; in an enum the variant taken is part of the structure.
///
/// ```
/// use kiln_ir::tree::Tree;
/// use kiln_derive::Tree;
/// # #[derive(Clone, Debug, PartialEq)] struct Tensor(u32); kiln_ir::leaf!(Tensor);
/// # #[derive(Clone, Debug, PartialEq)] struct Array(f32); kiln_ir::leaf!(Array);
///
/// #[derive(Tree)]
/// # #[tree(crate = "kiln_ir")]
/// struct Norm<T> {
///     weight: T,
///     bias: Option<T>,
///     eps: f32,
/// }
///
/// #[derive(Tree)]
/// # #[tree(crate = "kiln_ir")]
/// struct Model<T> {
///     norms: Vec<Norm<T>>,
/// }
///
/// let model = Model {
///     norms: vec![Norm { weight: Array(1.0), bias: None, eps: 1e-5 }],
/// };
/// assert_eq!(model.names(), ["norms.0.weight"]);
/// assert_eq!(
///     model.structure().to_string(),
///     "Model { norms: [Norm { weight: *, bias: None, eps: 1e-5 }] }",
/// );
/// let captured: Model<Tensor> = model.map(|_| Tensor(7));
/// assert_eq!(captured.norms[0].weight, Tensor(7));
/// ```
///
/// # A tree beside leaves
///
/// A container that holds any tree and tensors of its own has a parameter for each; the default
/// spares its users from naming the second.
///
/// ```
/// use kiln_ir::tree::LeafOf;
/// use kiln_derive::Tree;
///
/// #[derive(Tree)]
/// # #[tree(crate = "kiln_ir")]
/// struct Adam<M, T = LeafOf<M>> {
///     m: M,
///     v: M,
///     step: T,
/// }
/// ```
///
/// Bounds on these parameters belong on functions (`impl<M: Tree<Tensor>> Adam<M, Tensor>`), not on
/// the struct: it must exist for every leaf type.
///
/// # Attributes
///
/// - `#[tree(static)]` on a field: data of a type that is no tree, with `Clone`, `Eq`, `Hash`,
///   `Debug`, `Send` and `Sync`. It takes part in the structure like plain data.
/// - `#[tree(static)]` on a type parameter: it stands for no tree. Fields whose types mention it and
///   no tree are static without being marked.
/// - `#[tree(crate = "path")]` on the item: where the module `tree` is found, `::kiln` by default.
#[proc_macro_derive(Tree, attributes(tree))]
pub fn derive_tree(item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as DeriveInput);
    input::read(item).map(|input| expand::expand(&input)).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a struct an argument, or the result, of custom ops.
///
/// The struct is a tree, as by `derive(Tree)`, which is not derived besides. Its fields are the operands of the op, known by their names:
/// tensors, optional tensors, lists of them, structs that derive `ExtensionType` or `Tree` in turn, and plain data, which becomes attributes.
/// A struct whose fields are all tensors (or tuples and arrays of them) can be the result of an op as well.
///
/// ```
/// use kiln_derive::ExtensionType;
/// use kiln_ir::tree::{Fixed, Hole, Tree};
/// # #[derive(Clone, Debug, PartialEq)] struct Tensor(u32); kiln_ir::leaf!(Tensor);
///
/// #[derive(ExtensionType)]
/// # #[tree(crate = "kiln_ir")]
/// struct Attention<T> {
///     query: T,
///     keys: Vec<T>,
///     mask: Option<T>,
///     scale: f32,
/// }
///
/// #[derive(ExtensionType, Debug, PartialEq)]
/// # #[tree(crate = "kiln_ir")]
/// struct Split<T> {
///     low: T,
///     high: T,
/// }
///
/// let call = Attention { query: Tensor(0), keys: vec![Tensor(1)], mask: None, scale: 0.5 };
/// assert_eq!(call.names(), ["query", "keys.0"]);
/// assert_eq!(Split::<Hole>::fill(&mut || Tensor(7)), Split { low: Tensor(7), high: Tensor(7) });
/// ```
///
/// # Attributes
///
/// Those of `derive(Tree)`: `#[tree(static)]` and `#[tree(crate = "path")]`.
#[proc_macro_derive(ExtensionType, attributes(tree))]
pub fn derive_extension_type(item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as DeriveInput);
    let read = extension::check(&item).and_then(|()| input::read(item));
    read.map(|input| extension::expand(&input)).unwrap_or_else(syn::Error::into_compile_error).into()
}
