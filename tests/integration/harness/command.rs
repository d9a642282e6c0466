//! Commands of the program, as people call them.

use std::fmt::Debug;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs a command on a cluster.
pub(crate) fn headgate(kubeconfig: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
    command.args(arguments).arg("--kubeconfig").arg(kubeconfig);
    command.stdin(Stdio::null()).output().unwrap()
}

/// The standard output of a command that has succeeded.
pub(crate) fn stdout_of(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The standard output of any command, which must succeed.
pub(crate) fn succeed(command: &mut Command) -> String {
    stdout_of(command.output().unwrap())
}

/// Standard error of a command that has failed with this exit code and in these words.
#[track_caller]
pub(crate) fn refused(output: &Output, code: i32, words: &[&str]) -> String {
    refused_for(&words, output, code, words)
}

/// The same in this row of a table.
#[track_caller]
pub(crate) fn refused_for(row: &dyn Debug, output: &Output, code: i32, words: &[&str]) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(code), "{row:?}: {error}\n{printed}");
    for part in words {
        assert!(error.contains(part), "{row:?}: {part:?} is not in\n{error}\n{printed}");
    }
    error
}
