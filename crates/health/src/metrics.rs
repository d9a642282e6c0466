//! What the health port counts. Names are kube-proxy's, without its prefix (DESIGN decision 2).

use headgate_clock::Clock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::changes::LastChange;
use super::verdict::Inputs;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabels {
    code: &'static str,
}

/// Counters of one path, by status; both there from the start.
#[derive(Clone, Debug)]
pub(super) struct Codes {
    good: Counter,
    bad: Counter,
}

impl Codes {
    pub(super) fn register(registry: &mut Registry, name: &str, help: &str) -> Self {
        let family = Family::<CodeLabels, Counter>::default();
        let counter = |code| family.get_or_create(&CodeLabels { code }).clone();
        let codes = Self {
            good: counter("200"),
            bad: counter("503"),
        };
        registry.register(name, help, family);
        codes
    }

    pub(super) fn count(&self, good: bool) {
        if good {
            self.good.inc()
        } else {
            self.bad.inc()
        };
    }
}

/// Counters of the health port.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(super) healthz: Codes,
    pub(super) livez: Codes,
}

impl Metrics {
    /// Registers the counters, and gauges computed from the inputs at each scrape.
    #[must_use]
    pub fn register(
        registry: &mut Registry,
        inputs: Inputs,
        last_change: watch::Receiver<Option<LastChange>>,
        clock: Clock,
    ) -> Self {
        // The library appends `_total`.
        let metrics = Self {
            healthz: Codes::register(registry, "proxy_healthz", "Cumulative proxy healthz HTTP status"),
            livez: Codes::register(registry, "proxy_livez", "Cumulative proxy livez HTTP status"),
        };
        registry.register_collector(Box::new(Verdicts {
            inputs,
            last_change,
            clock,
        }));
        metrics
    }
}

#[derive(Debug)]
struct Verdicts {
    inputs: Inputs,
    last_change: watch::Receiver<Option<LastChange>>,
    clock: Clock,
}

impl Collector for Verdicts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let verdict = self.inputs.verdict(self.clock.now());
        let mut healthy = encoder.encode_descriptor(
            "headgate_healthy",
            "1 where the path would answer 200 now, 0 where 503.",
            None,
            MetricType::Gauge,
        )?;
        for (path, good) in [("healthz", verdict.healthz()), ("livez", verdict.livez())] {
            ConstGauge::new(i64::from(good)).encode(healthy.encode_family(&[("path", path)])?)?;
        }
        let mut changed = encoder.encode_descriptor(
            "headgate_verdict_last_change_timestamp_seconds",
            "When the answer of the path last changed, or was first known, in Unix time.",
            None,
            MetricType::Gauge,
        )?;
        let last_change = *self.last_change.borrow();
        for (path, at) in [
            ("healthz", last_change.map(|l| l.healthz)),
            ("livez", last_change.map(|l| l.livez)),
        ] {
            let seconds = at.map_or(0.0, |at| at.as_duration().as_secs_f64());
            ConstGauge::new(seconds).encode(changed.encode_family(&[("path", path)])?)?;
        }
        Ok(())
    }
}
