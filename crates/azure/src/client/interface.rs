//! A network interface is read, for the virtual machine it belongs to.

use serde_json::Value;
use tokio::time::Instant;

use super::super::error::ArmError;
use super::super::id::NetworkInterfaceId;
use super::{ArmClient, json};

impl ArmClient {
    /// The resource id of the virtual machine that an interface belongs to, in lower case; none of one that belongs
    /// to none.
    ///
    /// # Errors
    /// Where it cannot be had, or not in time.
    pub async fn get_interface_virtual_machine(
        &self,
        id: &NetworkInterfaceId,
        deadline: Instant,
    ) -> Result<Option<String>, ArmError> {
        let uri = self.uri(id.path())?;
        let answer = self.get("get_network_interface", id.group(), uri, deadline).await?;
        let document = json(&answer)?;
        let machine = document
            .pointer("/properties/virtualMachine/id")
            .and_then(Value::as_str);
        Ok(machine.map(str::to_ascii_lowercase))
    }
}
