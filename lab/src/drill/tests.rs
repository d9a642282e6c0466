use clap::Parser;

use headgate_budget::probe::{ProbeRule, Provider};
use headgate_drill::azure::PoolMembers;
use headgate_drill::conditions::Conditions;
use headgate_drill::drill::{ConnectionLifetime, DrillError, NegativeControl};
use headgate_drill::machine::{DeletedMachines, PowerOff};
use headgate_drill::scenario::Scenario;

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
    assert_eq!(named.strategies(), [Strategy::KubeProxy, Strategy::AdminState]);
    let all = parse("--scenario rolling-update").unwrap();
    assert!(all.strategies().contains(&Strategy::PodIp) && !all.strategies().contains(&Strategy::Healthz));
    all.validate().unwrap();
    let misplaced = parse("--scenario spot --strategy pod-ip").unwrap();
    assert!(matches!(misplaced.validate(), Err(DrillError::NotApplicable { .. })));
    let azure = parse("--scenario scale-down").unwrap().strategies();
    let gcp = parse("--scenario scale-down --provider gcp").unwrap().strategies();
    assert!(
        azure.contains(&Strategy::NodePort) && !azure.contains(&Strategy::None),
        "{azure:?}"
    );
    assert!(
        gcp.contains(&Strategy::None) && !gcp.contains(&Strategy::NodePort),
        "{gcp:?}"
    );
    assert!(parse("--scenario scale-down --speed 0").is_err());
    assert_eq!(parse("--scenario empty-node").unwrap().scenario, Scenario::ScaleDown);
    let mixed = parse("--scenario scale-down --connection-lifetime mix").unwrap();
    assert!(
        mixed.connection_lifetime == ConnectionLifetime::Mix
            && mixed.pods().connection_lifetime == Duration::from_mins(10)
    );
    assert!(parse("--scenario scale-down --connection-lifetime mixed").is_err());
    let twice = parse("--scenario scale-down --strategy none,healthz,none").unwrap();
    assert_eq!(twice.strategies(), [Strategy::None, Strategy::Healthz]);
}

#[test]
fn assumptions_of_the_emulator_are_flags_and_conditions() {
    let conditions = |flags: &str| Conditions::from(&parse(&format!("--scenario scale-down {flags}")).unwrap());
    let usual = conditions("");
    assert_eq!((usual.azure_settings.as_str(), usual.arm_faults.as_str()), ("", ""));
    let given = conditions(
        r#"--azure-settings {"readLag":"200ms","deviations":["ifMatchIgnored"]} --arm-fault {"action":{"cut":"after"}} --arm-fault {}"#,
    );
    assert_eq!(
        given.azure_settings,
        r#"{"deviations":["ifMatchIgnored"],"readLag":"200ms"}"#
    );
    assert_eq!(given.arm_faults, r#"{"action":{"cut":"after"}} {}"#);
    for wrong in ["{\"readLag\":2}", "{\"unknown\":1}", "[]", "readLag"] {
        assert!(
            parse(&format!("--scenario scale-down --azure-settings {wrong}")).is_err(),
            "{wrong}"
        );
    }
}

#[test]
fn assumptions_are_documented_ones_unless_a_flag_says_otherwise() {
    let options = parse("--scenario scale-down").unwrap();
    assert_eq!(options.probe(), Provider::Azure.probe());
    assert_eq!(options.probe().rule, ProbeRule::FirstNon200);
    assert_eq!((options.probers, options.power_off), (1, PowerOff::Silent));
    assert_eq!(
        (options.pool_members, options.deleted_machines, options.other_writer),
        (PoolMembers::Ip, DeletedMachines::Stay, None)
    );
    assert_eq!(options.drain_rules().admin_down, None);
    assert!((options.speed().factor() - 10.0).abs() < 1e-9);
    let outage = parse("--scenario api-outage").unwrap();
    assert!(
        (outage.speed().factor() - 1.0).abs() < 1e-9,
        "restarts take their own time"
    );
    let other = parse(
        "--scenario scale-down --probe-interval 15s --probe-threshold 3 --probe-rule threshold --probers 2 --admin-down-resets \
         --power-off reset --pool-members nic --deleted-machines leave --other-writer 2s --operation-delay 2s --operation-delay-per-member 10ms --operation-spread 0.5 --poll-retry-after 10s",
    )
    .unwrap();
    other.validate().unwrap();
    let probe = other.probe();
    assert_eq!(
        (probe.interval, probe.timeout),
        (Duration::from_secs(15), Duration::from_secs(15))
    );
    assert_eq!((probe.unhealthy_threshold, probe.healthy_threshold), (3, 3));
    assert_eq!(
        (probe.rule, other.probers, other.power_off),
        (ProbeRule::Threshold, 2, PowerOff::Reset)
    );
    assert!(other.drain_rules().admin_down.is_some());
    assert_eq!(
        (other.pool_members, other.deleted_machines, other.other_writer),
        (PoolMembers::Nic, DeletedMachines::Leave, Some(Duration::from_secs(2)))
    );
    assert_eq!(other.operation().mean(100), Duration::from_secs(3));
    let gcp = parse("--scenario scale-down --provider gcp --probe-threshold 5")
        .unwrap()
        .probe();
    assert_eq!((gcp.timeout, gcp.healthy_threshold), (Duration::from_secs(1), 1));
    let broken = "--scenario scale-down --strategy admin-state --negative-control leader-off";
    assert_eq!(
        parse(broken).unwrap().negative_control,
        Some(NegativeControl::LeaderOff)
    );
    let nothing = parse("--scenario scale-down --strategy healthz --negative-control observe").unwrap();
    assert!(matches!(nothing.validate(), Err(DrillError::NothingToBreak)));
}

#[test]
fn flags_without_an_effect_are_rejected_before_anything_runs() {
    let check = |flags: &str| {
        let flags = std::iter::once("drill").chain(flags.split_whitespace());
        let arguments = Whole::try_parse_from(flags).unwrap().arguments;
        let checked = arguments.check();
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
