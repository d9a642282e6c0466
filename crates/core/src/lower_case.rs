//! Text in lower case, as Go's `strings.ToLower` has it, which cloud-provider-azure applies to a resource group in a `providerID`.

/// The characters in lower case. Each stays one: neither its neighbours nor the place in a word count, as with `str::to_lowercase`.
pub fn lower_case_chars(text: &str) -> impl Iterator<Item = char> + '_ {
    let lower = |character: char| character.to_lowercase().next().unwrap_or(character);
    text.chars().map(lower)
}

/// The text in lower case.
pub fn lower_case(text: &str) -> String {
    if text.is_ascii() {
        text.to_ascii_lowercase()
    } else {
        lower_case_chars(text).collect()
    }
}
