//! Probes that were answered with 503: counted for `/healthz`, and for each Service whose health this process serves. Pure.
//!
//! Only answers count, not verdicts: a load balancer takes a node out after the probes that it has sent. Of those within a second, one
//! counts. An answer with 200 starts the count again.

use headgate_core::service::NamespacedName;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use headgate_core::node::{MARKER_LAST_SERVING, MarkerCondition, MarkerStatus};
use headgate_core::telemetry::first_names;
use tokio::time::Instant;

use super::services::{HoldReason, KeptBecause, KeptServices, ServiceTable};

/// The reason of a marker that says that the node is out.
pub(crate) const PROBES_FAILED: &str = "ProbesFailed";
/// The Services that a message names.
const MAX_NAMES: usize = 8;
/// The longest interval of load balancers.
const LONGEST_INTERVAL: Duration = Duration::from_mins(5);
/// A Service that nobody has asked about for so long is not probed: twice the longest interval.
const PROBED_TTL: Duration = Duration::from_mins(10);
/// Anybody may ask: of the answers within this time, one counts, so that a burst does not stand for a load balancer's probes.
const MIN_PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Answers of one path or port since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerCounts {
    /// With 200.
    pub(crate) ok: u64,
    /// With 503.
    pub(crate) unavailable: u64,
}

impl AnswerCounts {
    fn total(self) -> u64 {
        self.ok.saturating_add(self.unavailable)
    }
}

/// The answers about one Service.
#[derive(Clone, Copy, Debug)]
struct Answered {
    counts: AnswerCounts,
    last_at: Instant,
}

impl Answered {
    fn none(now: Instant) -> Self {
        Self {
            counts: AnswerCounts::default(),
            last_at: now,
        }
    }

    fn is_probed(&self, now: Instant) -> bool {
        now < self.last_at + PROBED_TTL
    }
}

/// The answers about each Service. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ServiceAnswers(Arc<Mutex<BTreeMap<NamespacedName, Answered>>>);

impl ServiceAnswers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<NamespacedName, Answered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an answer about a Service of the table.
    pub(crate) fn count(&self, service: &NamespacedName, is_ok: bool, now: Instant) {
        let mut answers = self.lock();
        if !answers.contains_key(service) {
            answers.insert(service.clone(), Answered::none(now));
        }
        if let Some(Answered { counts, last_at }) = answers.get_mut(service) {
            *(if is_ok { &mut counts.ok } else { &mut counts.unavailable }) += 1;
            *last_at = now;
        }
    }

    /// Takes the Service as asked about, without an answer of this process.
    pub(crate) fn adopt(&self, service: &NamespacedName, now: Instant) {
        self.lock().entry(service.clone()).or_insert(Answered::none(now));
    }

    /// Whether an answer was 200.
    pub(crate) fn has_ok(&self) -> bool {
        self.lock().values().any(|answered| answered.counts.ok > 0)
    }

    /// Forgets the answers about Services that are not probed any more. Not while the node has a signal: a load balancer that has left it
    /// may probe no more.
    pub(crate) fn forget_unprobed(&self, now: Instant) {
        self.lock().retain(|_, answered| answered.is_probed(now));
    }

    /// Forgets the answers about Services that the table does not have.
    pub(crate) fn retain(&self, table: &ServiceTable) {
        self.lock().retain(|service, _| table.get(service).is_some());
    }

    /// Whether there were answers about the Service, of this process or of the one before.
    pub(crate) fn has(&self, service: &NamespacedName) -> bool {
        self.lock().contains_key(service)
    }

    /// The answers about the Services of the table; those about others are forgotten.
    fn of_table(&self, table: &ServiceTable) -> BTreeMap<NamespacedName, Answered> {
        self.retain(table);
        self.lock().clone()
    }

    /// The number of Services with answers.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }
}

/// The failed probes in a row of one path or port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FailedInRow {
    counts: AnswerCounts,
    failed: u64,
    /// When the last one was counted.
    counted_at: Option<Instant>,
}

impl FailedInRow {
    fn update(&mut self, counts: AnswerCounts, now: Instant) {
        // Between two updates the order is not known.
        if counts.ok != self.counts.ok {
            (self.counts, self.failed) = (counts, 0);
            return;
        }
        let is_new = counts.unavailable > self.counts.unavailable;
        if is_new && self.counted_at.is_none_or(|at| at + MIN_PROBE_INTERVAL <= now) {
            self.failed += 1;
            (self.counts, self.counted_at) = (counts, Some(now));
        }
    }
}

