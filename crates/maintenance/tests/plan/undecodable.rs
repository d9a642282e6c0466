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
        .retain(|one| one.metadata.uid.as_ref() != Some(&uid));
    world.snapshot.undecodable_maintenances = [(uid, "odd".to_owned())].into();
    world
}

#[test]
fn the_node_of_an_undecodable_maintenance_stays_out_until_that_is_gone() {
    use Stage::{Complete, Cordon, Drain, Idle};
    // Its own stage, that of an older one, and those of another one, or of the older one from then on.
    for (stage, of_older, of_another) in [
        (Cordon, None, [].as_slice()),
        (Cordon, None, &[Idle]),
        (Cordon, None, &[Cordon, Complete]),
        (Cordon, Some(Complete), &[]),
        (Cordon, Some(Drain), &[Complete]),
        (Drain, None, &[]),
        (Drain, None, &[Idle]),
        (Drain, None, &[Drain]),
        (Drain, None, &[Drain, Complete]),
        (Drain, Some(Drain), &[Complete]),
        (Drain, Some(Cordon), &[Complete]),
    ] {
        let what = format!("{stage:?}, an older one {of_older:?}, then {of_another:?}");
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
                world.set_stage("m", *stage);
            }
            world.settle();
        }
        world.settle();
        assert_eq!(isolation(&mut world), before, "{what}");
        world.snapshot.undecodable_maintenances.clear();
        world.settle();
        let is_out = of_another.last() == Some(&Drain);
        assert_eq!(world.node("one").unschedulable, is_out, "{what}");
    }
}

#[test]
fn evacuations_of_unknown_pods_stay_while_a_maintenance_is_undecodable() {
    let mut world = undecodable(Stage::Drain, None);
    // Only pods of nodes that a known maintenance selects are read.
    world.snapshot.pods.clear();
    world = world.pods("two", 1, PodType::Default, 0);
    world.maintain("m", Stage::Drain, &["two"], &[]).settle();
    assert_eq!(world.evacuated_pods().len(), 2);
    world.delete("m").settle();
    assert_eq!(world.evacuated_pods(), ["pod-0001"]);
    world.snapshot.undecodable_maintenances.clear();
    world.settle();
    assert!(world.snapshot.evacuations.is_empty());
}
