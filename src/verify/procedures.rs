//! The procedures, in the order in which they run; `overlap` and `role` have the last two. Each asks one or more assumptions with one or two writes.
//!
//! Every answer says what was seen. Where an answer would rest on what this client may have missed, such as an operation that ended before it was
//! read, the assumption is not decided.

use headgate_azure::{AdminState, ArmError, BackendAddress, Pool, ProvisioningState, WriteOperation};
use headgate_core::telemetry::words;
use hyper::StatusCode;
use serde_json::Value;

use super::assumptions::{
    ETAGS, IF_MATCH_ADDRESSES, IF_MATCH_INTERFACES, OPERATION_STATUS, POOLS_UPDATING, RESTORED_STATE, WRITE_ADDRESSES,
    WRITE_INTERFACES,
};
use super::report::{Answers, Verdict};
use super::session::{Read, Session, Stop, code_of, index_of, with_state};

mod overlap;
mod role;

pub(super) use overlap::second_write;
pub(super) use role::role;

words! {
    /// What the entries of a pool are.
    pub(super) enum PoolKind {
        Addresses = "addresses",
        Interfaces = "interfaces",
    }
}

impl PoolKind {
    pub(super) fn new(pool: &Pool) -> Self {
        let is_interface = |entry: BackendAddress<'_>| entry.network_interface_ip_configuration().is_some();
        if pool.addresses().any(is_interface) {
            Self::Interfaces
        } else {
            Self::Addresses
        }
    }

    /// The assumptions about writes and about `If-Match` in such a pool.
    fn assumptions(self) -> (&'static str, &'static str) {
        match self {
            Self::Addresses => (WRITE_ADDRESSES, IF_MATCH_ADDRESSES),
            Self::Interfaces => (WRITE_INTERFACES, IF_MATCH_INTERFACES),
        }
    }
}

/// Whether an error says that Azure does not take a request at all, rather than not now.
fn is_refusal(error: &ArmError) -> bool {
    const PASSING: [StatusCode; 4] = [
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::CONFLICT,
        StatusCode::PRECONDITION_FAILED,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    let status = error.status();
    status.is_some_and(|status| status.is_client_error() && !PASSING.contains(&status))
}

fn verdict_of(error: &ArmError) -> Verdict {
    if is_refusal(error) {
        Verdict::False
    } else {
        Verdict::NotDecided
    }
}

/// Sets the first entry `Down`. Returns whether a read shows it, with the read before.
pub(super) async fn first_write(session: &mut Session, answers: &mut Answers) -> Result<Option<Read>, Stop> {
    let first = session.plan.named.first.clone();
    let before = session.read().await?;
    let pool = before.pool(&first.pool)?;
    let (id, _) = PoolKind::new(pool).assumptions();
    let down = with_state(pool, &first.entry, AdminState::Down)?;
    session.record(&first).await?;
    let operation = match session.put(&down).await? {
        Ok(operation) => operation,
        Err(error) => {
            answers.add(id, verdict_of(&error), format!("refused with {}", code_of(&error)));
            return Ok(None);
        }
    };
    let during = session.read().await?;
    let is_running = read_status(session, &operation, answers).await;
    ask_pools_updating(&during, is_running, answers);
    if let Err(error) = session.wait(&operation).await? {
        answers.decide(
            id,
            false,
            format!("accepted, and the operation ended with {}", code_of(&error)),
        );
        return Ok(None);
    }
    session.end_turn().await;
    let is_down = |read: &Read| read.state(&first) == Some(AdminState::Down);
    let Some(after) = session.read_until(is_down).await? else {
        answers.decide(id, false, "the operation succeeded, and reads do not show `Down`");
        return Ok(None);
    };
    answers.decide(id, true, "accepted, and a read shows `Down`");
    ask_etags(&before, &after, answers);
    Ok(Some(before))
}

/// Reads the status of an operation; whether it runs, if that is known.
async fn read_status(session: &mut Session, operation: &WriteOperation, answers: &mut Answers) -> Option<bool> {
    match session.read_status(operation).await {
        Ok(Some(is_running)) => {
            answers.decide(OPERATION_STATUS, true, "the status is read");
            Some(is_running)
        }
        Ok(None) => {
            answers.undecided(OPERATION_STATUS, "the write has no operation to read");
            None
        }
        Err(ArmError::OperationFailed { .. }) => {
            answers.decide(OPERATION_STATUS, true, "the status is read");
            Some(false)
        }
        Err(error) => {
            let verdict = verdict_of(&error);
            answers.add(OPERATION_STATUS, verdict, format!("refused with {}", code_of(&error)));
            None
        }
    }
}

fn ask_pools_updating(during: &Read, is_running: Option<bool>, answers: &mut Answers) {
    let is_busy = during.load_balancer.provisioning_state == ProvisioningState::Busy;
    let busy = |pool: &&Pool| pool.provisioning_state() == ProvisioningState::Busy;
    let busy_pools = during.pools.iter().filter(busy).count();
    let seen = format!("{busy_pools} of {} pools, {}", during.pools.len(), shown(is_busy));
    if is_busy || busy_pools > 0 || is_running == Some(true) {
        answers.decide(POOLS_UPDATING, busy_pools == during.pools.len(), seen);
    } else {
        answers.undecided(POOLS_UPDATING, "the operation ended before the read");
    }
}

fn shown(is_busy: bool) -> &'static str {
    if is_busy {
        "and the load balancer"
    } else {
        "and not the load balancer"
    }
}

