//! Writing the impls of `Family`, `HasLeaf` and `Tree`.
//!
//! Every method is one `match` over the variants, with one expression per field. Calls name the
//! field's type at the field's place, so that a type that is no tree is reported there.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{GenericParam, Generics, Ident, Member, WherePredicate, parse_quote, parse_quote_spanned};

use crate::input::{Field, Input, Role, Style, Variant, first_mentioned};

/// The impls that make the item a tree.
pub(crate) fn expand(input: &Input) -> TokenStream {
    let family = family(input);
    let has_leaf = has_leaf(input);
    let tree = tree(input);
    quote! {
        const _: () = {
            #family
            #has_leaf
            #tree
        };
    }
}

fn family(input: &Input) -> TokenStream {
    let Input { ident, tree, .. } = input;
    let bounds = input.parameters.trees.iter().map(|p| parse_quote!(#p: #tree::Family));
    let generics = with_bounds(input, bounds.collect());
    let (params, _, clause) = generics.split_for_impl();
    let (_, arguments, _) = input.generics.split_for_impl();
    let member = arguments_with(input, |p| quote!(<#p as #tree::Family>::Of<AnyLeaf>));
    quote! {
        #[automatically_derived]
        impl #params #tree::Family for #ident #arguments #clause {
            type Of<AnyLeaf: #tree::Leaf> = #ident #member;
        }
    }
}

/// A struct's leaf type is that of its first tree; one without trees has none.
fn has_leaf(input: &Input) -> Option<TokenStream> {
    let Input { ident, tree, .. } = input;
    let first = input.parameters.trees.first()?;
    let generics = with_bounds(input, vec![parse_quote!(#first: #tree::HasLeaf)]);
    let (params, _, clause) = generics.split_for_impl();
    let (_, arguments, _) = input.generics.split_for_impl();
    Some(quote! {
        #[automatically_derived]
        impl #params #tree::HasLeaf for #ident #arguments #clause {
            type Leaf = <#first as #tree::HasLeaf>::Leaf;
        }
    })
}

fn tree(input: &Input) -> TokenStream {
    let Input { ident, tree, .. } = input;
    let bounds = input.parameters.trees.iter().map(|p| parse_quote!(#p: #tree::Tree<AnyLeaf>));
    let mut generics = with_bounds(input, bounds.collect());
    generics.params.push(parse_quote!(AnyLeaf: #tree::Leaf));
    let (params, _, clause) = generics.split_for_impl();
    let (_, arguments, _) = input.generics.split_for_impl();
    let family = arguments_with(input, |p| quote!(<#p as #tree::Tree<AnyLeaf>>::Family));
    let describe = each(input, describe_variant);
    let visit = each(input, |input, variant| visit_variant(input, variant, "visit"));
    let visit_mut = each(input, |input, variant| visit_variant(input, variant, "visit_mut"));
    let try_map = each(input, |input, variant| map_variant(input, variant, Hold::Owned));
    let try_map_ref = each(input, |input, variant| map_variant(input, variant, Hold::Borrowed));
    quote! {
        #[automatically_derived]
        impl #params #tree::Tree<AnyLeaf> for #ident #arguments #clause {
            type Family = #ident #family;

            fn describe(&self, __structure: &mut #tree::Structure) {
                match self { #(#describe)* }
            }

            fn visit<'__a>(
                &'__a self,
                __visit: &mut dyn ::core::ops::FnMut(&'__a AnyLeaf),
            ) {
                match self { #(#visit)* }
            }

            fn visit_mut<'__a>(
                &'__a mut self,
                __visit: &mut dyn ::core::ops::FnMut(&'__a mut AnyLeaf),
            ) {
                match self { #(#visit_mut)* }
            }

            fn try_map<__Other: #tree::Leaf, __Error>(
                self,
                __map: &mut dyn ::core::ops::FnMut(
                    AnyLeaf,
                ) -> ::core::result::Result<__Other, __Error>,
            ) -> ::core::result::Result<#tree::With<Self, AnyLeaf, __Other>, __Error> {
                ::core::result::Result::Ok(match self { #(#try_map)* })
            }

            fn try_map_ref<__Other: #tree::Leaf, __Error>(
                &self,
                __map: &mut dyn ::core::ops::FnMut(
                    &AnyLeaf,
                ) -> ::core::result::Result<__Other, __Error>,
            ) -> ::core::result::Result<#tree::With<Self, AnyLeaf, __Other>, __Error> {
                ::core::result::Result::Ok(match self { #(#try_map_ref)* })
            }
        }
    }
}

/// The item's generics with `bounds` on its trees, and with what its generic static fields need.
fn with_bounds(input: &Input, bounds: Vec<WherePredicate>) -> Generics {
    let mut generics = input.generics.clone();
    let fields = input.variants.iter().flat_map(|variant| &variant.fields);
    let statics = fields.filter(|field| is_static_generic(input, field));
    let needs: Vec<WherePredicate> = statics.map(|field| static_bound(input, field)).collect();
    let clause = generics.make_where_clause();
    clause.predicates.extend(bounds);
    clause.predicates.extend(needs);
    generics
}

/// Other static fields are checked where they are used, which gives errors at the field.
fn is_static_generic(input: &Input, field: &Field) -> bool {
    let generic = first_mentioned(&input.parameters.statics, &field.ty).is_some();
    field.role == Role::Static && generic
}

fn static_bound(input: &Input, field: &Field) -> WherePredicate {
    let (tree, ty) = (&input.tree, &field.ty);
    parse_quote_spanned!(ty.span()=> #ty: #tree::StaticValue + ::core::clone::Clone)
}

/// The item's arguments, with `tree` of every parameter that stands for a tree in its place.
fn arguments_with(input: &Input, tree: impl Fn(&Ident) -> TokenStream) -> TokenStream {
    let arguments = input.generics.params.iter().map(|parameter| match parameter {
        GenericParam::Type(parameter) if input.parameters.trees.contains(&parameter.ident) => tree(&parameter.ident),
        GenericParam::Type(parameter) => parameter.ident.to_token_stream(),
        GenericParam::Const(parameter) => parameter.ident.to_token_stream(),
        GenericParam::Lifetime(parameter) => parameter.lifetime.to_token_stream(),
    });
    quote!(<#(#arguments),*>)
}

fn each(input: &Input, arm: impl Fn(&Input, &Variant) -> TokenStream) -> Vec<TokenStream> {
    let arms = input.variants.iter();
    arms.map(|variant| arm(input, variant)).collect()
}

/// `Name::Variant { field: binding, .. }`, of the fields that `keep` keeps.
fn pattern(input: &Input, variant: &Variant, keep: impl Fn(&Field) -> bool) -> TokenStream {
    let path = path(input, variant);
    let fields = variant.fields.iter().filter(|field| keep(field));
    let fields = fields.map(|Field { member, binding, .. }| quote!(#member: #binding));
    quote!(#path { #(#fields,)* .. })
}

fn path(input: &Input, variant: &Variant) -> TokenStream {
    let ident = &input.ident;
    let variant = variant.ident.iter();
    quote!(#ident #(::#variant)*)
}

fn describe_variant(input: &Input, variant: &Variant) -> TokenStream {
    let pattern = pattern(input, variant, |_| true);
    let name = match &variant.ident {
        Some(variant) => format!("{}::{variant}", input.ident),
        None => input.ident.to_string(),
    };
    let count = variant.fields.len();
    let head = match variant.style {
        Style::Named => quote!(__structure.record(#name, #count);),
        Style::Positional => quote!(__structure.tuple_record(#name, #count);),
    };
    let fields = variant.fields.iter().map(|field| describe_field(input, field));
    quote!(#pattern => { #head #(#fields)* })
}

fn describe_field(input: &Input, field: &Field) -> TokenStream {
    let tree = &input.tree;
    let Field { binding, ty, .. } = field;
    let name = match &field.member {
        Member::Named(name) => {
            let name = syn::ext::IdentExt::unraw(name).to_string();
            Some(quote!(__structure.field(#name);))
        }
        Member::Unnamed(_) => None,
    };
    let value = match field.role {
        Role::Tree => quote_spanned! { ty.span()=>
            <#ty as #tree::Tree<AnyLeaf>>::describe(#binding, __structure);
        },
        Role::Static => quote_spanned! { ty.span()=>
            __structure.plain(#tree::Plain::value::<#ty>(#binding));
        },
    };
    quote!(#name #value)
}

fn visit_variant(input: &Input, variant: &Variant, method: &str) -> TokenStream {
    let tree = &input.tree;
    let is_tree = |field: &Field| field.role == Role::Tree;
    let pattern = pattern(input, variant, is_tree);
    let fields = variant.fields.iter().filter(|field| is_tree(field));
    let fields = fields.map(|Field { binding, ty, .. }| {
        let method = Ident::new(method, ty.span());
        quote_spanned!(ty.span()=> <#ty as #tree::Tree<AnyLeaf>>::#method(#binding, __visit);)
    });
    quote!(#pattern => { #(#fields)* })
}

/// How a mapped tree is held.
#[derive(Clone, Copy)]
enum Hold {
    Owned,
    Borrowed,
}

fn map_variant(input: &Input, variant: &Variant, hold: Hold) -> TokenStream {
    let tree = &input.tree;
    let pattern = pattern(input, variant, |_| true);
    let path = path(input, variant);
    let fields = variant.fields.iter().map(|field| {
        let Field { member, binding, ty, .. } = field;
        let value = match (field.role, hold) {
            (Role::Tree, Hold::Owned) => quote_spanned! { ty.span()=>
                <#ty as #tree::Tree<AnyLeaf>>::try_map(#binding, __map)?
            },
            (Role::Tree, Hold::Borrowed) => quote_spanned! { ty.span()=>
                <#ty as #tree::Tree<AnyLeaf>>::try_map_ref(#binding, __map)?
            },
            (Role::Static, Hold::Owned) => quote!(#binding),
            (Role::Static, Hold::Borrowed) => quote!(::core::clone::Clone::clone(#binding)),
        };
        quote!(#member: #value)
    });
    quote!(#pattern => #path { #(#fields,)* },)
}
