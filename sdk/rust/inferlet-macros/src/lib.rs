//! The attribute `#[inferlet::main]`.

use proc_macro::{Delimiter, Ident, Punct, Spacing, Span, TokenStream, TokenTree};
use proc_macro::{Group, Literal};

/// Makes an `async fn` the inferlet's entry point.
///
/// The function takes nothing or one argument (`inferlet::Args` or `Vec<String>`) and returns
/// what becomes the instance's result: nothing, a text, or a `Result` of either whose error can be
/// displayed.
///
/// ```ignore
/// #[inferlet::main]
/// async fn main(mut args: inferlet::Args) -> inferlet::Result<String> {
///     Ok(format!("Hello, {}!", args.value_from_str::<String>("--name")?))
/// }
/// ```
#[proc_macro_attribute]
pub fn main(attribute: TokenStream, item: TokenStream) -> TokenStream {
    if let Some(token) = attribute.into_iter().next() {
        return error(token.span(), "#[inferlet::main] takes no arguments");
    }
    match entry_point(&item) {
        Ok(entry_point) => item.into_iter().chain(entry_point).collect(),
        Err((span, message)) => error(span, message),
    }
}

/// The exported function `run` of the canonical ABI, which calls the user's function.
fn entry_point(item: &TokenStream) -> Result<TokenStream, (Span, &'static str)> {
    let mut is_async = false;
    let mut tokens = item.clone().into_iter();
    while let Some(token) = tokens.next() {
        let TokenTree::Ident(word) = &token else { continue };
        match word.to_string().as_str() {
            "async" => is_async = true,
            "fn" if !is_async => return Err((word.span(), "the function must be `async`")),
            "fn" => {
                let (Some(TokenTree::Ident(name)), Some(TokenTree::Group(parameters))) =
                    (tokens.next(), tokens.next())
                else {
                    return Err((word.span(), "the function can't be generic"));
                };
                let main = match parameters.stream().is_empty() {
                    true => format!("|_: ::std::vec::Vec<::std::string::String>| {name}()"),
                    false => name.to_string(),
                };
                let code = format!(
                    "#[doc(hidden)]
                    #[unsafe(export_name = \"run\")]
                    pub unsafe extern \"C\" fn __inferlet_run(
                        arguments: *mut ::inferlet::export::Text, count: usize,
                    ) -> *const ::inferlet::export::Outcome {{
                        unsafe {{ ::inferlet::export::run(arguments, count, {main}) }}
                    }}"
                );
                return Ok(code.parse().expect("the entry point is Rust"));
            }
            _ => {}
        }
    }
    Err((Span::call_site(), "#[inferlet::main] goes on an `async fn`"))
}

/// `compile_error!(message)` at a place of the user's code.
fn error(span: Span, message: &str) -> TokenStream {
    let arguments = TokenStream::from(TokenTree::from(Literal::string(message)));
    let mut tokens: Vec<TokenTree> = vec![
        Ident::new("compile_error", span).into(),
        Punct::new('!', Spacing::Alone).into(),
        Group::new(Delimiter::Parenthesis, arguments).into(),
        Punct::new(';', Spacing::Alone).into(),
    ];
    tokens.iter_mut().for_each(|token| token.set_span(span));
    tokens.into_iter().collect()
}