fn ask_etags(before: &Read, after: &Read, answers: &mut Answers) {
    let differs = before.load_balancer.etag != after.load_balancer.etag;
    let new = |pool: &&Pool| {
        let earlier = before.pools.iter().find(|known| known.id == pool.id);
        earlier.is_none_or(|earlier| earlier.etag != pool.etag)
    };
    let pools = after.pools.iter().filter(new).count();
    let all = after.pools.len();
    let load_balancer = if differs { "its" } else { "not its" };
    let seen = format!("the etags of {pools} of {all} pools differ, and {load_balancer} load balancer's");
    answers.decide(ETAGS, differs && pools == all, seen);
}

/// Writes the pool with the etag of before the first write. Returns whether that has set the entry back, which it does where Azure ignores
/// `If-Match`.
pub(super) async fn stale_write(session: &mut Session, answers: &mut Answers, before: &Read) -> Result<bool, Stop> {
    let first = session.plan.named.first.clone();
    let (_, id) = PoolKind::new(before.pool(&first.pool)?).assumptions();
    let is_down = |read: &Read| read.state(&first) == Some(AdminState::Down);
    let Some(after) = session.read_until(is_down).await? else {
        answers.undecided(id, "reads do not show `Down` any more");
        return Ok(false);
    };
    let (stale, current) = (before.pool(&first.pool)?, after.pool(&first.pool)?);
    if stale.etag == current.etag {
        answers.undecided(id, "the first write did not change the pool's etag");
        return Ok(false);
    }
    let mut pool = with_state(current, &first.entry, AdminState::None)?;
    pool.etag.clone_from(&stale.etag);
    let is_back = match session.put(&pool).await? {
        Ok(operation) => {
            answers.decide(id, false, "accepted");
            session.wait(&operation).await?.is_ok()
        }
        Err(error) => {
            let is_expected = error.status() == Some(StatusCode::PRECONDITION_FAILED);
            let verdict = if is_expected {
                Verdict::Holds
            } else {
                Verdict::NotDecided
            };
            answers.add(id, verdict, format!("refused with {}", code_of(&error)));
            false
        }
    };
    if is_back {
        session.note_restored(&first.pool);
    }
    session.end_turn().await;
    Ok(is_back)
}

/// Sets the first entry back. Returns whether that was done.
pub(super) async fn set_back(session: &mut Session, answers: &mut Answers) -> Result<bool, Stop> {
    let first = session.plan.named.first.clone();
    let is_down = |read: &Read| read.state(&first) == Some(AdminState::Down);
    // A read from before the `Down` would pass for one of after it was set back.
    let Some(read) = session.read_until(is_down).await? else {
        answers.undecided(RESTORED_STATE, "reads do not show `Down` any more");
        return Ok(false);
    };
    let pool = with_state(read.pool(&first.pool)?, &first.entry, AdminState::None)?;
    let sent = session.put(&pool).await?;
    let end = match sent {
        Ok(operation) => session.wait(&operation).await?,
        Err(error) => Err(error),
    };
    if let Err(error) = end {
        answers.add(
            RESTORED_STATE,
            verdict_of(&error),
            format!("not set back: {}", code_of(&error)),
        );
        return Ok(false);
    }
    session.note_restored(&first.pool);
    session.end_turn().await;
    Ok(true)
}

/// Looks at what a read shows of the first entry after it was set back.
pub(super) async fn restored_state(session: &Session, answers: &mut Answers, before: &Read) -> Result<(), Stop> {
    let first = session.plan.named.first.clone();
    let is_down = |read: &Read| read.state(&first) == Some(AdminState::Down);
    let etags = |read: &Read| Ok::<_, Stop>((read.load_balancer.etag.clone(), read.pool(&first.pool)?.etag.clone()));
    let before = etags(before)?;
    // A read from before the `Down` would pass for one of after it was set back.
    let is_back =
        |read: &Read| read.state(&first) == Some(AdminState::None) && etags(read).is_ok_and(|etags| etags != before);
    let Some(read) = session.read_until(is_back).await? else {
        if is_down(&session.read().await?) {
            answers.decide(RESTORED_STATE, false, "reads still show `Down`");
        } else {
            answers.undecided(
                RESTORED_STATE,
                "reads show the etags of before the `Down`, or the entry is gone",
            );
        }
        return Ok(());
    };
    let pool = read.pool(&first.pool)?;
    let index = index_of(pool, &first.entry);
    let path = |index| format!("/properties/loadBalancerBackendAddresses/{index}/properties/adminState");
    let state = index.and_then(|index| pool.document.pointer(&path(index)));
    match state {
        None | Some(Value::Null) => answers.decide(RESTORED_STATE, true, "left out"),
        Some(state) => {
            let state: String = state
                .to_string()
                .chars()
                .filter(char::is_ascii_alphanumeric)
                .take(20)
                .collect();
            answers.decide(RESTORED_STATE, false, format!("shown as `{state}`"));
        }
    }
    Ok(())
}
