//! Texts and the values that they become.

use headgate_settings::format_duration;

use super::*;

fn string(text: &str) -> Value {
    Value::String(text.to_owned())
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
        let parsed = bind_address(&string(given), 7).ok().map(|address| address.to_string());
        assert_eq!(parsed.as_deref(), want, "{given}");
    }
}

#[test]
fn durations() {
    let parse = |text: &str| duration(&string(text), Duration::from_millis(100), Duration::from_hours(1)).ok();
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
        ("off", None),
        ("", None),
    ] {
        assert_eq!(http_server(&string(given)).ok().as_deref(), want, "{given}");
    }
}

#[test]
fn health_servers() {
    for (given, want) in [
        ("http://127.0.0.1:10256", Ok(Some("127.0.0.1:10256"))),
        ("http://localhost:10256/", Ok(Some("localhost:10256"))),
        ("http://[::1]:10256", Ok(Some("[::1]:10256"))),
        ("off", Ok(None)),
        ("http://127.0.0.1:10256/livez", Err(())),
        ("https://127.0.0.1:10256", Err(())),
        ("http://127.0.0.1", Err(())),
        ("http://user@127.0.0.1:1", Err(())),
        ("127.0.0.1:10256", Err(())),
        ("", Err(())),
    ] {
        let parsed = health_server(&string(given)).map_err(|_| ());
        assert_eq!(
            parsed,
            want.map(|authority| authority.map(ToOwned::to_owned)),
            "{given}"
        );
    }
}

#[test]
fn service_health_modes() {
    assert_eq!(service_health(&Value::Bool(false)), Ok(ServiceHealth::Off));
    for (given, want) in [
        ("off", Ok(ServiceHealth::Off)),
        ("path", Ok(ServiceHealth::Path)),
        ("nodePorts", Ok(ServiceHealth::NodePorts)),
        ("nodeports", Err(())),
        ("", Err(())),
    ] {
        assert_eq!(service_health(&string(given)).map_err(|_| ()), want, "{given}");
    }
}

#[test]
fn files_secrets_and_names() {
    for (given, want) in [
        ("none", Some("none")),
        ("/etc/kubernetes/azure.json", Some("/etc/kubernetes/azure.json")),
        ("azure.json", None),
        ("/etc/", None),
        ("", None),
    ] {
        let parsed = file(&string(given)).map(|file| file.map_or("none".to_owned(), |f| f.display().to_string()));
        assert_eq!(parsed.ok().as_deref(), want, "{given}");
    }
    assert_eq!(secret_name(&string("none")), Ok(None));
    assert!(secret_name(&string("a/b")).is_ok_and(|name| name.is_some()));
    assert!(secret_name(&string("b")).is_err() && secret_name(&Value::Null).is_err());
    for (given, good) in [
        ("kubernetes", true),
        ("My_Cluster.1", true),
        ("7", true),
        ("", false),
        ("a/b", false),
        ("-a", false),
    ] {
        assert_eq!(cluster_name(&string(given)).is_ok(), good, "{given}");
    }
    assert!(cluster_name(&string(&"x".repeat(72))).is_err());
}

#[test]
fn admin_states() {
    assert_eq!(admin_state_mode(&Value::Bool(false)), Ok(AdminStateMode::Off));
    assert_eq!(admin_state_mode(&string("observe")), Ok(AdminStateMode::Observe));
    assert_eq!(
        admin_state_mode(&string("on")),
        Err("one of enforce, observe, off".to_owned())
    );
    assert_eq!(foreign_down(&string("restore")), Ok(ForeignDown::Restore));
    assert_eq!(
        foreign_down(&Value::Bool(false)),
        Err("one of keep, restore".to_owned())
    );
}

#[test]
fn address_ranges() {
    let list = |items: &[&str]| Value::Sequence(items.iter().copied().map(string).collect());
    assert_eq!(cidrs(&list(&[])), Ok(Vec::new()));
    assert_eq!(
        cidrs(&list(&["127.0.0.0/8", "::1/128"])).map(|ranges| ranges.len()),
        Ok(2)
    );
    let Err(InvalidValue::Items(invalid)) = cidrs(&list(&["127.0.0.0/8", "all"])) else {
        panic!("all is not a range")
    };
    assert_eq!((invalid[0].number, invalid[0].shown.as_str()), (2, "\"all\""));
    assert!(cidrs(&string("127.0.0.0/8")).is_err());
}
