//! Spans of reconciles: one for each piece of work on an object, above the spans of the calls that it makes.
//!
//! Invariant: fields are computed only where a layer records the span, so a disabled span costs one comparison. Log lines within
//! a span carry its fields, and an exporter shows the calls as its children. Which work has a span is for each controller to decide.

use std::cell::LazyCell;
use std::fmt::Display;
use std::future::Future;

use tracing::field::Empty;
use tracing::instrument::{Instrument as _, Instrumented};
use tracing::{Span, info_span};

/// The target of the spans of reconciles. They have the level INFO.
pub(crate) const RECONCILE_SPAN_TARGET: &str = "headgate::reconcile";

/// What a reconcile is about. Absent fields are not recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconcile<'a> {
    /// The number of the leadership term; agents have none.
    pub term: Option<i32>,
    /// The Node, if there is one.
    pub node: Option<&'a str>,
    /// How many Nodes, if there are several or none.
    pub nodes: Option<usize>,
    /// The name of the load balancer.
    pub load_balancer: Option<&'a str>,
    /// The name of the backend pool.
    pub pool: Option<&'a str>,
    /// The name of the `NodeMaintenance`.
    pub maintenance: Option<&'a str>,
    /// The namespace of the Evacuation and its pod.
    pub namespace: Option<&'a str>,
    /// The name of the Evacuation.
    pub evacuation: Option<&'a str>,
    /// The name of the pod.
    pub pod: Option<&'a str>,
}

/// Declares what is reconciled, with one span for each kind: the name of a span is static.
macro_rules! reconciled {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// What is reconciled.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reconciled {
            $($(#[$doc])* $kind,)*
        }

        impl Reconciled {
            /// All kinds, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            fn span<'a>(self, describe: impl FnOnce() -> Reconcile<'a>) -> Span {
                let about = LazyCell::new(describe);
                match self {
                    $(Self::$kind => info_span!(
                        target: RECONCILE_SPAN_TARGET,
                        $name,
                        term = about.term,
                        node = about.node,
                        nodes = about.nodes,
                        load_balancer = about.load_balancer,
                        pool = about.pool,
                        maintenance = about.maintenance,
                        namespace = about.namespace,
                        evacuation = about.evacuation,
                        pod = about.pod,
                        otel.status_code = Empty,
                        otel.status_description = Empty,
                        error.type = Empty,
                    ),)*
                }
            }
        }
    };
}

reconciled! {
    /// One list of the load balancers.
    Listing = "list_load_balancers",
    /// One lookup of the machine of a network interface.
    Interface = "look_up_interface",
    /// One attempt to write what is due in a load balancer: the shared Lease, the reads, and the writes of its pools.
    LoadBalancer = "reconcile_load_balancer",
    /// One PUT of a pool, to the end of its operation: admin states, members of a Local Service, or both.
    Pool = "reconcile_pool",
    /// One tick of the Local Services' pools, which makes updates due.
    LocalPools = "reconcile_local_pools",
    /// One read and write of a Node.
    Node = "reconcile_node",
    /// One turn of the maintenance controller that writes.
    Maintenances = "reconcile_maintenances",
    /// One write for a `NodeMaintenance`.
    Maintenance = "reconcile_maintenance",
    /// One step of an Evacuation.
    Evacuation = "reconcile_evacuation",
}

/// The span of one reconcile. Clones are the same span; it ends when all of them and all futures in it are dropped.
#[derive(Clone, Debug)]
pub struct ReconcileSpan(Span);

