//! The conditions of a maintenance that say whether it is accepted, and whether something is stuck.

use headgate_maintenance::api::{PodType, Stage};
use headgate_maintenance::drain_plan::{Labels, PodSelector};
use headgate_maintenance::snapshot::BudgetFacts;

use crate::world::{OUT, World, in_service};

#[test]
fn every_condition_is_there_from_the_first_status_on() {
    for stage in [Stage::Idle, Stage::Cordon, Stage::Drain, Stage::Complete] {
        for node in ["one", "other"] {
            let mut world = World::default().nodes(&["one", "two"]);
            world.maintain("m", stage, &[node], &[]).settle();
            let conditions = world.maintenance_status("m").conditions.iter();
            let found = conditions.map(|one| one.type_.as_str()).collect::<Vec<_>>().join(" ");
            let expected = "Accepted AllNodesSelected Blocked Drained LoadBalancerOut Progressing";
            assert_eq!(found, expected, "{stage:?}");
            let accepted = match (node, stage) {
                ("other", Stage::Idle | Stage::Cordon | Stage::Drain) => ("False", "NoNodes"),
                _ => ("True", "Accepted"),
            };
            assert_eq!(world.condition("m", "Accepted"), accepted, "{stage:?} {node}");
            assert_eq!(world.condition("m", "AllNodesSelected").0, "False");
            let drained = world.condition("m", "Drained");
            assert!(
                stage == Stage::Drain || drained == ("False", "NotStarted"),
                "{stage:?}: {drained:?}"
            );
        }
    }
}

#[test]
fn what_needs_someone_blocks() {
    let mut world = World::default().nodes(&["one"]).pods("one", 2, PodType::Default, 0);
    for pod in &mut world.snapshot.pods {
        pod.labels = Labels::from([("app".to_owned(), "web".to_owned())]);
    }
    world.snapshot.budgets.push(BudgetFacts {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        selector: PodSelector::label("app", "web"),
        disruptions_allowed: 0,
        ..BudgetFacts::default()
    });
    world.observe("one", in_service());
    world.maintain("m", Stage::Drain, &["one"], &[]).settle();
    assert_eq!(
        world.condition("m", "Blocked"),
        ("False", "NotBlocked"),
        "the gate waits"
    );
    let refused = ("uid-0001".to_owned(), "no quota".to_owned());
    world.snapshot.refused_evacuations.extend([refused]);
    let end = Some(world.after(30));
    for (end, expected) in [(end, ("False", "NotBlocked")), (None, ("True", "EvictionFailed"))] {
        world.snapshot.pods[0].terminating_until = end;
        world.settle();
        assert_eq!(world.condition("m", "Blocked"), expected, "{end:?}");
    }
    let message = |world: &World, kind| world.whole_condition("m", kind).message.clone();
    assert_eq!(
        message(&world, "Blocked"),
        "1 pod cannot leave, first shop/pod-0001 on one: no Evacuation: no quota"
    );
    let refused = std::mem::take(&mut world.snapshot.refused_evacuations);
    assert_eq!(world.plan().wake_at, Some(world.after(600)));
    world.pass(600);
    assert_eq!(world.condition("m", "Blocked"), ("True", "LoadBalancerNotConfirmed"));
    assert_eq!(world.plan().wake_at, None);
    world.observe("one", OUT).settle();
    // What was refused before has an Evacuation by now.
    world.snapshot.refused_evacuations = refused;
    world.settle();
    assert_eq!(world.condition("m", "Blocked"), ("True", "DisruptionBudget"));
    assert_eq!(
        message(&world, "Blocked"),
        "2 pods cannot leave, first shop/pod-0001 on one: PodDisruptionBudget web allows 0 disruptions"
    );
    world.snapshot.budgets.clear();
    world.settle();
    assert_eq!(world.condition("m", "Blocked"), ("False", "NotBlocked"));
    assert_eq!(message(&world, "Drained"), "2 pods have to leave: one");
    world.leave("one", 1).settle();
    assert_eq!(message(&world, "Drained"), "1 pod has to leave: one");
    assert_eq!(world.maintenance_status("m").drained_nodes, 0);
    world.remove_pods(|_| true).settle();
    assert_eq!(world.maintenance_status("m").drained_nodes, 1);
}
