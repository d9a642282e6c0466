//! Restoring what is recorded, at the start of a run and on every way out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use headgate_azure::{AdminState, ArmError, ErrorClass, Pool, PoolId, ProvisioningState};
use headgate_controller::admin_state::LedgerStage;
use headgate_controller::pool::EntryKey;
use tokio::time::{Instant, sleep};

use super::{POLL_INTERVAL, READ_LAG, SPARE_NAME, Session, Stop, Target, entries_mut, index_of};

/// Time for restoring the entries of one pool.
const RESTORE_TIMEOUT: Duration = Duration::from_mins(5);

impl Session {
    /// What the ledger says may be `Down`: of a load balancer of the cluster only the entries of this run, the others may be the
    /// leader's; otherwise whatever an earlier run has left.
    pub(super) fn recorded(&self) -> BTreeMap<PoolId, BTreeSet<EntryKey>> {
        let ledger = self.writer.ledger();
        let mut recorded = BTreeMap::<_, BTreeSet<_>>::new();
        for (pool, key, entry) in ledger.entries() {
            let (Ok(pool), key) = (PoolId::parse(pool), EntryKey::from_text(key)) else {
                continue;
            };
            let is_own = |target: &Target| target.pool == pool && target.entry == key;
            if entry.stage != LedgerStage::Restored
                && (!self.writer.is_leader() || self.plan.named.targets().any(is_own))
            {
                recorded.entry(pool).or_default().insert(key);
            }
        }
        recorded
    }

    /// Sets what is recorded back to `None`, and removes the added member. Returns what could not be restored, and why.
    pub(in crate::verify) async fn restore(&mut self) -> Vec<String> {
        let mut failed = Vec::new();
        for (pool, keys) in self.recorded() {
            if let Err(stop) = self.restore_pool(&pool, &keys).await {
                let keys: Vec<_> = keys.iter().map(EntryKey::as_str).collect();
                failed.push(format!(
                    "{}/{} {}: {stop}",
                    pool.load_balancer().name(),
                    pool.name(),
                    keys.join(", ")
                ));
            }
        }
        self.end_turn().await;
        failed
    }

    async fn restore_pool(&mut self, id: &PoolId, keys: &BTreeSet<EntryKey>) -> Result<(), Stop> {
        let deadline = Instant::now() + RESTORE_TIMEOUT;
        loop {
            // Until then a read may show the pool as it was before the `Down`.
            let is_current = self.written_at.get(id).is_none_or(|at| at.elapsed() >= READ_LAG);
            let error = match self.read_pool(id).await {
                Err(error) if error.is_about_missing_resource() => break,
                Err(error) => error,
                Ok(pool) if pool.provisioning_state() == ProvisioningState::Busy => ArmError::Busy(id.to_string()),
                Ok(pool) => match restored(&pool, keys) {
                    None if is_current => break,
                    None => ArmError::DeadlineExceeded,
                    Some(restored) => match self.send(&restored).await? {
                        Ok(operation) => {
                            let end = self.arm.poll_until_done(&operation, deadline).await;
                            if end.is_ok() {
                                self.note_restored(id);
                            }
                            end.err().unwrap_or(ArmError::DeadlineExceeded)
                        }
                        Err(error) => error,
                    },
                },
            };
            let now = Instant::now();
            let wait = error.retry_after(now).unwrap_or(POLL_INTERVAL).max(POLL_INTERVAL);
            if now + wait >= deadline || error.class() == ErrorClass::Terminal {
                return Err(error.into());
            }
            sleep(wait).await;
        }
        for key in keys {
            self.writer.record_restored(id, key).await?;
        }
        Ok(())
    }
}

/// The pool with these entries restored; `None` if they are.
fn restored(pool: &Pool, keys: &BTreeSet<EntryKey>) -> Option<Pool> {
    let mut changed = pool.clone();
    let mut is_changed = false;
    for key in keys {
        let Some(index) = index_of(&changed, key) else {
            continue;
        };
        let entry = changed.addresses().nth(index)?;
        if entry.name() == Some(SPARE_NAME) {
            entries_mut(&mut changed)?.remove(index);
            is_changed = true;
        } else if entry.admin_state() == Some(AdminState::Down) {
            is_changed |= changed.set_admin_state(index, AdminState::None);
        }
    }
    is_changed.then_some(changed)
}
