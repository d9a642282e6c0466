//! The program `headgate-lab`. Cargo builds it for this test, and with it for the tests of the root package that start it.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without fails the test")]

use std::process::Command;

fn lab(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_headgate-lab"))
        .args(arguments)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn completions_and_the_man_page_are_those_of_the_lab() {
    for arguments in [&["man"][..], &["completions", "bash"]] {
        let (code, text, _) = lab(arguments);
        assert_eq!(code, Some(0));
        assert!(
            text.contains("drill-report") || text.contains("drill\\-report"),
            "{text}"
        );
        assert!(!text.contains("prepare"), "a command of headgate: {text}");
    }
    let (code, text, _) = lab(&["--version"]);
    assert_eq!(
        (code, text),
        (Some(0), format!("headgate-lab {}\n", env!("CARGO_PKG_VERSION")))
    );
}

#[test]
fn a_failure_names_the_program_that_failed() {
    let (code, _, errors) = lab(&["drill-report", "/nonexistent.json", "--html", "/dev/null"]);
    assert_eq!(code, Some(2));
    assert!(
        errors.starts_with("headgate-lab: cannot read /nonexistent.json"),
        "{errors}"
    );
}
