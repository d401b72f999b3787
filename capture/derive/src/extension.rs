//! What an argument of a custom op must be besides a tree: a struct with named fields, some of them tensors.
//!
//! Where the number of tensors is known from the type, the struct can be made from tensors, and so be the result of an op.

use proc_macro2::TokenStream;
use quote::quote;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, GenericParam, Result, Type, parse_quote};

use crate::input::{Input, Variant};

/// Refuses what has no named operands.
pub(crate) fn check(item: &DeriveInput) -> Result<()> {
    let fields = match &item.data {
        Data::Struct(data) => &data.fields,
        Data::Enum(data) => {
            let message = "an enum cannot be an argument of a custom op: which operands there are would depend on its variant; take a \
                           struct, with `Option` for what may be missing";
            return Err(Error::new(data.enum_token.span(), message));
        }
        Data::Union(data) => {
            let message = "a union cannot be an argument of a custom op: take a struct";
            return Err(Error::new(data.union_token.span(), message));
        }
    };
    match fields {
        Fields::Named(_) => {}
        Fields::Unnamed(fields) => {
            let message = "the operands of a custom op are known by their names: name the fields";
            return Err(Error::new(fields.span(), message));
        }
        Fields::Unit => {
            let message = "a struct without fields holds no tensors for a custom op";
            return Err(Error::new(item.ident.span(), message));
        }
    }
    let has_parameter = item.generics.params.iter().any(|parameter| matches!(parameter, GenericParam::Type(_)));
    if has_parameter {
        return Ok(());
    }
    let name = &item.ident;
    let message = format!(
        "the struct must hold tickets, types and elements in turn: take the tensors' type as a parameter, `struct {name}<T> {{ weight: T, \
         .. }}`"
    );
    Err(Error::new(name.span(), message))
}

/// The impls of a tree, and of `Fixed` where every field is made of tensors alone.
pub(crate) fn expand(input: &Input) -> TokenStream {
    let tree = crate::expand::expand(input);
    let fixed = fixed(input);
    quote!(#tree #fixed)
}

fn fixed(input: &Input) -> Option<TokenStream> {
    let [Variant { fields, .. }] = input.variants.as_slice() else { return None };
    if !fields.iter().all(|field| is_fixed(input, &field.ty)) {
        return None;
    }
    let (ident, tree) = (&input.ident, &input.tree);
    let mut generics = input.generics.clone();
    let bounds = input.parameters.trees.iter().map(|parameter| parse_quote!(#parameter: #tree::Fixed));
    generics.make_where_clause().predicates.extend::<Vec<syn::WherePredicate>>(bounds.collect());
    let (params, _, clause) = generics.split_for_impl();
    let (_, arguments, _) = input.generics.split_for_impl();
    let filled = fields.iter().map(|field| {
        let (member, ty) = (&field.member, &field.ty);
        quote!(#member: <#ty as #tree::Fixed>::fill(__next))
    });
    Some(quote! {
        #[automatically_derived]
        impl #params #tree::Fixed for #ident #arguments #clause {
            fn fill<AnyLeaf: #tree::Leaf>(
                __next: &mut dyn ::core::ops::FnMut() -> AnyLeaf,
            ) -> <Self as #tree::Family>::Of<AnyLeaf> {
                #ident { #(#filled),* }
            }
        }
    })
}

/// Whether a type is a parameter that stands for a tree, or a tuple or an array of such.
fn is_fixed(input: &Input, ty: &Type) -> bool {
    match ty {
        Type::Path(path) => path.path.get_ident().is_some_and(|ident| input.parameters.trees.contains(ident)),
        Type::Tuple(tuple) => !tuple.elems.is_empty() && tuple.elems.iter().all(|part| is_fixed(input, part)),
        Type::Array(array) => is_fixed(input, &array.elem),
        Type::Paren(inner) => is_fixed(input, &inner.elem),
        _ => false,
    }
}
