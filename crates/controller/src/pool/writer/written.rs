//! The admin states that ARM says it has written, and whether reads show them: not at all, or not for long. Pure.
//!
//! What reads do not show for long may have been undone by another writer, so it is written again at once; but without end only where
//! that writer has held the shared Lease: where reads lag, they may show for a moment what ARM is about to lose. What ARM ignores
//! waits, each pool for itself.

use std::collections::HashMap;
use std::time::Duration;

use backon::ExponentialBackoff;
use headgate_azure::PoolId;
use tokio::time::Instant;

use super::super::edit::PoolEdit;
use super::super::retry::{MAX_TERMINAL_DELAY, terminal_delays};

/// Reads in a row that do not show a write, all under the hold of the write; then ARM has ignored it (docs/dev/decisions.md 57).
const MAX_READS_WITHOUT_WRITE: u32 = 2;
/// Writes of the same admin states in a row that were undone soon, by no known writer; then ARM has ignored the last one.
const MAX_UNDONE: u32 = 3;
/// "Soon": twice the time between two lists, one of which shows that a write was undone.
const SOON: Duration = Duration::from_secs(30);
/// Then nothing is in a row with a write any more.
const MAX_AGE: Duration = MAX_TERMINAL_DELAY.saturating_mul(2);

/// The last write of each pool whose operation has succeeded.
#[derive(Default)]
pub(super) struct WrittenEdits {
    writes: HashMap<PoolId, Written>,
}

struct Written {
    edit: PoolEdit,
    /// When its operation was seen to have succeeded.
    at: Instant,
    /// How often other writers had released the shared Lease by then.
    releases: u64,
    /// Reads since then that do not show it, under the hold of the write.
    reads_without: u32,
    /// Whether it was due again since then.
    is_undone: bool,
    /// The writes of these admin states in a row that were undone soon.
    undone: u32,
    /// How long the next ones wait that turn out to be ignored.
    delays: ExponentialBackoff,
    /// It was ignored and is due again then.
    due_at: Option<Instant>,
}

/// What earlier writes say about an edit that a read leaves to be written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadBack {
    /// Nothing: it is to be written.
    Due,
    /// It was just written: another read is to show it.
    Awaited,
    /// ARM has ignored it, so it waits.
    Ignored,
}

/// A pool whose admin states ARM has ignored, so that they wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) until: Instant,
    pub(super) pool: PoolId,
}

impl WrittenEdits {
    /// Adopts a write whose operation has succeeded.
    pub(super) fn insert(&mut self, edit: PoolEdit, releases: u64) {
        let at = Instant::now();
        self.writes.retain(|_, written| written.at + MAX_AGE > at);
        let before = self.writes.remove(&edit.pool);
        let before = before.filter(|before| before.is_undone && before.edit.is_equivalent(&edit));
        let (undone, delays) = before.map_or_else(|| (0, terminal_delays()), |before| (before.undone, before.delays));
        let written = Written {
            edit,
            at,
            releases,
            reads_without: 0,
            is_undone: false,
            undone,
            delays,
            due_at: None,
        };
        self.writes.insert(written.edit.pool.clone(), written);
    }

    /// Whether this batch, which began then, has written anything.
    pub(super) fn any_since(&self, batch_began: Instant) -> bool {
        self.writes.values().any(|written| written.at >= batch_began)
    }

    /// Adopts that a read under the hold of a batch, which began then, leaves this edit to be written. Other writers have released the
    /// shared Lease so often by now.
    pub(super) fn check(&mut self, edit: &PoolEdit, batch_began: Instant, releases: u64) -> ReadBack {
        let written = self.writes.get_mut(&edit.pool);
        let written = written.filter(|written| !edit.is_members_only() && written.edit.is_equivalent(edit));
        let Some(written) = written.filter(|written| !written.is_undone) else {
            return ReadBack::Due;
        };
        if written.at >= batch_began {
            written.reads_without += 1;
            if written.reads_without < MAX_READS_WITHOUT_WRITE {
                return ReadBack::Awaited;
            }
            written.undone = MAX_UNDONE;
        } else if written.at.elapsed() < SOON && written.releases == releases {
            written.undone += 1;
        } else {
            written.undone = 0;
            written.delays = terminal_delays();
        }
        written.is_undone = true;
        if written.undone < MAX_UNDONE {
            return ReadBack::Due;
        }
        written.due_at = Some(Instant::now() + written.delays.next().unwrap_or(MAX_TERMINAL_DELAY));
        ReadBack::Ignored
    }

    /// Takes the admin states that ARM has ignored out of the plan, until they are due again. What is not planned any more, or is shown
    /// after all, does not wait.
    pub(super) fn take_waiting(&mut self, edits: &mut Vec<PoolEdit>) -> Option<Waiting> {
        let now = Instant::now();
        for written in self.writes.values_mut() {
            let is_planned = edits.iter().any(|edit| written.edit.is_equivalent(edit));
            written.due_at = written.due_at.filter(|_| is_planned);
        }
        let mut first: Option<Waiting> = None;
        let due = std::mem::take(edits).into_iter().filter_map(|edit| {
            let written = self
                .writes
                .get(&edit.pool)
                .filter(|written| written.edit.is_equivalent(&edit));
            let Some(until) = written
                .and_then(|written| written.due_at)
                .filter(|due_at| now < *due_at)
            else {
                return Some(edit);
            };
            if first.as_ref().is_none_or(|first| until < first.until) {
                first = Some(Waiting {
                    until,
                    pool: edit.pool.clone(),
                });
            }
            edit.members_only()
        });
        *edits = due.collect();
        first
    }
}