/// What is known of Services with `externalTrafficPolicy: Local`, whose load balancers probe them and not `/healthz`.
#[derive(Clone, Debug)]
pub(crate) enum LocalServices {
    /// kube-proxy answers their probes.
    NotServed,
    /// This process answers, and has not listed them yet.
    NotListed,
    /// This process answers, and load balancers keep sending to these.
    Served(Arc<ServiceTable>, ServiceAnswers, KeptServices),
}

/// The failed probes since the node's signal began.
#[derive(Clone, Debug)]
pub(crate) struct FailedProbes {
    required: u64,
    /// What a count starts with.
    initial: u64,
    healthz: FailedInRow,
    services: BTreeMap<NamespacedName, FailedInRow>,
    /// When every Service that is probed was probed by this process; `None` if another process has counted enough already.
    all_probed_at: Option<Instant>,
    /// Whether another process has the ports of the Services.
    shares_ports: bool,
}

impl FailedProbes {
    /// Counts from now on. `is_out` says that another process has counted enough already; then only a 200 starts the count again, also
    /// one that this process has answered before.
    pub(crate) fn new(
        required: NonZeroU32,
        healthz: AnswerCounts,
        local_services: &LocalServices,
        is_out: bool,
    ) -> Self {
        let required = u64::from(required.get());
        let initial = if is_out { required } else { 0 };
        let in_row = |counts| FailedInRow {
            counts,
            failed: if counts.ok == 0 { initial } else { 0 },
            counted_at: None,
        };
        let services = match local_services {
            LocalServices::Served(table, answers, _) => answers.of_table(table),
            LocalServices::NotServed | LocalServices::NotListed => BTreeMap::new(),
        };
        Self {
            required,
            initial,
            healthz: in_row(healthz),
            services: services
                .into_iter()
                .map(|(key, answered)| (key, in_row(answered.counts)))
                .collect(),
            all_probed_at: None,
            shares_ports: false,
        }
    }

    /// Counts a Service with endpoints of which fewer than the required probes were answered as out only after that many failures, however
    /// long nobody has asked: one request by hand does not show that its load balancer asks this process, and not kube-proxy.
    #[must_use]
    pub(crate) fn sharing_ports(mut self, shares_ports: bool) -> Self {
        self.shares_ports = shares_ports;
        self
    }

    /// Awaits the first probe of each Service with endpoints, if the process has started so recently that its load balancer may not have
    /// sent one yet.
    #[must_use]
    pub(crate) fn started_at(mut self, at: Instant) -> Self {
        self.all_probed_at = (self.initial == 0).then_some(at + LONGEST_INTERVAL);
        self
    }

    /// Adopts the present counts, and says what the condition of the node follows from them.
    pub(crate) fn update(
        &mut self,
        healthz: AnswerCounts,
        local_services: &LocalServices,
        now: Instant,
    ) -> MarkerCondition {
        self.healthz.update(healthz, now);
        let mut missing = Vec::new();
        if self.healthz.failed < self.required {
            missing.push(format!(
                "{} of {} probes of /healthz were answered with 503",
                self.healthz.failed, self.required
            ));
        }
        let (mut about_services, mut held) = (String::new(), String::new());
        match local_services {
            LocalServices::NotServed => {
                about_services.push_str(
                    " Services with externalTrafficPolicy: Local have probes of their own, which kube-proxy answers and headgate does \
                     not count.",
                );
            }
            LocalServices::NotListed => missing.push("the Services are not listed yet".to_owned()),
            LocalServices::Served(table, answers, kept) => {
                self.update_services(table, answers, kept, now, &mut missing, &mut about_services);
                held = kept_by(kept, |because| {
                    matches!(because, KeptBecause::Held(HoldReason::LastServing))
                });
            }
        }
        if missing.is_empty() && !held.is_empty() {
            return MarkerCondition {
                status: MarkerStatus::False,
                reason: MARKER_LAST_SERVING,
                message: format!("No other node without a signal serves {held}.{about_services}"),
            };
        }
        if missing.is_empty() {
            MarkerCondition {
                status: MarkerStatus::True,
                reason: PROBES_FAILED,
                message: format!(
                    "{} probes of /healthz or more were answered with 503.{about_services}",
                    self.required
                ),
            }
        } else {
            MarkerCondition {
                status: MarkerStatus::False,
                reason: "ProbesNotFailed",
                message: format!("Not yet: {}.{about_services}", missing.join("; ")),
            }
        }
    }

