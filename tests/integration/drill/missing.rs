//! `headgate-lab drill` where what it needs is missing: it says what, and what to do.

use std::process::Command;

use headgate_sandbox::process::command_in;
use headgate_test_kubernetes::{assert_contains, lab_program, scratch};

const FLAGS: [&str; 8] = [
    "drill",
    "--scenario",
    "scale-down",
    "--strategy",
    "none",
    "--nodes",
    "2",
    "--speed=20",
];

/// The exit code and standard error of a drill that cannot run.
fn fails(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
#[ignore = "needs network namespaces"]
fn without_its_programs_a_drill_says_which_packages_have_them() {
    let mut command = command_in(lab_program(), &scratch("drill-programs"));
    command.args(FLAGS).env("PATH", "/nonexistent");
    let (code, text) = fails(command);
    assert_eq!(code, Some(1), "{text}");
    assert_contains!(text, "cannot run ip", "apt-get install iproute2 nftables");
}

/// Root, who has lost all capabilities; another user may have user namespaces.
#[test]
#[ignore = "needs network namespaces and root"]
fn without_the_right_to_namespaces_a_drill_says_who_has_it() {
    let mut command = command_in("setpriv", &scratch("drill-capabilities"));
    command
        .args(["--bounding-set=-all", "--inh-caps=-all"])
        .arg(lab_program())
        .args(FLAGS);
    let (code, text) = fails(command);
    assert_eq!(code, Some(1), "{text}");
    assert_contains!(text, "cannot create a network namespace: Operation not permitted");
    assert_contains!(text, "CAP_SYS_ADMIN", "user namespaces");
}
