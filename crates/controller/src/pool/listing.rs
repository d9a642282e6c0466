//! The load balancers of the cluster, listed again and again: when somebody wants it, and every so often.
//!
//! One list is under way at a time, so that wishes which come meanwhile are one. A list that fails leaves the last one
//! in place, and is tried again with growing pauses; `Retry-After` is obeyed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use headgate_azure::{ArmClient, ArmError, LoadBalancer, LoadBalancerId, ResourceGroupId};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::interfaces::Interfaces;
use super::inventory::{Managed, View};
use super::pauses::Pauses;
use super::questions::Questions;
use super::trouble::Trouble;

/// For all pages of one list.
const ONE_LIST: Duration = Duration::from_mins(2);

/// From the end of one list to the next, however much one is wanted.
const GAP: Duration = Duration::from_millis(200);
/// From a wish to a list that is not the first: what is known is written first, and wishes that come together are one.
const TOGETHER: Duration = Duration::from_millis(100);

/// The load balancers at one time.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// When ARM was asked; `None` before the first answer.
    pub asked_at: Option<Instant>,
    /// The cluster's, as they were.
    pub views: BTreeMap<LoadBalancerId, Arc<View>>,
    /// Why the newest is not here.
    pub trouble: Option<Trouble>,
}

/// When load balancers are to be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Counted up by whoever wants a list that begins after that.
    pub count: u64,
    /// How old the last one may become; `None`: any age.
    pub every: Option<Duration>,
}

/// What is listed.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The group that load balancers are in.
    pub group: ResourceGroupId,
    /// Which of them count.
    pub managed: Managed,
}

/// Lists whenever it is wanted; ends with whoever wants lists.
pub async fn follow(
    arm: ArmClient,
    scope: Scope,
    mut wanted: watch::Receiver<Wanted>,
    listings: watch::Sender<Arc<Listing>>,
) {
    let mut pauses = Pauses::default();
    let mut served = None;
    let mut not_before = Instant::now();
    let mut wished_at = None;
    loop {
        let wish = *wanted.borrow_and_update();
        let asked_at = listings.borrow().asked_at;
        let failed = listings.borrow().trouble.is_some();
        let due = if asked_at.is_none() || failed {
            Some(not_before)
        } else if served == Some(wish.count) {
            wish.every.zip(asked_at).map(|(every, asked_at)| asked_at + every)
        } else {
            Some(not_before.max(*wished_at.get_or_insert_with(Instant::now) + TOGETHER))
        };
        tokio::select! {
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
        let count = wanted.borrow().count;
        wished_at = None;
        let asked_at = Instant::now();
        match list(&arm, &scope, asked_at + ONE_LIST).await {
            Ok(views) => {
                pauses.succeeded();
                not_before = Instant::now() + GAP;
                served = Some(count);
                let listing = Listing {
                    asked_at: Some(asked_at),
                    views,
                    trouble: None,
                };
                listings.send_replace(Arc::new(listing));
            }
            Err(error) => {
                let pause = pauses.after(&error);
                tracing::warn!(%error, again_in = ?pause, "the load balancers cannot be listed");
                not_before = Instant::now() + pause;
                let mut listing = Listing::clone(&listings.borrow());
                listing.trouble = Some(Trouble::new(&error, listing.trouble.as_ref()));
                listings.send_replace(Arc::new(listing));
            }
        }
    }
}

async fn list(
    arm: &ArmClient,
    scope: &Scope,
    deadline: Instant,
) -> Result<BTreeMap<LoadBalancerId, Arc<View>>, ArmError> {
    let found = match arm.list_load_balancers(&scope.group, deadline).await {
        // As cloud-provider-azure: a group without any may say so.
        Err(error) if error.status().is_some_and(|status| status == 404) && error.code() == "ResourceNotFound" => {
            Vec::new()
        }
        answer => answer?,
    };
    let (managed, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| scope.managed.holds(&found.id));
    if managed.is_empty() && !others.is_empty() {
        let others: Vec<_> = others.iter().take(10).map(|other| other.id.name()).collect();
        let group = scope.group.name();
        tracing::warn!(
            group,
            ?others,
            "no load balancer is called as azure.clusterName and azure.json say"
        );
    }
    let view = |load_balancer: LoadBalancer| (load_balancer.id.clone(), Arc::new(View::of(load_balancer)));
    Ok(managed.into_iter().map(view).collect())
}

impl Listing {
    /// One load balancer, and when ARM was asked about it.
    #[must_use]
    pub fn view(&self, id: &LoadBalancerId) -> Option<(Instant, Arc<View>)> {
        Some((self.asked_at?, Arc::clone(self.views.get(id)?)))
    }

    /// Learns whose the interfaces in all pools are; for whoever shows them, since a writer asks about its own.
    pub async fn interfaces(&self, arm: &ArmClient, deadline: Instant) -> Interfaces {
        let mut all = Interfaces::default();
        for view in self.views.values() {
            let (mut its, mut questions) = (Interfaces::default(), Questions::new(arm.clone()));
            questions.ask(&mut its, view, deadline);
            questions.all().await;
            questions.take_in(&mut its);
            all.merge(its);
        }
        all
    }
}
