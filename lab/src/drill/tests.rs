use clap::Parser;

use headgate_drill::drill::DrillError;

use super::*;

#[derive(Parser)]
struct Whole {
    #[command(flatten)]
    arguments: Arguments,
}

fn parse(flags: &str) -> Result<Options, clap::Error> {
    let flags = std::iter::once("drill").chain(flags.split_whitespace());
    Whole::try_parse_from(flags).map(|whole| whole.arguments.options().unwrap())
}

#[test]
fn strategies_default_to_all_that_apply_to_the_scenario() {
    let named = parse("--scenario scale-down --strategy kube-proxy,admin-state").unwrap();
    assert_eq!(named.strategies, [Strategy::KubeProxy, Strategy::AdminState]);
    let all = parse("--scenario rolling-update").unwrap();
    assert!(all.strategies.contains(&Strategy::PodIp) && !all.strategies.contains(&Strategy::Healthz));
    all.validate().unwrap();
    let misplaced = parse("--scenario spot --strategy pod-ip").unwrap();
    assert!(matches!(misplaced.validate(), Err(DrillError::NotApplicable { .. })));
    assert!(parse("--scenario scale-down --speed 0").is_err());
    assert_eq!(parse("--scenario empty-node").unwrap().scenario, Scenario::ScaleDown);
    let mixed = parse("--scenario scale-down --connection-lifetime mix").unwrap();
    assert!(mixed.has_mixed_lifetimes && mixed.pods.connection_lifetime == Duration::from_mins(10));
    assert!(parse("--scenario scale-down --connection-lifetime mixed").is_err());
    let twice = parse("--scenario scale-down --strategy none,healthz,none").unwrap();
    assert_eq!(twice.strategies, [Strategy::None, Strategy::Healthz]);
}

#[test]
fn flags_without_an_effect_are_rejected_before_anything_runs() {
    let check = |flags: &str| {
        let flags = std::iter::once("drill").chain(flags.split_whitespace());
        let arguments = Whole::try_parse_from(flags).unwrap().arguments;
        let checked = arguments.check(&arguments.options().unwrap());
        checked.map_err(|error| error.to_string())
    };
    check("--scenario scale-down --strategy none,healthz --expect-no-loss healthz").unwrap();
    check("--scenario scale-down --expect-no-loss admin-state").unwrap();
    check("--scenario scale-down --provider gcp --deregistration-delay 10s").unwrap();
    let error = check("--scenario scale-down --strategy none,healthz --expect-no-loss admin-state").unwrap_err();
    assert!(
        error.contains("names admin-state") && error.contains("none, healthz"),
        "{error}"
    );
    for flags in [
        "--scenario scale-down --deregistration-delay 10s",
        "--scenario scale-down --provider gcp --strategy none --deregistration-delay 10s",
    ] {
        assert!(
            check(flags)
                .unwrap_err()
                .contains("--deregistration-delay has no effect"),
            "{flags}"
        );
    }
}
