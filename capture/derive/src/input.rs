//! Reading the item: which parameters stand for trees and which fields are static.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident};
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DeriveInput, Error, Fields, GenericParam, Generics, Ident, LitStr, Member, Path, Result, Type,
    parse_quote,
};

/// An item that can be a tree.
pub(crate) struct Input {
    pub(crate) ident: Ident,
    /// As written, without the attributes of this derive.
    pub(crate) generics: Generics,
    pub(crate) parameters: Parameters,
    /// The single one of a struct, or those of an enum.
    pub(crate) variants: Vec<Variant>,
    /// The path of the module `tree`.
    pub(crate) tree: Path,
}

/// A struct, or a variant of an enum.
pub(crate) struct Variant {
    /// What follows the item's name: `None` for a struct.
    pub(crate) ident: Option<Ident>,
    pub(crate) style: Style,
    pub(crate) fields: Vec<Field>,
}

/// How a struct or a variant names its fields.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Named,
    Positional,
}

/// A field.
pub(crate) struct Field {
    pub(crate) member: Member,
    /// The local variable that holds it in emitted code.
    pub(crate) binding: Ident,
    pub(crate) ty: Type,
    pub(crate) role: Role,
}

/// What a field is to its tree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A tree in turn.
    Tree,
    /// A value in the structure.
    Static,
}

/// The type parameters, by what they stand for.
#[derive(Default)]
pub(crate) struct Parameters {
    pub(crate) trees: Vec<Ident>,
    pub(crate) statics: Vec<Ident>,
}

/// Reads an item, or says at which place it cannot be a tree.
pub(crate) fn read(item: DeriveInput) -> Result<Input> {
    let variants = read_variants(item.data, &item.ident)?;
    let options = Options::read(&item.attrs)?;
    options.refuse_static("the item: mark a field or a type parameter")?;
    let (generics, parameters) = read_generics(item.generics)?;
    let variants =
        variants.into_iter().map(|(ident, fields)| read_fields(ident, fields, &parameters)).collect::<Result<_>>()?;
    Ok(Input {
        ident: item.ident,
        generics,
        parameters,
        variants,
        tree: options.tree.unwrap_or_else(|| parse_quote!(::kiln::tree)),
    })
}

fn read_variants(data: Data, item: &Ident) -> Result<Vec<(Option<Ident>, Fields)>> {
    match data {
        Data::Struct(data) => Ok(vec![(None, data.fields)]),
        Data::Enum(data) if data.variants.is_empty() => {
            let message = "an enum without variants has no values to be trees";
            Err(Error::new(item.span(), message))
        }
        Data::Enum(data) => {
            let variants = data.variants.into_iter();
            Ok(variants.map(|variant| (Some(variant.ident), variant.fields)).collect())
        }
        Data::Union(data) => {
            let message = "a union cannot be a tree: it does not say which of its fields is there";
            Err(Error::new(data.union_token.span(), message))
        }
    }
}

/// Splits the type parameters into those that stand for trees and the static ones.
fn read_generics(mut generics: Generics) -> Result<(Generics, Parameters)> {
    let mut parameters = Parameters::default();
    for parameter in &mut generics.params {
        let GenericParam::Type(parameter) = parameter else {
            continue;
        };
        let options = Options::read(&parameter.attrs)?;
        options.refuse_crate()?;
        parameter.attrs.retain(|attribute| !is_ours(attribute));
        if options.static_span.is_some() {
            parameters.statics.push(parameter.ident.clone());
            continue;
        }
        if let Some(bound) = parameter.bounds.first() {
            return Err(bound_on_a_tree(bound.span(), &parameter.ident));
        }
        parameters.trees.push(parameter.ident.clone());
    }
    let predicates = generics.where_clause.iter().flat_map(|c| &c.predicates);
    for predicate in predicates {
        if let Some(tree) = first_mentioned(&parameters.trees, predicate) {
            return Err(bound_on_a_tree(predicate.span(), tree));
        }
    }
    Ok((generics, parameters))
}

