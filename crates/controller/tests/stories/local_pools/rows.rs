//! Which test covers which one of cloud-provider-azure's updater (`azure_local_services_test.go`), of the open pull requests
//! for its retries (10635) and its desired-state operations (10730), of the design of bounded retry, and which shows that a known
//! defect is absent. [`every_row_has_its_test`] compares the names with the sources.
//!
//! Modules without a prefix are stories on the emulator in paused time. `rules::` are pure tests of `headgate-local-pools`,
//! where the row is about one function; `src::` are unit tests.
//!
//! **The updater and the desired state**
//!
//! | Row | Test |
//! |---|---|
//! | `EndpointSliceFromDeleteEvent` (tombstones are client-go's) | `updater::new_and_deleted_slices_change_the_pool` |
//! | Updater: add node IPs; several operations of one pool are one PUT | `desired::changes_within_one_interval_are_one_put_for_each_pool` |
//! | Updater: remove node IPs; the pool is empty | `updater::new_and_deleted_slices_change_the_pool` |
//! | Updater: different backend pools | `desired::changes_within_one_interval_are_one_put_for_each_pool` |
//! | Updater: two batches | `desired::changes_in_two_intervals_are_two_puts` |
//! | Updater: remove operations by service name | `desired::service_that_is_deleted_before_the_tick_costs_no_request` |
//! | Updater: not local service | `desired::service_that_is_not_local_costs_no_request` |
//! | Updater: not on this load balancer | `desired::service_on_another_load_balancer_is_updated_where_its_rule_is` |
//! | Updater: empty queue | `updater::nothing_is_requested_while_nothing_is_due` |
//! | Updater: addresses that are (not) there already cost no PUT | `updater::update_that_cloud_controller_manager_has_made_costs_no_write` |
//! | 10730: empty desired state on empty pool | `desired::empty_desired_state_of_an_empty_pool_costs_no_put` |
//! | 10730: deduplicates in empty pool; multiple endpoints on same node | `desired::several_endpoints_of_one_node_are_one_member` |
//! | 10730: mixed add and remove | `desired::members_are_added_and_removed_in_one_put` |
//! | `UpdaterFailed`: get | `desired::read_that_is_refused_for_good_writes_nothing` |
//! | `UpdaterFailed`: update | `updater::other_errors_are_final` |
//! | `UpdaterFailed`: pool not found | `updater::pool_that_is_gone_is_dropped_without_event_and_metric` |
//! | `UpdaterFailed`: pool not found by the PUT | `desired::pool_that_vanishes_before_the_put_is_dropped_silently` |
//! | Informer: remove unwanted, add wanted | `desired::members_are_added_and_removed_in_one_put` |
//! | Informer: non-local services; a slice of no service | `desired::slices_of_no_service_and_of_other_namespaces_do_not_count` |
//! | Informer: unchanged node set, other endpoint counts | `desired::several_endpoints_of_one_node_are_one_member` |
//! | Informer 10730: unchanged node set preserves the retries | `retries::unchanged_members_keep_the_retries` |
//! | Informer 10730: all slices; removed endpoints; scale to zero | `updater::new_and_deleted_slices_change_the_pool` |
//! | Informer 10730: node with multiple IPs | `defects::node_with_several_addresses_has_entries_with_names_of_their_own` |
//! | Informer 10730: dual-stack, one operation for each pool | `desired::dual_stack_service_is_one_update_for_each_pool` |
//! | `CheckAndApply`: both pools; no slice, no operation | `defects::service_without_slices_keeps_its_members` |
//! | `CountOperations`, `DrainOperations` | `rules::queue::services_and_pools_are_independent` |
//! | `GroupOperations`: irrelevant ones are skipped, others stay | `rules::settled::operations_without_service_are_dropped_and_the_others_are_retried` |
//! | `SerializesWithServiceReconcileLock` (the shared Lease) | `updater::without_the_shared_lease_everything_stays_queued` |
//! | `AddOperationNotBlockedDuringProcess` | `desired::changes_are_accepted_while_a_request_is_under_way` |
//! | `PreservesOperationsOnLeaseLockFailure` | `updater::without_the_shared_lease_everything_stays_queued` |
//! | `CompletesOnUnlockFailure` | `desired::update_counts_although_the_lease_cannot_be_released` |
//! | `FiltersOperationsWhenLBChangedDuringProcess` | `desired::service_on_another_load_balancer_is_updated_where_its_rule_is` |
//! | `RemoveOperationCancelsOperationsBeforeDrain` | `desired::service_that_is_deleted_while_the_lease_is_held_costs_no_request` |
//! | `EnsureHostsInPool`: NIC pool | `updater::pool_of_interfaces_is_rejected_with_an_event` |
//! | `EnsureHostsInPool`: another namespace | `desired::slices_of_no_service_and_of_other_namespaces_do_not_count` |
//! | `AddNodeIPAddresses`: the pool's virtual network | `desired::pool_without_a_virtual_network_gets_the_clusters` |
//! | `RemoveNodeIPAddress`: other entries stay | `updater::foreign_entries_and_unknown_fields_survive` |
//! | 10730: nil address properties | `rules::properties::merge_never_panics_on_malformed_documents` |
//! | `AddOperation`: replaces, keeps the parking time, resets the retries | `rules::queue::other_addresses_replace_and_keep_the_parking_time` |
//! | `AddOperation`: services and pools are independent | `rules::queue::services_and_pools_are_independent` |
//! | `AddOperation`: skips when unchanged | `rules::queue::a_drain_signal_reaches_a_queued_operation_and_costs_no_budget` |
//! | Requeue: prepends | `rules::queue::returned_operations_precede_newer_ones_in_their_order` |
//! | Requeue 10730: a fresher operation stays, the later time is kept | `rules::queue::a_newer_operation_takes_over_the_later_parking_time` |
//! | `AreNodeIPsEqual` | `src::operation::equality_of_addresses_ignores_order_and_repetition` |
//! | `HasParkedOperations` | `rules::settled::one_parked_operation_parks_the_whole_pool` |
//!
//! **Retry**
//!
//! | Row | Test |
//! |---|---|
//! | successful update: event, one observation | `retries::success_is_one_observation_and_no_failure` |
//! | 408 and 5xx (seed 10; retried here, docs/decisions.md 11) | `retries::exhausted_retries_are_one_observation_and_one_failure` |
//! | 404 (seed 12) | `updater::pool_that_is_gone_is_dropped_without_event_and_metric` |
//! | non-ARM error | `retries::broken_connection_is_retried` |
//! | other terminal errors (seed 11) | `updater::other_errors_are_final` |
//! | 409 with no retries (seed 18) | `updater::without_retries_the_first_conflict_is_final` |
//! | 409, 412: requeued, then succeeds (seed 5) | `updater::conflict_is_retried_at_the_next_tick_after_a_fresh_read` |
//! | throttled GET (seed 1) | `updater::throttled_read_parks_the_group_to_the_second` |
//! | throttled PUT (seed 2); fresh members while parked | `updater::throttled_write_parks_the_group_to_the_second` |
//! | 429 without a time (seed 3) | `updater::throttled_write_without_retry_after_succeeds_at_the_next_tick` |
//! | 429 with a past time | `retries::retry_after_of_nothing_parks_for_a_second` |
//! | closed local gate (seed 4) | `updater::closed_throttle_gate_parks_without_a_request` |
//! | parked operation blocks its group (seed 6) | `rules::settled::one_parked_operation_parks_the_whole_pool` |
//! | exhausted, with guidance (seed 9) | `updater::exhausted_update_is_reported_with_guidance_and_found_again_by_the_resync` |
//! | own retry counters; mixed budgets (seeds 7 and 8), in one pool | `rules::settled::operation_without_retries_left_is_removed_and_the_other_stays_queued` |
//! | own retry counters; mixed budgets (seeds 7 and 8), in one load balancer | `retries::each_update_keeps_its_own_budget_where_one_read_fails_for_all` |
//! | several services (seed 15), in one pool | `rules::settled::every_service_of_a_batch_gets_one_event` |
//! | several services (seed 15), in one load balancer | `defects::every_service_gets_its_event_where_one_request_fails_for_several` |
//! | retry, then success: one success (seed 19) | `retries::success_is_one_observation_and_no_failure` |
//! | stale or moved during the call (seed 13) | `rules::retry::update_of_a_service_that_leaves_during_the_call_is_dropped_without_event` |
//! | deleted during the call | `updater::service_that_is_deleted_during_the_write_leaves_silently` |
//! | moved between ticks | `retries::retried_update_of_a_moved_service_is_dropped_where_it_was` |
//! | stale while parked (seed 14) | `updater::service_that_disappears_while_parked_leaves_silently` |
//! | `removeOperation`: parked (seed 16) | `updater::service_that_stops_being_local_while_parked_leaves_silently` |
//! | `removeOperation`: requeued | `retries::retried_update_of_a_deleted_service_is_dropped` |
//! | requeue serialized with removal | `made_again::failure_of_an_old_update_is_not_reported_on_a_service_created_again` |
//! | context canceled | `updater::shutdown_during_a_write_reports_nothing` |
//! | shutdown with parked operations (seed 17) | `updater::shutdown_drops_parked_updates_without_events` |
//! | 10730: fresh desired state resets the retries | `retries::newer_members_have_a_fresh_budget_and_are_written` |
//! | 10730: fresher operation during the call | `retries::newer_members_during_the_write_replace_the_failed_ones` |
//! | 10730: two services independently | `updater::failure_of_one_pool_does_not_hold_back_another` |
//! | `MaxRetriesNormalization` | `src::settings::retries` |
//!
//! **Known defects**
//!
//! | Defect | Test |
//! |---|---|
//! | only the first Service of a group gets an event | `defects::every_service_gets_its_event_where_one_request_fails_for_several` |
//! | `resourceGroup` in place of `loadBalancerResourceGroup` | `defects::load_balancers_in_a_resource_group_of_their_own_are_updated` |
//! | other slices of the Service are ignored; new and deleted ones enqueue nothing | `updater::new_and_deleted_slices_change_the_pool` |
//! | dual-stack nodes make each update differ | `defects::nodes_of_both_families_cause_neither_writes_nor_events` |
//! | without a slice all nodes are added | `defects::service_without_slices_keeps_its_members` |
//! | pools are written from an old list | `defects::members_are_written_from_a_fresh_read` |
//! | orphan pools | `defects::orphan_pools_stay_as_they_are` |
//! | issue 9839: 412 between writers of one process | `defects::updates_and_admin_states_never_overtake_each_other` |
//! | issue 10307: `DuplicateResourceName` | `defects::node_with_several_addresses_has_entries_with_names_of_their_own` |
//! | issue 9803: empty names | `defects::unknown_node_joins_once_it_exists` |
//! | issue 10270: 409, 412 and 429 lose a change | `updater::conflict_is_retried_at_the_next_tick_after_a_fresh_read` |
//! | issue 10556: an exhausted change is lost | `updater::exhausted_update_is_reported_with_guidance_and_found_again_by_the_resync` |

