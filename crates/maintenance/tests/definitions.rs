//! The definitions in the chart are what the types say.

use expect_test::expect_file;
use headgate_maintenance::api::definitions;

/// `UPDATE_EXPECT=1 cargo test -p headgate-maintenance --test definitions` writes them.
#[test]
fn the_chart_has_the_definitions_of_the_types() {
    let [maintenance, evacuation] = definitions().map(|definition| {
        let text = serde_yaml::to_string(&definition).unwrap();
        format!("# Generated from crates/maintenance/src/api.\n{text}")
    });
    expect_file!["../../../charts/headgate/files/crds/nodemaintenances.yaml"].assert_eq(&maintenance);
    expect_file!["../../../charts/headgate/files/crds/evacuations.yaml"].assert_eq(&evacuation);
}