fn bound_on_a_tree(span: Span, parameter: &Ident) -> Error {
    let message = format!(
        "`{parameter}` stands for a tree of any leaves, so the item cannot bound it: move the bound \
         to the functions that need it, or mark `{parameter}` with `#[tree(static)]`; a leaf beside a \
         tree is a parameter of its own, as in `struct Adam<M, T = LeafOf<M>>`"
    );
    Error::new(span, message)
}

fn read_fields(ident: Option<Ident>, fields: Fields, parameters: &Parameters) -> Result<Variant> {
    let style = match fields {
        Fields::Named(_) => Style::Named,
        Fields::Unnamed(_) | Fields::Unit => Style::Positional,
    };
    let fields = fields.members().collect::<Vec<_>>().into_iter().zip(fields);
    let fields = fields
        .enumerate()
        .map(|(index, (member, field))| {
            Ok(Field {
                member,
                binding: format_ident!("__field{index}"),
                role: read_role(&field, parameters)?,
                ty: field.ty,
            })
        })
        .collect::<Result<_>>()?;
    Ok(Variant { ident, style, fields })
}

fn read_role(field: &syn::Field, parameters: &Parameters) -> Result<Role> {
    let options = Options::read(&field.attrs)?;
    options.refuse_crate()?;
    let tree = first_mentioned(&parameters.trees, &field.ty);
    match (options.static_span, tree) {
        (Some(_), Some(tree)) => {
            Err(Error::new(field.ty.span(), format!("a static field cannot mention `{tree}`, which stands for a tree")))
        }
        (Some(_), None) => Ok(Role::Static),
        (None, None) if first_mentioned(&parameters.statics, &field.ty).is_some() => Ok(Role::Static),
        (None, _) => Ok(Role::Tree),
    }
}

/// The first of `parameters` that occurs in `syntax`.
pub(crate) fn first_mentioned<'a>(parameters: &'a [Ident], syntax: &impl ToTokens) -> Option<&'a Ident> {
    fn mentions(tokens: TokenStream, parameter: &Ident) -> bool {
        tokens.into_iter().any(|token| match token {
            TokenTree::Ident(ident) => ident == *parameter,
            TokenTree::Group(group) => mentions(group.stream(), parameter),
            TokenTree::Punct(_) | TokenTree::Literal(_) => false,
        })
    }
    let tokens = syntax.to_token_stream();
    parameters.iter().find(|parameter| mentions(tokens.clone(), parameter))
}

fn is_ours(attribute: &Attribute) -> bool {
    attribute.path().is_ident("tree")
}

/// What `#[tree(..)]` says at one place.
#[derive(Default)]
struct Options {
    static_span: Option<Span>,
    tree: Option<Path>,
    crate_span: Option<Span>,
}

impl Options {
    fn read(attributes: &[Attribute]) -> Result<Options> {
        let mut options = Options::default();
        for attribute in attributes {
            if !is_ours(attribute) {
                continue;
            }
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("static") {
                    options.static_span = Some(meta.path.span());
                } else if meta.path.is_ident("crate") {
                    let path: Path = meta.value()?.parse::<LitStr>()?.parse()?;
                    options.tree = Some(parse_quote!(#path::tree));
                    options.crate_span = Some(meta.path.span());
                } else {
                    return Err(meta.error("expected `static` or `crate = \"path\"`"));
                }
                Ok(())
            })?;
        }
        Ok(options)
    }

    fn refuse_static(&self, place: &str) -> Result<()> {
        let message = format!("`static` says nothing about {place}");
        self.static_span.map_or(Ok(()), |span| Err(Error::new(span, message)))
    }

    fn refuse_crate(&self) -> Result<()> {
        let message = "`crate` belongs on the item";
        self.crate_span.map_or(Ok(()), |span| Err(Error::new(span, message)))
    }
}
