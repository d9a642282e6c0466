//! Who may do what, by the admission policies.
