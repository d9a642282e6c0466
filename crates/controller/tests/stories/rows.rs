//! The rows of the design of cloud-provider-azure ("Proactive Traffic Redirection with Azure Load Balancer Admin
//! State"), each held by a test of its own, in paused time and in one process. That a `PreemptScheduled` event becomes
//! the draining taint is not held here: the taint is.
//!
//! | Row | Test |
//! |---|---|
//! | Lifecycle: `None → Down`, any signal | `lifecycle::none_to_down_by_each_signal` |
//! | Lifecycle: `None → Down`, every entry of the node | `lifecycle::none_to_down_of_every_entry_of_the_node` |
//! | Lifecycle: `Down → None`, all signals removed | `lifecycle::down_to_none_once_all_signals_are_gone` |
//! | Lifecycle: `Down → Removed`, no extra call | `lifecycle::down_to_removed_costs_no_write_when_the_node_is_deleted` |
//! | Lifecycle: `Down → Removed`, before anything was written | `lifecycle::down_to_removed_when_the_node_goes_before_anything_is_written` |
//! | Lifecycle: duplicates are ignored | `lifecycle::the_same_signal_again_changes_nothing` |
//! | Lifecycle: a failure leaves the previous state, event, retry | `lifecycle::a_failure_leaves_the_state_as_it_was_and_is_told_and_retried` |
//! | Provider changes: missed updates heal | `lifecycle::what_somebody_else_undoes_is_done_again` |
//! | Scenario: out-of-service taint added | `scenarios::out_of_service_by_an_operator` |
//! | Scenario: cloud shutdown taint added | `scenarios::shutdown_by_the_cloud_without_any_derived_taint` |
//! | Scenario: Spot eviction, the taint by hand | `scenarios::spot_eviction_taint_by_hand` |
//! | Scenario: Spot eviction, the taint survives restarts | `scenarios::spot_eviction_survives_the_leader` |
//! | Scenario: taints removed | `scenarios::removed_signals_put_the_node_back` |
//! | Scenario: one taint in another's place | `scenarios::one_signal_in_anothers_place_lets_nobody_in_between` |
//! | Edge case: single-pod services | `edge_cases::single_pod_services_go_down_all_the_same` |
//! | Edge case: the last address of a pool | `edge_cases::a_pool_that_loses_its_last_address_is_warned_about_once` |
//! | Edge case: `externalTrafficPolicy: Local` | `edge_cases::pools_of_local_services_are_served_like_others` |
//! | Edge case: VM freeze | `edge_cases::freezes_and_other_troubles_are_the_probes_business` |
//! | Edge case: several standard load balancers | `edge_cases::several_load_balancers_with_their_internal_twins` |
//! | Edge case: several load balancers, a new one | `edge_cases::a_load_balancer_or_pool_that_comes_while_a_node_is_out` |
//! | Edge case: dual-stack clusters | `edge_cases::dual_stack_by_family` |
//! | Non-goal: cordon, `kubectl drain`, unschedulable | `edge_cases::cordons_and_drains_are_no_signals` |
//! | Ours: pools with outbound rules only | `edge_cases::a_pool_with_outbound_rules_only_is_left_alone` |
//! | Ours: excluded and control-plane nodes | `edge_cases::nodes_that_belong_in_no_load_balancer` |
//! | Ours: no load balancer at all | `edge_cases::unknown_load_balancers_and_empty_groups_are_no_trouble` |
//! | Risk: throttling, the write is refused | `risks::throttled_writes_come_again_to_the_second_and_it_is_told_once` |
//! | Risk: throttling, the read is refused | `risks::throttled_lists_come_again_to_the_second_and_it_is_told` |
//! | Risk: throttling, token bucket | `risks::the_token_bucket_makes_writes_wait_in_line` |
//! | Risk: throttling, exponential backoff | `risks::retries_grow_further_apart` |
//! | Risk: call reduction, one write for each pool | `risks::one_write_for_each_pool_however_many_nodes` |
//! | Risk: call reduction, no-ops | `risks::what_is_so_already_is_not_written` |
//! | Risk: stale state, replaced node | `replaced::a_node_made_anew_does_not_inherit_down` |
//! | Risk: stale state, replaced at once | `replaced::a_node_made_anew_at_once_does_not_inherit_down` |
//! | Risk: stale state, the leader died | `replaced::a_node_made_anew_does_not_inherit_down_of_a_leader_that_died` |
//! | Risk: stale state, nobody led | `replaced::a_signal_that_ended_while_nobody_led_is_undone` |
//! | Risk: stale state, an address of two nodes | `replaced::an_address_that_another_node_has_now_is_the_other_nodes` |
//! | Risk: stale state, a stale write | `replaced::a_down_that_a_stale_write_brings_back_is_undone` |
//! | Signal detection: what no watch told of | `replaced::what_happened_while_no_watch_told_of_it_is_seen` |
//! | Risk: partial updates | `risks::partial_updates_are_told_and_go_on_until_all_is_done` |
//! | Risk: partial updates, a right is missing | `risks::a_missing_right_is_told_once_and_tried_slowly` |
//! | Risk: partial updates, nothing may be read | `risks::a_group_that_may_not_be_read_is_told_once` |
//! | Risk: concurrency, a fresh read after a lost race | `risks::a_write_overtaken_is_made_again_from_a_fresh_read_at_once` |
//! | Risk: concurrency, a stale cache | `risks::what_was_read_before_never_overwrites_what_somebody_wrote` |
//! | Risk: concurrency, the lock is another's | `lease::while_another_has_the_lease_nothing_is_written_and_it_is_told` |
//! | Risk: concurrency, the lock's holder is dead | `lease::a_lease_that_nobody_gives_back_is_had_when_it_has_expired` |
//! | Risk: concurrency, a lost `Down` | `lease::what_the_other_undid_under_the_lease_is_done_again_within_a_second` |
//! | Risk: concurrency, a signal that ended meanwhile | `lease::a_signal_that_ends_while_the_lease_is_awaited_costs_no_write` |
//! | Risk: concurrency, the lock is lost before a write is sent | `lease::a_write_that_waits_is_not_sent_once_another_has_the_lease` |
//! | Observability: `Down` event when all is applied | `events::down_is_told_once_all_is_applied` |
//! | Observability: events on nodes, not services | `events::events_are_about_nodes_and_of_their_types` |
//! | Observability: each event's note | `events::each_events_note_is_its_own` |
//! | Observability: failure includes the error | `events::another_failure_is_told_as_another` |
//! | Observability: metrics by name | `events::series_after_a_journey` |
//! | Ours: queue depth | `events::the_queue_is_as_deep_as_what_is_still_to_be_written` |
//! | Ours: rules without a probe | `events::rules_without_a_probe_are_named` |
//! | Ours: out-of-service taken off a Ready node | `events::out_of_service_taken_off_a_ready_node_names_the_draining_taint` |
//! | Ours: out-of-service taken off at once | `events::out_of_service_taken_off_before_anything_was_written` |
//! | Testing: services without such a node | `ownership::services_without_a_node_out_of_service_see_nothing` |
//! | Ours: a foreign `Down`, kept | `ownership::a_foreign_down_is_kept` |
//! | Ours: a foreign `Down`, taken back | `ownership::a_foreign_down_is_taken_back_where_that_is_wished` |
//! | Ours: a foreign `Up` | `ownership::a_foreign_up_is_left_alone` |
//! | Ours: a foreign `Up` over a `Down` of ours | `ownership::a_down_that_somebody_made_up_is_his` |
//! | Ours: observe | `ownership::observing_writes_nothing` |
//! | Configuration: the toggle | `ownership::off_gives_back_what_is_ours_and_rests` |
//! | Ours: a hand-over | `ownership::a_term_that_is_given_back_leaves_nothing_half_done` |
//! | Configuration: NIC-based pools, scale sets | `interfaces::members_of_a_scale_set_are_known_by_their_ids` |
//! | Configuration: NIC-based pools, other machines | `interfaces::members_of_other_machines_are_asked_about_once` |
//! | Ours: an interface that cannot be read | `interfaces::an_interface_that_cannot_be_read_keeps_nobody_else_waiting_and_is_told` |
//! | Ours: an interface that is slow to be read | `interfaces::an_interface_that_is_slow_to_be_read_keeps_nobody_else_waiting` |
//! | Ours: `headgate restore`, interfaces slow to be read | `interfaces::what_is_given_back_waits_for_interfaces_that_are_slow_to_be_read` |
//! | Ours: a machine without a Node | `interfaces::a_machine_without_a_node_is_left_alone` |

