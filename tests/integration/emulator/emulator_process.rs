//! `headgate-lab azure-emulator` as a child process, with the clients' seed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use headgate_sandbox::{process::Process, process::last_log_lines};
use headgate_test_kubernetes::{eventually, lab_program, scratch};
use nix::sys::signal::Signal;

/// Time to start or to stop, on a busy machine.
const STARTUP_TIMEOUT: Duration = Duration::from_mins(1);

/// A running emulator. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Emulator {
    process: Process,
    pub(crate) directory: PathBuf,
    /// Address of ARM, identity and IMDS over plain HTTP.
    pub(crate) arm: SocketAddr,
    /// Address of the control API.
    pub(crate) control: SocketAddr,
    /// Address of ARM, identity and IMDS over TLS; the authority is `ca.pem` in its directory.
    pub(crate) arm_tls: SocketAddr,
}

impl Emulator {
    /// Starts an emulator with the seed of the clients and these arguments, and waits until it has bound its addresses.
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        let seed = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/azure-clients/seed.json");
        Self::start_with_seed(Path::new(seed), arguments).await
    }

    /// Starts an emulator with this seed.
    pub(crate) async fn start_with_seed(seed: &Path, arguments: &[&str]) -> Self {
        let directory = scratch("emulator");
        let mut command = Command::new(lab_program());
        command
            .current_dir(&directory)
            .args(["azure-emulator", "--seed"])
            .arg(seed);
        for listener in ["--listen", "--tls-listen", "--control-listen"] {
            command.args([listener, "127.0.0.1:0"]);
        }
        command.args(["--tls-ca-file", "ca.pem", "--addresses-file", "addresses.json"]);
        command.args(arguments);
        let mut process = Process::start("azure-emulator", command, &directory.join("emulator.log"))
            .unwrap_or_else(|error| panic!("{error}"));

        let file = directory.join("addresses.json");
        let addresses = eventually(STARTUP_TIMEOUT, "the emulator's addresses file", async || {
            if let Some(end) = process.try_wait() {
                panic!("{end}");
            }
            let text = std::fs::read(&file).map_err(|error| error.to_string())?;
            // The file is written atomically.
            Ok(serde_json::from_slice::<BTreeMap<String, SocketAddr>>(&text).unwrap())
        })
        .await;
        let names: Vec<_> = addresses.keys().collect();
        assert_eq!(names, ["arm", "armTls", "control"]);
        Self {
            process,
            directory,
            arm: addresses["arm"],
            control: addresses["control"],
            arm_tls: addresses["armTls"],
        }
    }

    /// The last lines of its log.
    pub(crate) fn log(&self) -> String {
        last_log_lines(self.process.log())
    }

    /// Sends SIGTERM; the emulator must end with exit code 0.
    pub(crate) async fn stop(mut self) {
        self.process.signal(Signal::SIGTERM);
        let Some(status) = self.process.wait(STARTUP_TIMEOUT).await else {
            panic!(
                "still running {STARTUP_TIMEOUT:?} after SIGTERM; its log:\n{}",
                self.log()
            );
        };
        assert_eq!(status.code(), Some(0), "its log:\n{}", self.log());
    }
}
