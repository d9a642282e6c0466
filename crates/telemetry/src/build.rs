//! Which build this is.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The version, as in Cargo.toml.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    version: &'static str,
    os: &'static str,
    architecture: &'static str,
}

/// Registers `headgate_build_info`.
pub fn register(registry: &mut Registry) {
    let info = Family::<Labels, Gauge>::default();
    let labels = Labels {
        version: VERSION,
        os: std::env::consts::OS,
        architecture: std::env::consts::ARCH,
    };
    info.get_or_create(&labels).set(1);
    registry.register(
        "headgate_build_info",
        "1, with the version and platform of this build as labels",
        info,
    );
}
