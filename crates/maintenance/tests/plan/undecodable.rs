//! Maintenances that exist and cannot be decoded: what they may want stays, and nothing else does.

use headgate_maintenance::api::{PodType, Stage};

use crate::world::World;

/// A node with a pod and a maintenance, of which a newer headgate has made what this one cannot decode, and perhaps an older maintenance, `m`.
fn undecodable(stage: Stage, of_older: Option<Stage>) -> World {
    let mut world = World::default()
        .nodes(&["one", "two"])
        .pods("one", 1, PodType::Default, 0);
    if let Some(stage) = of_older {
        world.maintain("m", stage, &["one"], &[]);
    }
    world.maintain("odd", stage, &["one"], &[]);
    let uid = "0b6e1f52-4c1d-4d53-9d0a-7a3c5f3f9a11".to_owned();
    world.change("odd", |one| one.metadata.uid = Some(uid.clone()));
    world.settle();
    world
        .snapshot
        .maintenances
        .retain(|one| one.metadata.name.as_deref() != Some("odd"));
    world.snapshot.undecodable_maintenances = [(uid, "odd".to_owned())].into();
    world
}

#[test]
fn the_node_of_an_undecodable_maintenance_stays_out_until_that_is_gone() {
    let [cordon, drain, complete] = [Stage::Cordon, Stage::Drain, Stage::Complete];
    for (what, stage, of_older, of_another) in [
        ("cordoned", cordon, None, [].as_slice()),
        ("cordoned, and of an idle one", cordon, None, &[Stage::Idle]),
        ("cordoned by two, one of which ends", cordon, None, &[cordon, complete]),
        ("cordoned, and of one that was over before", cordon, Some(complete), &[]),
        (
            "cordoned, and drained by an older one that ends",
            cordon,
            Some(drain),
            &[complete],
        ),
        ("drained", drain, None, &[]),
        ("drained, and of an idle one", drain, None, &[Stage::Idle]),
        ("drained by two", drain, None, &[drain]),
        ("drained by two, one of which ends", drain, None, &[drain, complete]),
        (
            "drained by two, the older of which ends",
            drain,
            Some(drain),
            &[complete],
        ),
        (
            "drained, and cordoned by an older one that ends",
            drain,
            Some(cordon),
            &[complete],
        ),
    ] {
        let mut world = undecodable(stage, of_older);
        let isolation = |world: &mut World| {
            let node = world.node("one").clone();
            (node.unschedulable, node.was_unschedulable, node.maintenance_taint)
        };
        let before = isolation(&mut world);
        for (number, stage) in of_another.iter().enumerate() {
            if number == 0 && of_older.is_none() {
                world.maintain("m", *stage, &["one"], &[]);
            } else {
                world.change("m", |one| one.spec.stage = *stage);
            }
            world.settle();
        }
        world.settle();
        assert_eq!(isolation(&mut world), before, "{what}");
        world.snapshot.undecodable_maintenances.clear();
        world.settle();
        let is_out = of_another.last() == Some(&Stage::Drain);
        assert_eq!(world.node("one").unschedulable, is_out, "{what}");
    }
}

#[test]
fn evacuations_of_unknown_pods_stay_while_a_maintenance_is_undecodable() {
    let mut world = undecodable(Stage::Drain, None);
    // Only pods of nodes that a known maintenance selects are read.
    world.snapshot.pods.clear();
    world = world.pods("two", 1, PodType::Default, 0);
    world.maintain("m", Stage::Drain, &["two"], &[]);
    world.settle();
    assert_eq!(world.evacuated_pods().len(), 2);
    world.delete("m");
    world.settle();
    assert_eq!(world.evacuated_pods().into_iter().collect::<Vec<_>>(), ["pod-0001"]);
    world.snapshot.undecodable_maintenances.clear();
    world.settle();
    assert!(world.snapshot.evacuations.is_empty());
}
