//! Fuzz targets for everything that parses bytes of a peer: each generates inputs like
//! those of its corpus and checks what must hold for any of them, not only that nothing panics.
//!
//! `cargo test` runs each target for a few seconds; `make fuzz` for `HEADGATE_FUZZ_SECONDS`. A
//! failure prints the bytes and a seed, which `BOLERO_RANDOM_SEED` repeats; add the bytes to
//! the corpus, whose files are run first.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_in_result,
    reason = "what a test cannot do without fails the test"
)]

mod arm;
mod http;
mod imds_document;
#[path = "../integration/in_memory_listener.rs"]
mod in_memory_listener;
mod kube_proxy_body;
mod mutated_corpus;
mod proxy_header;
mod remembered_state;
mod settings;
