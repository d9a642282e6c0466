//! Webhook notifications: what happened to a node, as a POST to a URL of the operator's.
//!
//! Invariants: [`Notifier::notify`] never waits, so nothing that decides or writes depends on the receiver. The queue is
//! bounded; a full one drops the newest notice and counts it. The URL is a secret: it is read from a file for each
//! attempt, and no log, metric or error has it or what the receiver answered.
//!
//! What is worth a notice is left to the callers.

mod delivery;
mod metrics;
mod notice;
mod settings;
mod template;
mod webhook;

pub use delivery::{NoticeQueue, Notifier, deliver, queue};
pub use metrics::Metrics;
pub use notice::Notice;
pub use settings::NotificationSettings;
pub use template::{Template, TemplateError};
pub use webhook::{AttemptError, Webhook};
