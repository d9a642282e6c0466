//! Controllers under test: the real program as a child process that leads.

use std::path::Path;
use std::process::Command;

use headgate_sandbox::process::Process;
use headgate_test_kubernetes::scratch;

/// Starts a controller for a node, with these settings and more flags. Dropping it kills the process.
pub(crate) fn start_controller(node: &str, kubeconfig: &Path, settings: &str, flags: &[(&str, &Path)]) -> Process {
    let directory = scratch("controller");
    let file = directory.join("settings.yaml");
    std::fs::write(&file, super::settings_file(settings)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
    command.current_dir(&directory).env_remove("KUBECONFIG");
    command.args(["agent", "--role=controller", "--node-name", node]);
    let always = [
        ("--kubeconfig", kubeconfig),
        ("--config", &file),
        ("--state-dir", &directory),
    ];
    for (flag, value) in always.iter().chain(flags) {
        command.arg(flag).arg(value);
    }
    if flags.iter().all(|(flag, _)| *flag != "--metrics-bind-address") {
        command.args(["--metrics-bind-address", "127.0.0.1:0"]);
    }
    Process::start("headgate", command, &directory.join("log")).unwrap()
}
