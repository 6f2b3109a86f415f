//! `#[derive(Module)]`. `dittograd::nn::Module` documents it.

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Field, Fields, Ident, Index, Member, Result};

/// Implements `dittograd::nn::Module` field by field. A field with `#[module(skip)]` is cloned as it is.
#[proc_macro_derive(Module, attributes(module))]
pub fn module(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn expand(input: &DeriveInput) -> Result<TokenStream> {
    if skipped(&input.attrs)? {
        return Err(Error::new(input.ident.span(), "`#[module(skip)]` belongs on a field"));
    }
    // A struct is an enum of one variant.
    let variants: Vec<(TokenStream, &Fields)> = match &input.data {
        Data::Struct(data) => vec![(quote!(Self), &data.fields)],
        Data::Enum(data) => {
            let path = |name: &Ident| quote!(Self::#name);
            data.variants.iter().map(|v| (path(&v.ident), &v.fields)).collect()
        }
        Data::Union(data) => {
            let why = "a union cannot be a module: its active field is unknown; use an enum";
            return Err(Error::new(data.union_token.span(), why));
        }
    };
    let (mut visits, mut copies) = (Vec::new(), Vec::new());
    // The types of fields that are modules, and of those that are cloned.
    let (mut modules, mut clones) = (TokenStream::new(), TokenStream::new());
    for (path, fields) in variants {
        let parts = fields.iter().enumerate().map(Part::new).collect::<Result<Vec<_>>>()?;
        // A tuple of one field is a wrapper and adds nothing to the path.
        let wraps = matches!(fields, Fields::Unnamed(f) if f.unnamed.len() == 1);
        let bound = parts.iter().map(|Part { member, binding, .. }| quote!(#member: ref #binding));
        let pattern = quote!(#path { #(#bound),* });
        let visit = parts.iter().map(|part| part.visit(wraps));
        let copy = parts.iter().map(Part::copy);
        visits.push(quote!(#pattern => { #(#visit)* }));
        copies.push(quote!(#pattern => #path { #(#copy),* }));
        for part in &parts {
            part.field.ty.to_tokens(if part.skip { &mut clones } else { &mut modules });
        }
    }
    let mut generics = input.generics.clone();
    for parameter in generics.type_params_mut() {
        if mentions(modules.clone(), &parameter.ident) {
            parameter.bounds.push(syn::parse_quote!(::dittograd::nn::Module));
        }
        if mentions(clones.clone(), &parameter.ident) {
            parameter.bounds.push(syn::parse_quote!(::core::clone::Clone));
        }
    }
    let (impls, types, wheres) = generics.split_for_impl();
    let name = &input.ident;
    Ok(quote! {
        #[automatically_derived]
        #[allow(unused_variables)]
        impl #impls ::dittograd::nn::Module for #name #types #wheres {
            fn visit(&self, visitor: &mut ::dittograd::nn::Visitor) {
                match *self { #(#visits)* }
            }

            fn in_mode(&self, mode: ::dittograd::nn::Mode) -> Self {
                match *self { #(#copies),* }
            }
        }
    })
}

/// A field, and the variable that it is bound to.
struct Part<'a> {
    field: &'a Field,
    member: Member,
    binding: Ident,
    skip: bool,
}

impl<'a> Part<'a> {
    fn new((i, field): (usize, &'a Field)) -> Result<Part<'a>> {
        let member = match &field.ident {
            Some(name) => Member::Named(name.clone()),
            None => Member::Unnamed(Index::from(i)),
        };
        Ok(Part { field, member, binding: format_ident!("field{i}"), skip: skipped(&field.attrs)? })
    }

    fn visit(&self, wraps: bool) -> TokenStream {
        let (ty, binding) = (&self.field.ty, &self.binding);
        let name = match &self.member {
            Member::Named(name) => name.to_string().trim_start_matches("r#").to_string(),
            Member::Unnamed(index) => index.index.to_string(),
        };
        match (self.skip, wraps) {
            (true, _) => TokenStream::new(),
            (false, true) => {
                quote_spanned!(ty.span()=> <#ty as ::dittograd::nn::Module>::visit(#binding, visitor);)
            }
            (false, false) => quote_spanned!(ty.span()=> visitor.field::<#ty>(#name, #binding);),
        }
    }

    fn copy(&self) -> TokenStream {
        let (ty, member, binding) = (&self.field.ty, &self.member, &self.binding);
        let value = match self.skip {
            true => quote_spanned!(ty.span()=> <#ty as ::core::clone::Clone>::clone(#binding)),
            false => quote_spanned!(ty.span()=> <#ty as ::dittograd::nn::Module>::in_mode(#binding, mode)),
        };
        quote!(#member: #value)
    }
}

/// Whether there is a `#[module(skip)]` among the attributes.
fn skipped(attributes: &[Attribute]) -> Result<bool> {
    let mut skip = false;
    for attribute in attributes.iter().filter(|a| a.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| match meta.path.is_ident("skip") {
            true => {
                skip = true;
                Ok(())
            }
            false => Err(meta.error("the one option is `#[module(skip)]`: the field is cloned as it is")),
        })?;
    }
    Ok(skip)
}

/// Whether a name is among the tokens.
fn mentions(tokens: TokenStream, name: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *name,
        TokenTree::Group(group) => mentions(group.stream(), name),
        _ => false,
    })
}
