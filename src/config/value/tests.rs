//! Texts and the values that they become.

use headgate_controller::admin_state::{AdminStateMode, ForeignDown};

use super::*;
use crate::config::ServiceHealth;

fn string(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn parse<T>(value_type: &ValueType<T>, text: &str) -> Option<T> {
    (value_type.parse)(&string(text)).ok()
}

#[test]
fn bind_addresses() {
    for (given, want) in [
        ("[::]:1", Some("[::]:1")),
        ("127.0.0.1:0", Some("127.0.0.1:0")),
        ("0.0.0.0", Some("0.0.0.0:7")),
        ("::1", Some("[::1]:7")),
        ("[::1]", Some("[::1]:7")),
        ("localhost:1", None),
        (":10456", None),
        ("1.2.3.4:99999", None),
        ("", None),
    ] {
        let parsed = parse(&bind_address(7), given).map(|address| address.to_string());
        assert_eq!(parsed.as_deref(), want, "{given}");
    }
}

#[test]
fn durations() {
    let bounded = duration(Duration::from_millis(100), Duration::from_hours(1));
    let parse = |text: &str| parse(&bounded, text);
    assert_eq!(parse("5s"), Some(Duration::from_secs(5)));
    assert_eq!(parse("1m30s"), Some(Duration::from_secs(90)));
    assert_eq!(parse("1.5s"), Some(Duration::from_millis(1500)));
    for wrong in ["5", "-5s", "99ms", "2h", "soon", ""] {
        assert_eq!(parse(wrong), None, "{wrong}");
    }
    for (duration, want) in [
        (0, "0s"),
        (500, "500ms"),
        (5_000, "5s"),
        (90_000, "1m30s"),
        (3_600_000, "1h"),
    ] {
        assert_eq!(format_duration(Duration::from_millis(duration)), want);
    }
}

#[test]
fn http_servers() {
    for (given, want) in [
        ("http://169.254.169.254", Some("169.254.169.254")),
        ("http://localhost:80/", Some("localhost:80")),
        ("http://[::1]:80", Some("[::1]:80")),
        ("http://127.0.0.1/metadata", None),
        ("http://127.0.0.1/?a", None),
        ("https://127.0.0.1", None),
        ("http://user@127.0.0.1", None),
        ("127.0.0.1:80", None),
        ("Disabled", None),
        ("", None),
    ] {
        assert_eq!(parse(&http_server(), given).as_deref(), want, "{given}");
    }
}

#[test]
fn health_servers() {
    for (given, want) in [
        ("http://127.0.0.1:10256", Ok(Some("127.0.0.1:10256"))),
        ("http://localhost:10256/", Ok(Some("localhost:10256"))),
        ("http://[::1]:10256", Ok(Some("[::1]:10256"))),
        ("Disabled", Ok(None)),
        ("off", Err(())),
        ("http://127.0.0.1:10256/livez", Err(())),
        ("https://127.0.0.1:10256", Err(())),
        ("http://127.0.0.1", Err(())),
        ("http://user@127.0.0.1:1", Err(())),
        ("127.0.0.1:10256", Err(())),
        ("", Err(())),
    ] {
        let parsed = (health_server().parse)(&string(given)).map_err(|_| ());
        assert_eq!(
            parsed,
            want.map(|authority| authority.map(ToOwned::to_owned)),
            "{given}"
        );
    }
}

#[test]
fn service_health_modes() {
    let modes = words(&ServiceHealth::ALL, ServiceHealth::as_str);
    assert!((modes.parse)(&Value::Bool(false)).is_err());
    for (given, want) in [
        ("Disabled", Some(ServiceHealth::Disabled)),
        ("Path", Some(ServiceHealth::Path)),
        ("NodePorts", Some(ServiceHealth::NodePorts)),
        ("nodePorts", None),
        ("off", None),
        ("", None),
    ] {
        assert_eq!(parse(&modes, given), want, "{given}");
    }
}

#[test]
fn files_secrets_and_names() {
    for (given, good) in [
        ("/etc/kubernetes/azure.json", true),
        ("azure.json", false),
        ("none", false),
        ("/etc/", false),
        ("", false),
    ] {
        let parsed = parse(&optional(file()), given);
        assert_eq!(parsed, good.then(|| Some(given.into())), "{given}");
    }
    let secret = optional(secret_name());
    assert!(parse(&secret, "a/b").is_some_and(|name| name.is_some()));
    assert_eq!((secret.parse)(&Value::Null), Ok(None));
    assert!(parse(&secret, "b").is_none());
    for (given, good) in [
        ("kubernetes", true),
        ("My_Cluster.1", true),
        ("7", true),
        ("", false),
        ("a/b", false),
        ("-a", false),
    ] {
        assert_eq!(parse(&cluster_name(), given).is_some(), good, "{given}");
    }
    assert!(parse(&cluster_name(), &"x".repeat(72)).is_none());
    assert_eq!((cluster_name().parse)(&Value::from(7)), Ok("7".to_owned()));
}

#[test]
fn admin_states() {
    fn allowed<T>(text: &str) -> Result<T, InvalidValue> {
        Err(InvalidValue::Value(text.to_owned()))
    }
    let mode = words(&AdminStateMode::ALL, AdminStateMode::as_str);
    assert_eq!((mode.parse)(&string("Observe")), Ok(AdminStateMode::Observe));
    assert_eq!(
        (mode.parse)(&string("off")),
        allowed("one of Enforce, Observe, Disabled")
    );
    let foreign_down = words(&ForeignDown::ALL, ForeignDown::as_str);
    assert_eq!((foreign_down.parse)(&string("Restore")), Ok(ForeignDown::Restore));
    assert_eq!(
        (foreign_down.parse)(&Value::Bool(false)),
        allowed("one of Keep, Restore")
    );
}

#[test]
fn sources_of_connections() {
    let sources = prefixes().parse;
    let list = |items: &[&str]| Value::Sequence(items.iter().copied().map(string).collect());
    assert_eq!(sources(&list(&[])), Ok(Vec::new()));
    assert_eq!(
        sources(&list(&["127.0.0.0/8", "::1"])).map(|prefixes| prefixes.len()),
        Ok(2)
    );
    let Err(InvalidValue::Items(invalid)) = sources(&list(&["127.0.0.0/8", "all"])) else {
        panic!("all is no prefix")
    };
    assert_eq!((invalid[0].number, invalid[0].shown.as_str()), (2, "\"all\""));
    assert!(sources(&string("127.0.0.0/8")).is_err());
}