/// The sources of the modules that the tables name.
const SOURCES: [(&str, &str); 11] = [
    ("updater", include_str!("updater.rs")),
    ("desired", include_str!("desired.rs")),
    ("retries", include_str!("retries.rs")),
    ("defects", include_str!("defects.rs")),
    ("made_again", include_str!("made_again.rs")),
    (
        "rules::queue",
        include_str!("../../../../local-pools/tests/rules/queue.rs"),
    ),
    (
        "rules::settled",
        include_str!("../../../../local-pools/tests/rules/settled.rs"),
    ),
    (
        "rules::retry",
        include_str!("../../../../local-pools/tests/rules/retry.rs"),
    ),
    (
        "rules::properties",
        include_str!("../../../../local-pools/tests/rules/properties.rs"),
    ),
    (
        "src::operation",
        include_str!("../../../../local-pools/src/operation.rs"),
    ),
    ("src::settings", include_str!("../../../../local-pools/src/settings.rs")),
];

#[test]
fn every_row_has_its_test() {
    let rows = include_str!("rows.rs").lines().filter_map(|line| {
        let row = line.strip_prefix("//! | ")?.strip_suffix("` |")?;
        row.rsplit_once("| `")
    });
    let mut count = 0;
    for (row, test) in rows {
        let (module, name) = test.rsplit_once("::").unwrap();
        let source = SOURCES.iter().find(|(known, _)| *known == module);
        let (_, source) = source.unwrap_or_else(|| panic!("{row}: no source of {module}"));
        assert!(source.contains(&format!("fn {name}(")), "{row}: no {test}");
        count += 1;
    }
    assert!(count > 80, "{count}");
}