#[cfg(test)]
mod tests {
    use headgate_azure::AdminState;
    use tokio::time::advance;

    use super::super::super::fixtures::edit;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Writes it in a batch of its own, and reads in the next one that it is due again so long after the write, when other writers have
    /// released the shared Lease so often.
    async fn undone_after(writes: &mut WrittenEdits, edit: &PoolEdit, after: Duration, releases: u64) -> ReadBack {
        writes.insert(edit.clone(), 0);
        advance(after).await;
        writes.check(edit, Instant::now(), releases)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_undone_soon_is_written_at_once_two_times_and_then_waits_longer_each_time() {
        let mut writes = WrittenEdits::default();
        let down = edit("a", Some(AdminState::Down));
        for expected in [ReadBack::Due, ReadBack::Due, ReadBack::Ignored] {
            assert_eq!(undone_after(&mut writes, &down, SOON / 2, 0).await, expected);
        }
        for wait in [30, 60, 120, 240, 300, 300] {
            let mut edits = vec![down.clone(), edit("b", Some(AdminState::Down))];
            let Waiting { until, pool } = writes.take_waiting(&mut edits).unwrap();
            assert_eq!((until - Instant::now(), pool), (wait * SECOND, down.pool.clone()));
            assert_eq!(edits, [edit("b", Some(AdminState::Down))], "the other pool is written");
            advance(wait * SECOND).await;
            let mut edits = vec![down.clone()];
            assert_eq!((writes.take_waiting(&mut edits), edits.len()), (None, 1));
            assert_eq!(writes.check(&down, Instant::now(), 0), ReadBack::Due);
            assert_eq!(undone_after(&mut writes, &down, SECOND, 0).await, ReadBack::Ignored);
        }
        let mut edits = vec![edit("a", Some(AdminState::None))];
        assert_eq!(
            (writes.take_waiting(&mut edits), edits.len()),
            (None, 1),
            "another state does not wait"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn writes_that_are_ten_minutes_apart_are_not_in_a_row() {
        for (apart, expected) in [
            (MAX_AGE.saturating_sub(SECOND), ReadBack::Ignored),
            (MAX_AGE, ReadBack::Due),
        ] {
            let mut writes = WrittenEdits::default();
            let down = edit("a", Some(AdminState::Down));
            for _ in 1..MAX_UNDONE {
                assert_eq!(undone_after(&mut writes, &down, SECOND, 0).await, ReadBack::Due);
            }
            advance(apart.saturating_sub(SECOND)).await;
            assert_eq!(undone_after(&mut writes, &down, SECOND, 0).await, expected, "{apart:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_pool_that_is_due_first_is_named() {
        let mut writes = WrittenEdits::default();
        let (first, second) = (
            edit("first", Some(AdminState::Down)),
            edit("second", Some(AdminState::Down)),
        );
        for ignored in [&first, &second] {
            for _ in 0..MAX_UNDONE {
                undone_after(&mut writes, ignored, SECOND, 0).await;
            }
        }
        for mut edits in [vec![first.clone(), second.clone()], vec![second, first.clone()]] {
            let waiting = writes.take_waiting(&mut edits).unwrap();
            assert_eq!((waiting.pool, edits.len()), (first.pool.clone(), 0));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_lasted_was_another_state_or_had_another_writer_is_not_in_a_row() {
        for (other, after, releases) in [
            (AdminState::Down, SOON, 0),
            (AdminState::None, SECOND, 0),
            (AdminState::Down, SECOND, 1),
        ] {
            let mut writes = WrittenEdits::default();
            let down = edit("a", Some(AdminState::Down));
            for _ in 0..MAX_UNDONE {
                for _ in 1..MAX_UNDONE {
                    assert_eq!(undone_after(&mut writes, &down, SECOND, 0).await, ReadBack::Due);
                }
                assert_eq!(
                    undone_after(&mut writes, &edit("a", Some(other)), after, releases).await,
                    ReadBack::Due
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_two_reads_of_its_batch_do_not_show_is_ignored() {
        let mut writes = WrittenEdits::default();
        let (down, began) = (edit("a", Some(AdminState::Down)), Instant::now());
        assert!(!writes.any_since(began));
        writes.insert(down.clone(), 0);
        assert!(writes.any_since(began));
        assert_eq!(
            writes.check(&edit("b", Some(AdminState::Down)), began, 0),
            ReadBack::Due
        );
        assert_eq!(
            writes.check(&edit("a", Some(AdminState::None)), began, 0),
            ReadBack::Due
        );
        assert_eq!(writes.check(&down, began, 0), ReadBack::Awaited);
        assert_eq!(writes.check(&down, began, 0), ReadBack::Ignored);
        assert!(writes.take_waiting(&mut vec![down.clone()]).is_some());
        assert!(
            writes
                .take_waiting(&mut vec![edit("b", Some(AdminState::Down))])
                .is_none()
        );
        assert!(writes.take_waiting(&mut vec![down]).is_none(), "its end was seen");
    }
}
