//! `#[derive(Named)]` gives a type its name.
use proc_macro::{TokenStream, TokenTree};

#[proc_macro_derive(Named)]
pub fn named(input: TokenStream) -> TokenStream {
    let mut words = input.into_iter().filter_map(|token| match token {
        TokenTree::Ident(word) => Some(word.to_string()),
        _ => None,
    });
    let name = words.by_ref().skip_while(|word| word != "struct").nth(1).expect("a struct");
    format!("impl {name} {{ fn name() -> &'static str {{ {name:?} }} }}").parse().unwrap()
}
