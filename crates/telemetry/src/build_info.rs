//! The metric of the build.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The version of the package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    version: &'static str,
    os: &'static str,
    architecture: &'static str,
}

/// Registers `headgate_build_info`, with the version and the platform as labels.
pub fn register_build_info(registry: &mut Registry) {
    let info = Family::<Labels, Gauge>::default();
    let labels = Labels {
        version: VERSION,
        os: std::env::consts::OS,
        architecture: std::env::consts::ARCH,
    };
    info.get_or_create(&labels).set(1);
    registry.register(
        "headgate_build_info",
        "1; the labels are the version and the platform of this build",
        info,
    );
}
