//! A write of a second pool during the operation of a write of the first one.

use headgate_azure::{AdminState, ArmError, OperationFailure, Pool, ProvisioningState};
use headgate_controller::pool::EntryKey;
use serde_json::json;

use crate::verify::assumptions::{SECOND_WRITE, SUPERSEDED_MEMBERS, SUPERSEDED_STATES};
use crate::verify::report::Answers;
use crate::verify::session::{Read, SPARE_NAME, Session, Stop, Target, code_of, entries_mut, index_of, with_state};

/// Writes a second pool while the operation of a write of the first one runs.
pub(in crate::verify) async fn second_write(session: &mut Session, answers: &mut Answers) -> Result<(), Stop> {
    let (first, spare) = (session.plan.named.first.clone(), session.plan.spare);
    let Some(second) = session.plan.named.second.clone() else {
        return Ok(());
    };
    let read = session.read().await?;
    let mut pool = with_state(read.pool(&first.pool)?, &first.entry, AdminState::Down)?;
    let spare = spare.map(|address| Target {
        pool: first.pool.clone(),
        entry: EntryKey::from_text(&address.to_string()),
    });
    if let Some(spare) = &spare {
        add_spare(&mut pool, spare.entry.as_str());
    }
    for target in [Some(&first), Some(&second), spare.as_ref()].into_iter().flatten() {
        session.record(target).await?;
    }
    let one = match session.put(&pool).await? {
        Ok(operation) => operation,
        Err(error) => {
            answers.undecided(SECOND_WRITE, format!("the first write: {}", code_of(&error)));
            return Ok(());
        }
    };
    let during = session.read_pool(&second.pool).await?;
    let status = session.read_status(&one).await.ok().flatten();
    let is_running = status.unwrap_or(during.provisioning_state() == ProvisioningState::Busy);
    if !is_running {
        answers.undecided(SECOND_WRITE, "the first operation ended before the second write");
        return Ok(());
    }
    let two = match session
        .put(&with_state(&during, &second.entry, AdminState::Down)?)
        .await?
    {
        Ok(operation) => operation,
        Err(error) => {
            answers.decide(SECOND_WRITE, false, format!("refused with {}", code_of(&error)));
            return Ok(());
        }
    };
    let end_of_one = session.wait(&one).await?;
    let end_of_two = session.wait(&two).await?;
    session.end_turn().await;
    let is_superseded = matches!(
        &end_of_one,
        Err(ArmError::OperationFailed {
            status: OperationFailure::Canceled,
            ..
        })
    );
    let ends = format!(
        "accepted; the operations ended {} and {}",
        end(&end_of_one),
        end(&end_of_two)
    );
    if status.is_none() {
        let seen = "accepted; the status of the first operation cannot be read";
        answers.undecided(SECOND_WRITE, seen);
        return Ok(());
    }
    answers.decide(SECOND_WRITE, is_superseded, ends);
    if !is_superseded || end_of_two.is_err() {
        return Ok(());
    }
    // Reads may lag; the second pool shows the second write.
    let is_second_down = |read: &Read| read.state(&second) == Some(AdminState::Down);
    let Some(read) = session.read_until(is_second_down).await? else {
        return Ok(());
    };
    let is_first_down = read.state(&first) == Some(AdminState::Down);
    answers.decide(SUPERSEDED_STATES, is_first_down, kept(is_first_down));
    if let Some(spare) = spare {
        let is_there = index_of(read.pool(&first.pool)?, &spare.entry).is_some();
        answers.decide(SUPERSEDED_MEMBERS, is_there, kept(is_there));
    }
    Ok(())
}

fn end(outcome: &Result<(), ArmError>) -> String {
    match outcome {
        Ok(()) => "`Succeeded`".to_owned(),
        Err(ArmError::OperationFailed { status, .. }) => format!("`{}`", status.as_str()),
        Err(error) => code_of(error),
    }
}

fn kept(is_kept: bool) -> &'static str {
    if is_kept { "it stays" } else { "it is lost" }
}

/// Adds a member that is `Down`, in the network of the first one.
fn add_spare(pool: &mut Pool, address: &str) {
    let Some(entries) = entries_mut(pool) else { return };
    let mut properties = json!({"ipAddress": address, "adminState": "Down"});
    for field in ["virtualNetwork", "subnet"] {
        if let Some(value) = entries.first().and_then(|entry| entry["properties"].get(field)) {
            properties[field] = value.clone();
        }
    }
    entries.push(json!({"name": SPARE_NAME, "properties": properties}));
}
