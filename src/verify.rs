//! `headgate verify`: asks Azure what headgate only assumes of it, on entries that the user names.
//!
//! [`ASSUMPTIONS`] has the questions, `procedures` and `frontend` ask them, `session` reads and writes, `report` has the answers. Who may write,
//! and what a crash leaves behind, is `SoleWriter`'s.

mod assumptions;
mod frontend;
mod procedures;
mod report;
mod session;
mod targets;
#[cfg(test)]
mod tests;

use headgate_azure::{API_VERSION, AdminState, ArmClient};
use headgate_controller::admin_state::SoleWriter;
use headgate_controller::pool::EntryKey;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

pub use self::assumptions::{ASSUMPTIONS, Assumption, table};
use self::assumptions::{
    ESTABLISHED_CONNECTIONS, IF_MATCH_ADDRESSES, IF_MATCH_INTERFACES, NEW_CONNECTIONS, SECOND_WRITE,
    SUPERSEDED_MEMBERS, SUPERSEDED_STATES, WRITE_ADDRESSES, WRITE_INTERFACES,
};
use self::procedures::PoolKind;
pub(crate) use self::report::VerifyReport;
use self::report::{Answers, Facts};
pub(crate) use self::session::{Plan, Target};
use self::session::{Session, Stop, index_of};
pub(crate) use self::targets::{Named, of_node, of_pools, refusal};

/// What a run needs.
#[derive(Clone)]
pub(crate) struct VerifyRequest {
    pub(crate) arm: ArmClient,
    pub(crate) plan: Plan,
    /// Whether the report has the ids of what was written.
    pub(crate) shows_ids: bool,
    pub(crate) started_at: Timestamp,
    pub(crate) interrupted: CancellationToken,
}

/// Restores what an earlier run has left, asks, and restores. Whatever ends the run, the report has the answers until then.
pub(crate) async fn verify(request: VerifyRequest, writer: SoleWriter) -> VerifyReport {
    let VerifyRequest {
        arm,
        plan,
        shows_ids,
        started_at,
        interrupted,
    } = request;
    let mut facts = Facts {
        headgate: headgate_core::telemetry::VERSION,
        started_at,
        api_version: API_VERSION,
        location: None,
        pool_of: "unknown",
        pools: 0,
        written: Vec::new(),
    };
    if shows_ids {
        let ids = |target: &Target| format!("{} {}", target.pool, target.entry);
        facts.written = plan.named.targets().map(ids).collect();
    }
    let mut session = Session::new(arm, writer, plan, interrupted);
    let mut answers = Answers::default();
    let mut not_restored = session.restore().await;
    let mut stop = None;
    if not_restored.is_empty() {
        stop = ask(&mut session, &mut facts, &mut answers).await.err();
        not_restored = session.restore().await;
    }
    let stop = stop.map(|stop| stop.to_string());
    VerifyReport::new(facts, &answers, stop, not_restored)
}

async fn ask(session: &mut Session, facts: &mut Facts, answers: &mut Answers) -> Result<(), Stop> {
    let read = session.read().await?;
    facts.location.clone_from(&read.location);
    facts.pools = read.pools.len();
    for target in session.plan.named.targets() {
        if read.state(target) != Some(AdminState::None) {
            let (pool, entry) = (target.pool.name(), &target.entry);
            let why =
                format!("the entry {entry} of the pool {pool} is missing, or has an admin state of another writer");
            return Err(Stop::Unexpected(why));
        }
    }
    // It could not be told from the member that is added.
    let spare = session
        .plan
        .spare
        .map(|address| EntryKey::from_text(&address.to_string()));
    if spare.is_some_and(|spare| read.pools.iter().any(|pool| index_of(pool, &spare).is_some())) {
        let why = "an entry has the address of `--spare-address`; give one that is unused";
        return Err(Stop::Unexpected(why.to_owned()));
    }
    let kind = PoolKind::new(read.pool(&session.plan.named.first.pool)?);
    facts.pool_of = kind.as_str();
    let others = match kind {
        PoolKind::Addresses => [WRITE_INTERFACES, IF_MATCH_INTERFACES],
        PoolKind::Interfaces => [WRITE_ADDRESSES, IF_MATCH_ADDRESSES],
    };
    for id in others {
        answers.or_not_asked(id, &format!("the pool is of {}", kind.as_str()));
    }
    if session.plan.frontend.is_none() {
        for id in [NEW_CONNECTIONS, ESTABLISHED_CONNECTIONS] {
            answers.or_not_asked(id, "give `--frontend`");
        }
    }
    if session.plan.named.second.is_none() {
        for id in [SECOND_WRITE, SUPERSEDED_STATES, SUPERSEDED_MEMBERS] {
            answers.or_not_asked(id, "name an entry of a second pool");
        }
    } else if session.plan.spare.is_none() {
        answers.or_not_asked(SUPERSEDED_MEMBERS, "give `--spare-address`");
    }
    if let Some(before) = procedures::first_write(session, answers).await? {
        if procedures::stale_write(session, answers, &before).await? || procedures::set_back(session, answers).await? {
            procedures::restored_state(session, answers, &before).await?;
        }
        procedures::second_write(session, answers).await?;
        for id in [SUPERSEDED_STATES, SUPERSEDED_MEMBERS] {
            answers.or_not_asked(id, "no write was superseded");
        }
        if session.plan.frontend.is_some() {
            restore_between(session).await?;
            frontend::traffic(session, answers).await?;
        }
    }
    procedures::role(session, answers).await
}

/// The next procedure needs everything as it was.
async fn restore_between(session: &mut Session) -> Result<(), Stop> {
    match session.restore().await.into_iter().next() {
        None => Ok(()),
        Some(why) => Err(Stop::Unexpected(format!("not restored: {why}"))),
    }
}
