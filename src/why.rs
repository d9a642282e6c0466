//! Why traffic is or is not sent to a node, in words: what its agent says, what the API server says,
//! since when, and what would change it.
//!
//! Asks; changes nothing. The explanation is a pure function of the two views, either of which may be
//! missing. What a load balancer really does is its own affair: this says what its probes are told.

mod explanation;
mod reasons;
mod views;

use hyper::Uri;
use jiff::Timestamp;
use kube::Client;

pub use explanation::{Explanation, Reason, Sent, explain};
pub use views::{AgentView, ApiView, Views, WhyError, statusz_uri};

/// Asks about the node `name` and explains what was heard. `statusz` is where its agent's operations port
/// is, if not on the node's own address at `port`.
///
/// # Errors
/// When neither the API server nor the agent could be asked, or there is no such Node.
pub async fn ask(
    client: &Client,
    name: &str,
    port: u16,
    statusz: Option<Uri>,
    taint_keys: &[String],
) -> Result<Explanation, WhyError> {
    let views = Views::look(client, name, port, statusz, taint_keys).await?;
    Ok(explain(name, &views, Timestamp::now()))
}
