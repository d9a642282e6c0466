//! Enums whose variants are words: in settings, metrics, logs and objects.

/// Declares an enum, the word of each variant, and the list of all, in the order of the declaration.
///
/// ```
/// headgate_core::telemetry::words! {
///     /// How a write ended.
///     #[derive(Default)]
///     pub enum Outcome {
///         /// The object is written.
///         #[default]
///         Written = "written",
///         /// The API server refused it.
///         Forbidden = "forbidden",
///     }
/// }
/// assert_eq!(Outcome::ALL.map(Outcome::as_str), ["written", "forbidden"]);
/// ```
#[macro_export]
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$about:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name {
            $($(#[$about])* $variant,)+
        }

        #[allow(dead_code, reason = "few words are both listed and read")]
        impl $name {
            /// Every variant, in the order of the declaration.
            $vis const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word.
            $vis fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}
