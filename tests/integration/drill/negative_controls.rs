//! Negative controls: drills in which headgate's admin states cannot be in time. `--expect-no-loss admin-state` has to fail in each;
//! where it passes, it shows nothing of headgate.

use headgate_sandbox::process::command_in;
use headgate_test_kubernetes::{lab_program, scratch};

/// The fewest nodes, few connections, and a delay that suffices where nothing is broken.
const FLAGS: &str = "drill --scenario scale-down --strategy admin-state --expect-no-loss admin-state --nodes 2 --speed 20 \
                     --connections 4 --delete-delay 20s";

/// Runs the drill with these flags, which has to lose connections, and to say that nothing took the node out in time.
fn fails(flags: &str) {
    let output = command_in(lab_program(), &scratch("drill-control"))
        .args(FLAGS.split_whitespace().chain(flags.split_whitespace()))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{flags}: {output:?}");
    for expected in [
        "not as expected",
        "new connections failed",
        "admin-state, seed 1: node 0 was in rotation until it was gone",
    ] {
        assert!(text.contains(expected), "{flags}: {expected} in {text}");
    }
    assert!(!text.contains("admin-state, seed 1: 0 new"), "{flags}: {text}");
}

#[test]
#[ignore = "needs network namespaces"]
fn without_a_leader_connections_are_lost() {
    fails("--negative-control leader-off");
}

#[test]
#[ignore = "needs network namespaces"]
fn with_a_leader_that_only_observes_connections_are_lost() {
    fails("--negative-control observe");
}

#[test]
#[ignore = "needs network namespaces"]
fn where_arm_refuses_connections_are_lost() {
    fails("--negative-control arm-refuses");
}

#[test]
#[ignore = "needs network namespaces"]
fn where_an_operation_takes_longer_than_the_delay_connections_are_lost() {
    fails("--operation-delay 40s");
}
