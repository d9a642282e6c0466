//! Has Cargo build the program again after any change below these directories, so that a program that is older than a source is out of date.

#![allow(clippy::print_stdout, reason = "how a build script speaks to Cargo")]

fn main() {
    for directory in ["../crates", "../src", "."] {
        println!("cargo::rerun-if-changed={directory}");
    }
}