impl ReconcileSpan {
    /// A child of the present span. `describe` is called only if the span is recorded.
    pub fn start<'a>(what: Reconciled, describe: impl FnOnce() -> Reconcile<'a>) -> Self {
        Self(what.span(describe))
    }

    /// The future, with its log lines and calls in this span.
    pub fn run<F: Future>(&self, future: F) -> Instrumented<F> {
        future.instrument(self.0.clone())
    }

    /// Records that the reconcile failed: a code from a short list, and the error as text.
    pub fn fail(&self, code: &str, error: &dyn Display) {
        if self.0.is_disabled() {
            return;
        }
        self.0.record("otel.status_code", "ERROR");
        self.0.record("otel.status_description", tracing::field::display(error));
        self.0.record("error.type", code);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::{self, Write};
    use std::process::Command;
    use std::sync::{Arc, LazyLock, Mutex};

    use tracing::Dispatch;
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::telemetry::logs::{LogFormat, default_levels, layer};

    /// While a process has one subscriber, tracing asks the subscriber of the thread that reaches a span first, and keeps the answer
    /// for all threads, so for other tests. With these it asks all subscribers.
    static OTHER_SUBSCRIBERS: LazyLock<[Dispatch; 2]> =
        LazyLock::new(|| [(); 2].map(|()| Dispatch::new(tracing_subscriber::registry())));

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0
                .lock()
                .map_err(|_| io::ErrorKind::Other)?
                .extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is logged by a failed reconcile of a pool with one call, and how often its fields were computed.
    fn logged(format: LogFormat, filter: Targets) -> (String, u32) {
        let (written, computed) = (Written::default(), Cell::new(0));
        let writer = written.clone();
        let output = layer(format, filter, false, move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(output), || {
            let span = ReconcileSpan::start(Reconciled::Pool, || {
                computed.set(computed.get() + 1);
                Reconcile {
                    term: Some(3),
                    node: Some("node-1"),
                    pool: Some("kubernetes"),
                    ..Reconcile::default()
                }
            });
            span.0.in_scope(|| {
                let call = tracing::debug_span!(target: "headgate::arm", "arm", url.path = "/pool");
                call.in_scope(|| tracing::warn!(target: "headgate_azure", "requests throttled by ARM"));
            });
            span.fail("Busy", &"ARM is busy");
            let warn = || tracing::warn!(target: "headgate_controller", "pools not written");
            span.0.in_scope(warn);
        });
        let bytes = written.0.lock().unwrap().clone();
        (String::from_utf8(bytes).unwrap(), computed.get())
    }

    #[test]
    fn json_lines_of_calls_have_the_fields_of_their_reconcile() {
        LazyLock::force(&OTHER_SUBSCRIBERS);
        let (text, computed) = logged(LogFormat::Json, "headgate=debug".parse().unwrap());
        assert_eq!(computed, 1);
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let reconcile =
            serde_json::json!({"name": "reconcile_pool", "term": 3, "node": "node-1", "pool": "kubernetes"});
        let call = serde_json::json!({"name": "arm", "url.path": "/pool"});
        assert_eq!(lines[0]["message"], "requests throttled by ARM");
        assert_eq!(lines[0]["spans"], serde_json::json!([reconcile, call]));
        let failed = &lines[1]["spans"][0];
        assert_eq!(failed["otel.status_code"], "ERROR");
        assert_eq!(failed["otel.status_description"], "ARM is busy");
        assert_eq!(failed["error.type"], "Busy");
        assert_eq!(failed["pool"], "kubernetes");
    }

    #[test]
    fn default_filter_logs_the_reconcile_and_not_the_span_of_the_call() {
        LazyLock::force(&OTHER_SUBSCRIBERS);
        let (text, computed) = logged(LogFormat::Json, default_levels());
        assert_eq!(computed, 1);
        let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        let spans = line["spans"].as_array().unwrap();
        assert_eq!((spans.len(), &spans[0]["node"]), (1, &"node-1".into()));
        let (text, _) = logged(LogFormat::Text, default_levels());
        let span = r#"reconcile_pool{term=3 node="node-1" pool="kubernetes"}: requests"#;
        assert!(text.contains(span), "{text}");
    }

    #[test]
    fn each_span_and_field_is_documented() {
        let page = include_str!("../../../../docs/guides/monitoring.md");
        for kind in Reconciled::ALL {
            let span = kind.span(Reconcile::default);
            let metadata = span.metadata().unwrap();
            let fields = metadata.fields().iter().map(|field| field.to_string());
            for name in fields.chain([metadata.name().to_owned()]) {
                let is_documented = page.contains(&format!("`{name}`"));
                assert!(is_documented, "docs/guides/monitoring.md has no {name} of {kind:?}");
            }
        }
    }

    #[test]
    fn disabled_span_computes_no_field() {
        // In a process of its own: a span is disabled only if no subscriber wants it, also none of another test.
        const ALONE: &str = "HEADGATE_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let mut alone = Command::new(std::env::current_exe().unwrap());
            let name = "telemetry::reconcile_span::tests::disabled_span_computes_no_field";
            let alone = alone.args(["--exact", name]);
            let output = alone.env(ALONE, "1").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        let (text, computed) = logged(LogFormat::Json, "warn".parse().unwrap());
        assert_eq!(computed, 0);
        let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(line["message"], "requests throttled by ARM");
        assert_eq!(line.get("spans"), None, "{line}");
    }
}