mod edge_cases;
mod events;
mod interfaces;
mod lease;
mod lifecycle;
mod ownership;
mod replaced;
mod risks;
mod scenarios;
pub(super) mod stage;

use std::collections::BTreeSet;

/// The tests of each file, as `file::test`.
fn tests() -> BTreeSet<String> {
    let sources = [
        ("edge_cases", include_str!("rows/edge_cases.rs")),
        ("events", include_str!("rows/events.rs")),
        ("interfaces", include_str!("rows/interfaces.rs")),
        ("lease", include_str!("rows/lease.rs")),
        ("lifecycle", include_str!("rows/lifecycle.rs")),
        ("ownership", include_str!("rows/ownership.rs")),
        ("replaced", include_str!("rows/replaced.rs")),
        ("risks", include_str!("rows/risks.rs")),
        ("scenarios", include_str!("rows/scenarios.rs")),
    ];
    let of = |(file, source): (&str, &str)| {
        let after = source.split("#[tokio::test(start_paused = true)]").skip(1);
        let names = after.map(|rest| {
            rest.trim_start()
                .trim_start_matches("async fn ")
                .split('(')
                .next()
                .unwrap()
                .to_owned()
        });
        names.map(|name| format!("{file}::{name}")).collect::<Vec<_>>()
    };
    sources.into_iter().flat_map(of).collect()
}

#[test]
fn the_table_names_every_test_once_and_nothing_else() {
    let rows = include_str!("rows.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | ")?.split_once(" | `"));
    let named: Vec<_> = rows.map(|(_, test)| test.trim_end_matches("` |").to_owned()).collect();
    let each: BTreeSet<_> = named.iter().cloned().collect();
    assert_eq!(named.len(), each.len(), "a test stands for one row");
    assert_eq!(each, tests());
}
