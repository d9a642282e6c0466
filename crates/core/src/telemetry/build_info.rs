//! The metric of the build.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The version of the package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The revision of the source, from `HEADGATE_REVISION` at build time.
const REVISION: &str = match option_env!("HEADGATE_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

/// Registers `headgate_build_info`, with the version, the revision and the platform as labels.
pub fn register_build_info(registry: &mut Registry) {
    let info = Family::<[(&str, &str); 4], Gauge>::default();
    let labels = [
        ("version", VERSION),
        ("revision", REVISION),
        ("os", std::env::consts::OS),
        ("architecture", std::env::consts::ARCH),
    ];
    info.get_or_create(&labels).set(1);
    registry.register(
        "headgate_build_info",
        "1; the version, the revision of the source (unknown without HEADGATE_REVISION at build time) and the platform of this build",
        info,
    );
}