    fn update_services(
        &mut self,
        table: &ServiceTable,
        answers: &ServiceAnswers,
        kept: &KeptServices,
        now: Instant,
        missing: &mut Vec<String>,
        about_services: &mut String,
    ) {
        let answered = answers.of_table(table);
        self.services.retain(|key, _| answered.contains_key(key));
        for (key, Answered { counts, .. }) in &answered {
            let initial = FailedInRow {
                failed: self.initial,
                ..FailedInRow::default()
            };
            self.services.entry(key.clone()).or_insert(initial).update(*counts, now);
        }
        let is_serving = |key: &NamespacedName| kept.contains_key(key);
        let is_probed = |key: &NamespacedName| answered.get(key).is_some_and(|answered| answered.is_probed(now));
        let is_known = |key: &NamespacedName| {
            answered
                .get(key)
                .is_some_and(|answered| answered.counts.total() >= self.required)
        };
        let has_endpoints = |key: &NamespacedName| {
            table
                .get(key)
                .is_some_and(|served| served.endpoints_of_any_family() > 0)
        };
        let failing = self.services.iter().filter(|(key, in_row)| {
            let is_required = is_probed(key) || self.shares_ports && has_endpoints(key) && !is_known(key);
            in_row.failed < self.required && !is_serving(key) && is_required
        });
        let is_awaited = self.all_probed_at.is_some_and(|at| now < at);
        let awaited = table
            .with_endpoints()
            .filter(|key| is_awaited && !answered.contains_key(key.as_ref()) && !is_serving(key));
        let is_reason = |because| matches!(because, KeptBecause::Held(reason) if reason != HoldReason::LastServing);
        for (what, names) in [
            (
                "Services with endpoints on this node whose probes do not reach headgate, so that kube-proxy answers them with 200",
                kept_by(kept, |because| because == KeptBecause::AnsweredElsewhere),
            ),
            (
                "Services with endpoints on this node answer their own probes with 200",
                kept_by(kept, is_reason),
            ),
            (
                "Services whose own probes were answered with 503 less often",
                first_names(failing.map(|(key, _)| key), MAX_NAMES),
            ),
            (
                "Services with endpoints on this node that were not probed since the start of headgate",
                first_names(awaited, MAX_NAMES),
            ),
        ] {
            if !names.is_empty() {
                missing.push(format!("{what}: {names}"));
            }
        }
        let unprobed = table.iter().map(|(key, _)| key);
        let unprobed = first_names(unprobed.filter(|key| !is_probed(key)), MAX_NAMES);
        if !unprobed.is_empty() {
            let _ = write!(about_services, " Not probed: {unprobed}.");
        }
    }
}

