//! headgate's controllers as a process outside of the nodes, as the hardened overlay has them: it leads, and may write other
//! Nodes. Agents then know no Azure.

use headgate_sandbox::process::{Process, command_in};
use serde_json::json;

use super::processes::settings_file;
use super::{Cluster, ClusterError};
use crate::azure;
use crate::files::write;
use crate::strategy::HeadgatePart;

impl Cluster {
    /// Starts the process, if there is one.
    pub(super) fn start_controllers(&self) -> Result<Option<Process>, ClusterError> {
        let settings = match self.settings.headgate {
            HeadgatePart::MaintenanceControllers => {
                let mut settings = json!({"maintenance": {"enabled": true}});
                if self.settings.polls_scheduled_events {
                    settings["maintenance"]["automatic"] = json!(["preempt"]);
                }
                self.set_condition(&mut settings);
                settings
            }
            HeadgatePart::Controllers => json!({"outOfLoadBalancers": {"source": "AdminState"}}),
            HeadgatePart::Nothing | HeadgatePart::Health | HeadgatePart::AdminState => return Ok(None),
        };
        let directory = self.directory.path().join("controllers");
        let [settings_path, azure] = ["settings.yaml", "azure.json"].map(|name| directory.join(name));
        write(&settings_path, &settings_file(settings))?;
        let mut command = command_in(&self.settings.program, &directory);
        command.env_remove("KUBECONFIG");
        let node = azure::name(self.settings.nodes.saturating_sub(1));
        command.args(["agent", "--role=controller", "--node-name", &node]);
        command.args(["--metrics-bind-address", "127.0.0.1:0"]);
        for (flag, path) in [
            ("--kubeconfig", self.kubeconfig.as_path()),
            ("--config", settings_path.as_path()),
            ("--state-dir", &directory),
        ] {
            command.arg(flag).arg(path);
        }
        if let Some(emulator) = self.emulator.as_ref().filter(|_| !self.answers_for_service()) {
            write(&azure, &azure::azure_json(emulator.arm))?;
            command.arg("--azure-config-file").arg(&azure);
        }
        let log = self.logs.join("controllers.log");
        Ok(Some(Process::start("headgate's controllers", command, &log)?))
    }
}
