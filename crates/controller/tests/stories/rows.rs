//! The rows of the design of cloud-provider-azure ("Proactive Traffic Redirection with Azure Load Balancer Admin State"), each with
//! a test of its own, in paused time and in one process. The tests start from the draining taint; the design also derives
//! it from a `PreemptScheduled` event.
//!
//! | Row | Test |
//! |---|---|
//! | Lifecycle: `None → Down`, any signal | `lifecycle::none_to_down_by_each_signal` |
//! | Lifecycle: `None → Down`, every entry of the node | `lifecycle::none_to_down_of_every_entry_of_the_node` |
//! | Lifecycle: `Down → None`, all signals removed | `lifecycle::down_to_none_once_all_signals_are_gone` |
//! | Lifecycle: `Down → Removed`, no extra call | `lifecycle::down_to_removed_costs_no_write_when_the_node_is_deleted` |
//! | Lifecycle: `Down → Removed`, before anything was written | `lifecycle::down_to_removed_when_the_node_is_deleted_before_any_write` |
//! | Lifecycle: duplicates are ignored | `lifecycle::repeated_signal_changes_nothing` |
//! | Lifecycle: a failure leaves the previous state, event, retry | `lifecycle::failure_leaves_the_state_and_is_reported_and_retried` |
//! | Provider changes: missed updates heal | `lifecycle::foreign_reset_is_repaired` |
//! | Scenario: out-of-service taint added | `scenarios::out_of_service_by_an_operator` |
//! | Scenario: cloud shutdown taint added | `scenarios::shutdown_by_the_cloud_without_any_derived_taint` |
//! | Scenario: Spot eviction, the taint by hand | `scenarios::spot_eviction_taint_by_hand` |
//! | Scenario: Spot eviction, the taint survives restarts | `scenarios::spot_eviction_survives_the_leader` |
//! | Scenario: taints removed | `scenarios::removed_signals_put_the_node_back` |
//! | Scenario: one taint replaces another | `scenarios::signal_that_replaces_another_causes_no_gap` |
//! | Edge case: single-pod services | `edge_cases::single_pod_services_go_down_too` |
//! | Edge case: the last address of a pool | `edge_cases::pool_without_an_eligible_address_gets_one_warning` |
//! | Edge case: `externalTrafficPolicy: Local` | `edge_cases::pools_of_local_services_are_written_too` |
//! | Edge case: VM freeze | `edge_cases::freezes_and_unready_nodes_are_left_to_probes` |
//! | Edge case: several standard load balancers | `edge_cases::several_load_balancers_with_internal_twins` |
//! | Edge case: several load balancers, a new one | `edge_cases::new_load_balancers_and_pools_while_a_node_is_down` |
//! | Edge case: dual-stack clusters | `edge_cases::dual_stack_by_family` |
//! | Non-goal: cordon, `kubectl drain`, unschedulable | `edge_cases::cordons_and_drains_are_no_signals` |
//! | headgate: pools with outbound rules only | `edge_cases::pool_with_outbound_rules_only_is_left_alone` |
//! | headgate: excluded and control-plane nodes | `edge_cases::excluded_nodes_are_left_alone` |
//! | Provider changes: nodes being deleted flip before they are removed | `deletion::deletion_takes_the_node_out_before_karpenters_label_arrives` |
//! | headgate: excluded nodes that are being removed | `deletion::label_exempts_no_node_that_is_being_removed` |
//! | headgate: excluded nodes, a new leader | `deletion::new_leader_plans_the_same_whatever_came_first` |
//! | headgate: a scale-down is taken back | `deletion::scale_down_that_cluster_autoscaler_takes_back_puts_the_node_back` |
//! | headgate: no load balancer at all | `edge_cases::unknown_load_balancers_and_empty_groups_are_no_error` |
//! | Risk: throttling, the write is refused | `risks::throttled_writes_are_retried_to_the_second_and_reported_once` |
//! | Risk: throttling, the read is refused | `risks::throttled_lists_are_retried_to_the_second_and_reported` |
//! | Risk: throttling, token bucket | `risks::token_bucket_queues_writes` |
//! | Risk: throttling, exponential backoff | `risks::retries_back_off_exponentially` |
//! | Risk: call reduction, one write for each pool | `risks::one_write_for_each_pool_however_many_nodes` |
//! | Risk: call reduction, no-ops | `risks::nothing_is_written_without_a_change` |
//! | Risk: stale state, replaced node | `replaced::recreated_node_does_not_inherit_down` |
//! | Risk: stale state, replaced at once | `replaced::node_recreated_at_once_does_not_inherit_down` |
//! | Risk: stale state, the leader died | `replaced::recreated_node_does_not_inherit_down_of_a_dead_leader` |
//! | Risk: stale state, no leader | `replaced::signal_that_ended_without_a_leader_is_restored` |
//! | Risk: stale state, an address of two nodes | `replaced::address_taken_over_belongs_to_the_node_that_its_entry_names` |
//! | Risk: stale state, a stale write | `replaced::down_from_a_stale_write_is_restored` |
//! | Signal detection: changes during a broken watch | `replaced::changes_during_a_broken_watch_are_observed` |
//! | Risk: partial updates | `risks::partial_updates_are_reported_and_completed` |
//! | Risk: partial updates, a right is missing | `risks::missing_right_is_reported_once_and_retried_slowly` |
//! | Risk: partial updates, no right to read | `risks::unreadable_group_is_reported_once` |
//! | Risk: concurrency, a fresh read after a lost race | `risks::overtaken_write_is_repeated_at_once_from_a_fresh_read` |
//! | Risk: concurrency, a stale cache | `risks::stale_read_never_overwrites_a_foreign_write` |
//! | Risk: concurrency, the lock is held | `lease::held_lease_prevents_writes_and_is_reported` |
//! | Risk: concurrency, the lock's holder is dead | `lease::unreleased_lease_is_acquired_after_it_expires` |
//! | Risk: concurrency, a lost `Down` | `lease::reset_under_the_lease_is_repaired_within_a_second` |
//! | Risk: concurrency, a signal that ended meanwhile | `lease::signal_that_ends_while_waiting_for_the_lease_causes_no_write` |
//! | Risk: concurrency, the lock is lost before a write is sent | `lease::waiting_write_is_not_sent_after_the_lease_is_lost` |
//! | Observability: `Down` event when all is applied | `events::down_event_follows_the_last_write` |
//! | Observability: events on nodes, not services | `events::events_regard_nodes_and_have_the_right_types` |
//! | Observability: each event's note | `events::each_event_has_its_own_note` |
//! | Observability: failure includes the error | `events::changed_failure_gets_another_event` |
//! | Observability: metrics by name | `events::series_after_a_journey` |
//! | headgate: queue depth | `events::queue_depth_counts_changes_that_are_due` |
//! | headgate: rules without a probe | `events::event_names_rules_without_a_probe` |
//! | headgate: out-of-service removed from a Ready node | `events::out_of_service_removed_from_a_ready_node_names_the_draining_taint` |
//! | headgate: out-of-service removed at once | `events::out_of_service_removed_before_anything_is_written` |
//! | Testing: services without such a node | `ownership::services_without_a_node_out_of_service_see_nothing` |
//! | headgate: a foreign `Down`, kept | `ownership::foreign_down_is_kept` |
//! | headgate: a foreign `Down`, restored | `ownership::foreign_down_is_restored_by_setting` |
//! | headgate: a foreign `Up` | `ownership::foreign_up_is_left_alone` |
//! | headgate: a foreign `Up` over headgate's `Down` | `ownership::foreign_up_over_a_down_is_left_alone` |
//! | headgate: observe | `ownership::mode_observe_writes_nothing` |
//! | Configuration: the toggle | `ownership::mode_off_restores_and_stops_requests` |
//! | headgate: a handover | `ownership::handover_leaves_no_partial_write` |
//! | Configuration: NIC-based pools, scale sets | `interfaces::scale_set_interfaces_need_no_lookup` |
//! | Configuration: NIC-based pools, other machines | `interfaces::other_interfaces_are_looked_up_once` |
//! | headgate: an interface that cannot be read | `interfaces::unreadable_interface_delays_no_other_node_and_is_reported` |
//! | headgate: a slow interface lookup | `interfaces::slow_interface_lookup_delays_no_other_node` |
//! | headgate: `headgate restore`, slow interface lookups | `interfaces::restore_waits_for_slow_interface_lookups` |
//! | headgate: a machine without a Node | `interfaces::machine_without_a_node_is_left_alone` |

pub(super) mod cluster;
mod deletion;
mod edge_cases;
mod events;
mod interfaces;
mod lease;
mod lifecycle;
mod ownership;
mod replaced;
mod risks;
mod scenarios;

use std::collections::BTreeSet;

/// The tests of each file, as `file::test`.
fn tests() -> BTreeSet<String> {
    let sources = [
        ("deletion", include_str!("rows/deletion.rs")),
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
fn table_names_every_test_once_and_nothing_else() {
    let rows = include_str!("rows.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | ")?.split_once(" | `"));
    let named: Vec<_> = rows.map(|(_, test)| test.trim_end_matches("` |").to_owned()).collect();
    let each: BTreeSet<_> = named.iter().cloned().collect();
    assert_eq!(named.len(), each.len(), "a test stands for one row");
    assert_eq!(each, tests());
}