/// The first names of the Services that are kept for such a reason.
fn kept_by(kept: &KeptServices, is_reason: impl Fn(KeptBecause) -> bool) -> String {
    let kept = kept.iter().filter(|(_, because)| is_reason(**because));
    first_names(kept.map(|(key, _)| key), MAX_NAMES)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::super::fixtures::{table, web};
    use super::*;

    const TWO: NonZeroU32 = NonZeroU32::new(2).unwrap();

    fn counts(ok: u64, unavailable: u64) -> AnswerCounts {
        AnswerCounts { ok, unavailable }
    }

    /// Looks at the counts a second later.
    async fn look(probes: &mut FailedProbes, healthz: AnswerCounts, local_services: &LocalServices) -> MarkerCondition {
        advance(Duration::from_secs(1)).await;
        probes.update(healthz, local_services, Instant::now())
    }

    /// Checks the reason, the status that goes with it, and what the message contains, in this row of a table.
    #[track_caller]
    fn expect_for(row: &dyn std::fmt::Debug, found: &MarkerCondition, reason: &str, says: &str) {
        let status = if reason == "ProbesFailed" { "True" } else { "False" };
        let (found, message) = ((found.status.as_str(), found.reason), &found.message);
        assert_eq!(found, (status, reason), "{row:?}: {message}");
        assert!(message.contains(says), "{row:?}: {says:?} is not in {message}");
    }

    #[track_caller]
    fn expect(found: &MarkerCondition, reason: &str, says: &str) {
        expect_for(&reason, found, reason, says);
    }

    const NOT_FAILED: &str = "ProbesNotFailed";

    /// These Services, of which those with endpoints are perhaps kept.
    fn served(services: &[(&str, u32)], answers: &ServiceAnswers, kept: Option<KeptBecause>) -> LocalServices {
        let table = table(services);
        let names = table.with_endpoints().map(Arc::clone);
        let kept = names.filter_map(|name| Some((name, kept?))).collect();
        LocalServices::Served(table, answers.clone(), kept)
    }

    #[test]
    fn only_an_answer_of_200_is_a_passed_probe() {
        let answers = ServiceAnswers::default();
        for (is_ok, expected) in [(false, false), (true, true), (false, true)] {
            answers.count(&web(), is_ok, Instant::now());
            assert_eq!(answers.has_ok(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn out_after_the_number_of_failed_probes_in_a_row() {
        let mut probes = FailedProbes::new(TWO, counts(7, 5), &LocalServices::NotServed, false);
        for (now, expected, says) in [
            (counts(7, 5), NOT_FAILED, "0 of 2"),
            (counts(7, 6), NOT_FAILED, "1 of 2"),
            (counts(8, 6), NOT_FAILED, "0 of 2"),
            (counts(8, 7), NOT_FAILED, "1 of 2"),
            (counts(8, 9), PROBES_FAILED, "which kube-proxy answers"),
            (counts(8, 90), PROBES_FAILED, "2 probes of /healthz or more"),
            // In one interval: the order is not known.
            (counts(9, 95), NOT_FAILED, "0 of 2"),
        ] {
            let found = look(&mut probes, now, &LocalServices::NotServed).await;
            expect_for(&now, &found, expected, says);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn probes_within_a_second_count_once() {
        let mut probes = FailedProbes::new(TWO, counts(0, 0), &LocalServices::NotServed, false);
        for (millis, unavailable, expected) in [(0, 100, NOT_FAILED), (999, 200, NOT_FAILED), (1, 200, PROBES_FAILED)] {
            advance(Duration::from_millis(millis)).await;
            let found = probes.update(counts(0, unavailable), &LocalServices::NotServed, Instant::now());
            expect_for(&unavailable, &found, expected, "");
        }
    }

    #[test]
    fn a_service_is_probed_until_its_last_answer_is_too_old() {
        let last_at = Instant::now();
        let answered = Answered {
            counts: counts(0, 1),
            last_at,
        };
        for (age, expected) in [(Duration::from_secs(599), true), (PROBED_TTL, false)] {
            assert_eq!(answered.is_probed(last_at + age), expected, "{age:?}");
        }
    }

    /// The counts at its start, and what follows from those after it.
    #[tokio::test(start_paused = true)]
    async fn a_restart_continues_until_a_probe_succeeds_and_counts_anew_where_one_has() {
        for (start, steps) in [
            (
                counts(0, 0),
                [(counts(0, 0), PROBES_FAILED), (counts(1, 0), NOT_FAILED)],
            ),
            (
                counts(1, 1),
                [(counts(1, 2), NOT_FAILED), (counts(1, 3), PROBES_FAILED)],
            ),
        ] {
            let mut probes = FailedProbes::new(TWO, start, &LocalServices::NotServed, true);
            for (now, expected) in steps {
                let found = look(&mut probes, now, &LocalServices::NotServed).await;
                expect_for(&(start, now), &found, expected, "");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_continues_for_services_that_are_probed_later() {
        let answers = ServiceAnswers::default();
        let local = served(&[("web", 0)], &answers, None);
        let mut probes = FailedProbes::new(TWO, counts(0, 0), &local, true);
        for (is_ok, expected) in [(false, PROBES_FAILED), (true, NOT_FAILED)] {
            answers.count(&web(), is_ok, Instant::now());
            let found = look(&mut probes, counts(0, 0), &local).await;
            expect_for(&is_ok, &found, expected, "");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn services_with_probes_of_their_own_count_if_they_are_probed() {
        let answers = ServiceAnswers::default();
        answers.count(&web(), true, Instant::now());
        answers.count(&NamespacedName::new("default", "gone"), true, Instant::now());
        let not_read = Some(KeptBecause::Held(HoldReason::NotRead));
        let with_endpoints = served(&[("quiet", 1), ("web", 1)], &answers, not_read);
        let without = served(&[("quiet", 0), ("web", 0)], &answers, None);
        let mut probes = FailedProbes::new(TWO, counts(0, 0), &with_endpoints, false);
        let found = look(&mut probes, counts(0, 2), &with_endpoints).await;
        expect(&found, NOT_FAILED, "with 200: default/quiet, default/web");
        answers.count(&web(), false, Instant::now());
        let found = look(&mut probes, counts(0, 3), &without).await;
        expect(&found, NOT_FAILED, "less often: default/web.");
        answers.count(&web(), false, Instant::now());
        let found = look(&mut probes, counts(0, 4), &without).await;
        expect(&found, PROBES_FAILED, "Not probed: default/quiet.");
        // It is asked once more, and then not for long.
        answers.count(&web(), true, Instant::now());
        expect(&look(&mut probes, counts(0, 5), &without).await, NOT_FAILED, "");
        advance(PROBED_TTL).await;
        let found = look(&mut probes, counts(0, 6), &without).await;
        expect(&found, PROBES_FAILED, "Not probed: default/quiet, default/web.");
        // The probes before do not count again.
        answers.count(&web(), false, Instant::now());
        expect(&look(&mut probes, counts(0, 7), &without).await, NOT_FAILED, "");
        answers.forget_unprobed(Instant::now());
        assert!(answers.has(&web()));
        advance(PROBED_TTL).await;
        answers.forget_unprobed(Instant::now());
        assert!(!answers.has(&web()));
        let found = look(&mut probes, counts(0, 5), &LocalServices::NotListed).await;
        expect(&found, NOT_FAILED, "");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_start_the_first_probe_of_a_service_with_endpoints_is_awaited() {
        let started_at = Instant::now();
        advance(Duration::from_secs(20)).await;
        for (endpoints, is_out, is_probed, age, expected) in [
            (1, false, false, 20, NOT_FAILED),
            (1, false, false, 298, NOT_FAILED),
            (1, false, false, 300, PROBES_FAILED),
            (0, false, false, 20, PROBES_FAILED),
            // Another process has counted them.
            (1, true, false, 20, PROBES_FAILED),
            (1, false, true, 20, NOT_FAILED),
        ] {
            let answers = ServiceAnswers::default();
            let local = served(&[("web", endpoints)], &answers, None);
            let mut probes = FailedProbes::new(TWO, counts(0, 0), &local, is_out).started_at(started_at);
            let now = started_at + Duration::from_secs(age);
            if is_probed {
                answers.count(&web(), false, now);
            }
            probes.update(counts(0, 1), &local, now - Duration::from_secs(1));
            let found = probes.update(counts(0, 2), &local, now);
            expect_for(&(endpoints, is_out, is_probed, age), &found, expected, "");
            let is_awaited = found
                .message
                .contains("not probed since the start of headgate: default/web");
            assert_eq!(is_awaited, expected == NOT_FAILED && !is_probed, "{}", found.message);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn services_with_endpoints_are_out_once_their_own_probes_have_failed() {
        let answers = ServiceAnswers::default();
        let local = |because: Option<KeptBecause>| served(&[("web", 1)], &answers, because);
        let last = Some(KeptBecause::Held(HoldReason::LastServing));
        answers.count(&web(), true, Instant::now());
        let mut probes = FailedProbes::new(TWO, counts(0, 0), &local(last), false);
        // /healthz is asked too.
        expect(&look(&mut probes, counts(0, 1), &local(last)).await, NOT_FAILED, "");
        let found = look(&mut probes, counts(0, 2), &local(last)).await;
        expect(&found, MARKER_LAST_SERVING, "serves default/web");
        let (not_read, elsewhere) = (KeptBecause::Held(HoldReason::NotRead), KeptBecause::AnsweredElsewhere);
        for (because, says) in [
            (Some(not_read), "with 200: default/web"),
            (Some(elsewhere), "kube-proxy answers them with 200: default/web"),
            (None, "less often: default/web"),
        ] {
            let found = look(&mut probes, counts(0, 2), &local(because)).await;
            expect(&found, NOT_FAILED, says);
        }
        for expected in [NOT_FAILED, PROBES_FAILED] {
            answers.count(&web(), false, Instant::now());
            expect(&look(&mut probes, counts(0, 2), &local(None)).await, expected, "");
        }
        answers.count(&web(), true, Instant::now());
        // It is the last one now.
        expect(
            &look(&mut probes, counts(0, 2), &local(last)).await,
            MARKER_LAST_SERVING,
            "",
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_balancer_that_asked_before_the_signal_may_leave_after_one_failure() {
        for (asked_before, expected) in [(0, NOT_FAILED), (1, PROBES_FAILED)] {
            let answers = ServiceAnswers::default();
            let local = served(&[("web", 1)], &answers, None);
            let mut probes = FailedProbes::new(TWO, counts(0, 0), &local, false).sharing_ports(true);
            for _ in 0..asked_before {
                answers.count(&web(), true, Instant::now());
            }
            answers.count(&web(), false, Instant::now());
            for unavailable in 1..=3 {
                let found = look(&mut probes, counts(0, unavailable), &local).await;
                expect_for(&(asked_before, unavailable), &found, NOT_FAILED, "");
            }
            advance(PROBED_TTL).await;
            let found = look(&mut probes, counts(0, 4), &local).await;
            expect_for(&asked_before, &found, expected, "");
        }
    }
}
