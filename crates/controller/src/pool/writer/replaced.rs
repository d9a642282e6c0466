//! The versions of pools that are replaced, as far as the writer knows: a read that shows one of them lags a write, so nothing follows
//! from it. What is planned from it would only be refused, or, where ARM ignores etags, undo the write. Pure.

use std::collections::HashMap;
use std::time::Duration;

use headgate_azure::{ArmError, Etag, PoolId};
use tokio::time::Instant;

/// How long reads may lag; Azure names no time. From then on a read that shows the same version counts: ARM has not replaced it.
pub(crate) const MAX_READ_LAG: Duration = Duration::from_secs(10);

/// The replaced versions, and since when each is known as such.
#[derive(Debug, Default)]
pub(super) struct ReplacedVersions {
    replaced: HashMap<PoolId, (Etag, Instant)>,
    /// The versions of which ARM has refused writes, and since when: another writer has replaced them, or ARM itself lags.
    refused: HashMap<PoolId, (Etag, Instant)>,
}

impl ReplacedVersions {
    /// Adopts what became of a write of this version.
    pub(super) fn adopt(&mut self, pool: &PoolId, etag: Option<Etag>, outcome: &Result<(), ArmError>) {
        self.replaced.retain(|_, (_, since)| since.elapsed() < MAX_READ_LAG);
        if outcome.is_ok() {
            self.refused.remove(pool);
        }
        let Some(etag) = etag else { return };
        let is_replaced = match outcome {
            // A failed operation was accepted as well.
            Ok(()) | Err(ArmError::OperationFailed { .. }) => true,
            Err(error) if is_version_refused(error) => {
                let is_first = self.refused.get(pool).is_none_or(|(refused, _)| *refused != etag);
                if is_first {
                    self.refused.insert(pool.clone(), (etag.clone(), Instant::now()));
                }
                !is_first && !self.is_refused_for_long(pool, error)
            }
            Err(_) => false,
        };
        if is_replaced {
            self.replaced.insert(pool.clone(), (etag, Instant::now()));
        }
    }

    /// Whether this error of the last write of a pool says that ARM refuses a version for longer than reads lag.
    pub(super) fn is_refused_for_long(&self, pool: &PoolId, error: &ArmError) -> bool {
        let refused = self.refused.get(pool).filter(|_| is_version_refused(error));
        refused.is_some_and(|(_, since)| since.elapsed() >= MAX_READ_LAG)
    }

    /// Forgets the refusals: nothing is to be written, so the next one begins anew.
    pub(super) fn forget_refused(&mut self) {
        self.refused.clear();
    }

    /// Whether a read that shows these versions is older than a write that is known.
    pub(super) fn contain_any<'a>(&self, read: impl IntoIterator<Item = (&'a PoolId, Option<&'a Etag>)>) -> bool {
        let is_replaced = |(pool, etag): (&PoolId, Option<&Etag>)| {
            let known = self.replaced.get(pool);
            known.is_some_and(|(replaced, since)| etag == Some(replaced) && since.elapsed() < MAX_READ_LAG)
        };
        read.into_iter().any(is_replaced)
    }
}

fn is_version_refused(error: &ArmError) -> bool {
    error.status().is_some_and(|status| status.as_u16() == 412)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::super::super::fixtures::{pool_id as pool, refused};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn replaced_version_is_known_while_reads_may_lag() {
        for (outcomes, is_replaced) in [
            (vec![Ok(())], true),
            (vec![Err(refused(412, "", None))], false),
            (vec![Err(refused(412, "", None)); 2], true),
            (vec![Err(refused(409, "", None)); 2], false),
            (
                vec![Err(ArmError::NotPermitted {
                    may_have_applied: false,
                })],
                false,
            ),
        ] {
            let (first, second) = (Etag::new("\"1\"").unwrap(), Etag::new("\"2\"").unwrap());
            let mut replaced = ReplacedVersions::default();
            for outcome in &outcomes {
                replaced.adopt(&pool("a"), Some(first.clone()), outcome);
            }
            let shows = |replaced: &ReplacedVersions, name: &str, etag| replaced.contain_any([(&pool(name), etag)]);
            assert_eq!(shows(&replaced, "a", Some(&first)), is_replaced, "{outcomes:?}");
            assert!(!shows(&replaced, "a", Some(&second)) && !shows(&replaced, "a", None));
            assert!(!shows(&replaced, "b", Some(&first)));
            advance(MAX_READ_LAG).await;
            assert!(!shows(&replaced, "a", Some(&first)), "ARM has not replaced it");
            let refusal = refused(412, "", None);
            let is_refused = outcomes
                .iter()
                .any(|outcome| matches!(outcome, Err(error) if is_version_refused(error)));
            replaced.adopt(&pool("a"), Some(first.clone()), &Err(refusal.clone()));
            assert_eq!(
                replaced.is_refused_for_long(&pool("a"), &refusal),
                is_refused,
                "{outcomes:?}"
            );
            assert!(!replaced.is_refused_for_long(&pool("a"), &refused(409, "", None)));
            assert!(!shows(&replaced, "a", Some(&first)), "reads are not waited for");
            replaced.adopt(&pool("a"), Some(second.clone()), &Err(refusal.clone()));
            assert!(!replaced.is_refused_for_long(&pool("a"), &refusal), "another version");
            advance(MAX_READ_LAG).await;
            replaced.forget_refused();
            replaced.adopt(&pool("a"), Some(second.clone()), &Err(refusal.clone()));
            assert!(!replaced.is_refused_for_long(&pool("a"), &refusal), "of another plan");
            replaced.adopt(&pool("a"), None, &Ok(()));
            assert!(replaced.replaced.is_empty() && replaced.refused.is_empty());
        }
    }
}
