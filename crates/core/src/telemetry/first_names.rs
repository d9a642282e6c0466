//! The start of a long list of names, for messages.

use std::fmt::Display;

/// The first `max` names, separated by commas, and how many more there are.
pub fn first_names<T: Display>(names: impl IntoIterator<Item = T>, max: usize) -> String {
    let mut names = names.into_iter();
    let mut shown: Vec<_> = names.by_ref().take(max).map(|name| name.to_string()).collect();
    match names.count() {
        0 => {}
        more => shown.push(format!("{more} more")),
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_is_counted() {
        for (max, text) in [(0, "3 more"), (2, "a, b, 1 more"), (3, "a, b, c"), (4, "a, b, c")] {
            assert_eq!(first_names(["a", "b", "c"], max), text);
        }
        assert_eq!(first_names::<&str>([], 2), "");
    }
}
