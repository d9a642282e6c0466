//! How the static program is linked.

#![allow(clippy::print_stdout, reason = "how a build script speaks to Cargo")]

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    if features.split(',').any(|feature| feature == "crt-static") && packs_relocations() {
        // The addresses that the program adapts as it starts take a bit each and not 24 bytes: half a MiB less.
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// Whether the C library unpacks them: glibc from 2.36 on. Of a library for another platform, as old as this machine's, nothing is known.
fn packs_relocations() -> bool {
    let version = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let minor = version
        .ok()
        .and_then(|version| version.trim().rsplit_once('.')?.1.parse::<u32>().ok());
    minor.is_some_and(|minor| minor >= 36)
}
