//! Whether the actions of the role are enough.

use std::collections::BTreeSet;

use tokio::time::Instant;

use crate::check::role_actions;
use crate::verify::assumptions::ROLE;
use crate::verify::report::Answers;
use crate::verify::session::{READ_TIMEOUT, Session, Stop, code_of};

/// Compares what the identity may do with the role, and with what was refused.
pub(in crate::verify) async fn role(session: &mut Session, answers: &mut Answers) -> Result<(), Stop> {
    let load_balancer = session.plan.named.load_balancer.clone();
    let deadline = Instant::now() + READ_TIMEOUT;
    let scope = load_balancer.to_string();
    let listed = session
        .arm
        .list_permissions(load_balancer.group(), &scope, deadline)
        .await;
    let permissions = match listed {
        Ok(permissions) => permissions,
        Err(error) => {
            answers.undecided(ROLE, format!("the permissions cannot be read: {}", code_of(&error)));
            return Ok(());
        }
    };
    let granted = |action: &str| permissions.iter().any(|permission| permission.contains(action));
    let lacking: Vec<_> = role_actions().filter(|action| !granted(action)).collect();
    let known: BTreeSet<String> = role_actions().map(str::to_ascii_lowercase).collect();
    let patterns = permissions.iter().flat_map(|permission| &permission.actions);
    let further = patterns
        .filter(|pattern| !known.contains(&pattern.to_ascii_lowercase()))
        .count();
    match (session.refused.first(), lacking.is_empty()) {
        (Some(code), true) => answers.decide(ROLE, false, format!("a request was refused with {code}")),
        (_, false) => {
            let lacking = lacking.join("`, `");
            answers.undecided(ROLE, format!("the identity lacks `{lacking}`"));
        }
        (None, true) if further > 0 => {
            let seen = format!("the identity may do {further} things more than the role");
            answers.undecided(ROLE, seen);
        }
        (None, true) => answers.decide(
            ROLE,
            true,
            "the identity has these actions only, and nothing was refused",
        ),
    }
    Ok(())
}
