//! Everything that reads bytes from elsewhere, with random bytes: each target makes inputs like
//! those of its corpus and checks what must hold for any of them, not only that nothing panics.
//!
//! Plain `cargo test` gives each target a few seconds; `make fuzz` as long as `HEADGATE_FUZZ_SECONDS` says. A
//! failure prints a seed, which `BOLERO_RANDOM_SEED` tries again, and the bytes; what was found goes into
//! the corpus, whose files are tried first each time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_in_result,
    reason = "what a test cannot do without fails the test"
)]

#[cfg(feature = "sandbox")]
mod arm;
mod http;
mod imds_document;
mod kube_proxy_body;
mod like;
mod proxy_header;
mod remembered_state;
mod settings;
