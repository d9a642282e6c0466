//! A leader in this process with instrumented clients of the API server and of ARM.
//!
//! It uses sockets as in a process of its own, and has its own thread. Recorded are the times when the bytes of a Node's event
//! reach its watch, when the shared Lease is requested and acquired, and when ARM first gets a request for a load balancer.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt as _;
use headgate_azure::{ArmClient, ArmClientOptions, Endpoints, Identity, ResourceGroupId, TokenCache, Transport};
use headgate_azure::{Credential, Secret};
use headgate_controller::admin_state::{self, ClusterConnection, ClusterTarget, Policy, TargetSource};
use headgate_controller::admin_state::{AdminStateMode, ForeignDown};
use headgate_controller::local_pools::{self, LocalPoolsMode, LocalPoolsTarget};
use headgate_controller::pool::{ListScope, ManagedLoadBalancers, read_node};
use headgate_core::clock::Clock;
use headgate_core::node::{NodeReader, SignalSettings};
use headgate_core::telemetry::MetricsFormat;
use headgate_http::client::TrustedRoots;
use headgate_http::proxies::Proxies;
use headgate_kubernetes::leader::{CandidatePlacement, LeaderElectionConfig, LeaderElector, LockMetrics, Term};
use headgate_kubernetes::{NodeWriteMetrics, TermAccess, TermStores, WatchReporter};
use headgate_test_kubernetes::event_sink;
use http_body_util::BodyExt as _;
use hyper::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, service_fn};

use crate::azure::Azure;
use crate::documents::{CLUSTER, NAMED, RESOURCE_GROUP, SIGNAL, SUBSCRIPTION, load_balancers_path};
use crate::program::{count, until};
use crate::world::World;

/// The first time of each step after one signal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SignalTimes {
    /// An event with the signal was read.
    pub(crate) signal: Option<Instant>,
    /// The shared Lease was requested, so a write is planned.
    pub(crate) asked: Option<Instant>,
    /// The response to that request.
    pub(crate) held: Option<Instant>,
    /// The first request to ARM for a load balancer.
    pub(crate) arm: Option<Instant>,
    /// The last request to ARM.
    pub(crate) last: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<SignalTimes>>);

impl Recorder {
    fn note(&self, note: impl FnOnce(&mut SignalTimes, Instant)) {
        let now = Instant::now();
        note(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), now);
    }
}

/// A leader in this process.
pub(crate) struct InstrumentedLeader {
    recorder: Recorder,
    registry: Registry,
    stop: CancellationToken,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl InstrumentedLeader {
    /// Starts it and waits until it leads and knows every pool.
    pub(crate) async fn start(world: &World, azure: &Azure) -> anyhow::Result<Self> {
        world.forget_ledger().await?;
        let (recorder, mut registry) = (Recorder::default(), Registry::default());
        let metrics = Registered {
            azure: headgate_azure::Metrics::register(&mut registry),
            admin_state: admin_state::Metrics::register(&mut registry),
            local_pools: local_pools::Metrics::register(&mut registry),
            lock: LockMetrics::register(&mut registry),
            node_writes: NodeWriteMetrics::register(&mut registry),
        };
        let stop = CancellationToken::new();
        let (config, arm, seen, stopping) = (world.config(), azure.arm(), recorder.clone(), stop.clone());
        let thread = thread::Builder::new().name("leader".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(lead(&config, arm, seen, metrics, stopping))
        })?;
        let instrumented_leader = Self {
            recorder,
            registry,
            stop,
            thread,
        };
        let expected = azure.entries();
        instrumented_leader
            .until("it knows every pool", |metrics| {
                count(metrics, "headgate_pool_addresses") >= expected
            })
            .await?;
        Ok(instrumented_leader)
    }

    /// Releases its Lease within a bounded time and stops.
    pub(crate) fn stop(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("the leader has panicked"))?
    }

    /// Waits until its metrics satisfy a condition.
    pub(crate) async fn until(&self, what: &str, reached: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        until(
            what,
            async || {
                Ok(headgate_core::telemetry::encode_metrics(
                    &self.registry,
                    MetricsFormat::OpenMetrics,
                )?)
            },
            reached,
        )
        .await
    }

    /// The times since the last reset.
    pub(crate) fn seen(&self) -> SignalTimes {
        *self.recorder.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget(&self) {
        self.recorder.note(|seen, _| *seen = SignalTimes::default());
    }
}

struct Registered {
    azure: headgate_azure::Metrics,
    admin_state: admin_state::Metrics,
    local_pools: local_pools::Metrics,
    lock: LockMetrics,
    node_writes: NodeWriteMetrics,
}

/// A target whose configuration never changes.
#[derive(Clone)]
struct FixedTarget(ClusterTarget);

impl TargetSource for FixedTarget {
    type Error = std::convert::Infallible;

    async fn connect(&self) -> Result<ClusterConnection, Self::Error> {
        Ok(ClusterConnection {
            target: self.0.clone(),
            config_changed: std::future::pending().boxed(),
        })
    }
}

/// Stands for election and leads until `stop`.
async fn lead(
    config: &kube::Config,
    arm: SocketAddr,
    recorder: Recorder,
    metrics: Registered,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let clock = Clock::System;
    let client = spied_client(config, recorder.clone())?;
    let (identity, placement) = ("bench".to_owned(), CandidatePlacement::Replicas);
    let config = LeaderElectionConfig::new(client.clone(), identity, placement, clock.clone());
    let elector = LeaderElector::new(config);
    let arm = spied_arm(arm, recorder, clock.clone()).await?;
    let reached = ClusterTarget {
        arm: arm.with_metrics(metrics.azure),
        scope: ListScope {
            group: ResourceGroupId::new(SUBSCRIPTION, RESOURCE_GROUP)?,
            managed: ManagedLoadBalancers::new([CLUSTER, NAMED]),
        },
        exclude_control_plane: true,
        is_admin_state_enabled: true,
        local_pools: LocalPoolsTarget::default(),
    };
    let events = event_sink(client.clone(), "bench");
    let reader = NodeReader {
        rules: SignalSettings::default().admin_state(),
        ..NodeReader::default()
    };
    let access = {
        let (client, clock) = (client.clone(), clock.clone());
        let (node_errors, service_errors) = (metrics.admin_state.watch_errors(), metrics.local_pools.watch_errors());
        let node_writes = metrics.node_writes;
        move || {
            let reader = reader.clone();
            TermAccess {
                client: client.clone(),
                clock: clock.clone(),
                read_node: move |node| read_node(node, &reader),
                node_reporter: WatchReporter::new("nodes", node_errors.clone(), clock.clone()),
                service_reporter: WatchReporter::new("services", service_errors.clone(), clock.clone()),
                node_writes: node_writes.clone(),
            }
        }
    };
    let (admin_state_metrics, local_pools_metrics, lock_metrics) =
        (metrics.admin_state, metrics.local_pools, metrics.lock);
    let parts = move |stores: TermStores| admin_state::WorkContext {
        events: events.clone(),
        client: client.clone(),
        nodes: stores.nodes,
        services: stores.services,
        node_intents: stores.intents,
        policy: Policy {
            mode: AdminStateMode::Enforce,
            foreign_down: ForeignDown::Keep,
        },
        guard: admin_state::GuardSettings::DISABLED,
        list_failure_timeout: Duration::from_mins(2),
        stale_nodes_timeout: Duration::from_mins(5),
        node_name: "bench".to_owned(),
        metrics: admin_state_metrics.clone(),
        local_pools_mode: LocalPoolsMode::default(),
        local_pools_metrics: local_pools_metrics.clone(),
        lock_metrics: lock_metrics.clone(),
        preempt_events: None,
        traffic: None,
        clock: clock.clone(),
        marker: None,
    };
    let source = FixedTarget(reached);
    let work = move |term: Term| {
        let source = source.clone();
        let (stores, run_stores) = term.stores(access());
        let parts = parts(stores);
        async move {
            tokio::select! {
                outcome = admin_state::run(term, &source, parts) => outcome,
                () = run_stores => Ok(()),
            }
        }
    };
    elector.run(stop, work).await;
    Ok(())
}

/// The program's client of the API server, instrumented.
fn spied_client(config: &kube::Config, recorder: Recorder) -> anyhow::Result<Client> {
    let inner =
        headgate_kubernetes::api_server::build_client(config, headgate_kubernetes::api_server::Program::Controller)?;
    let service = service_fn(move |request: Request<Body>| {
        let (inner, recorder) = (inner.clone(), recorder.clone());
        async move {
            let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
            let is_lock = request.method() == Method::PUT && path.ends_with("/leases/aks-managed-resource-locker");
            let watches_nodes = path == "/api/v1/nodes" && query.contains("watch=true");
            if is_lock {
                recorder.note(|seen, now| {
                    if seen.signal.is_some() && seen.asked.is_none() {
                        seen.asked = Some(now);
                    }
                });
            }
            let response = inner.send(request).await?;
            if is_lock {
                recorder.note(|seen, now| {
                    if seen.asked.is_some() {
                        seen.held.get_or_insert(now);
                    }
                });
            }
            let (head, body) = response.into_parts();
            let body = body.map_frame(move |frame| {
                if watches_nodes && frame.data_ref().is_some_and(|data| has_signal(data)) {
                    recorder.note(|seen, now| {
                        seen.signal.get_or_insert(now);
                    });
                }
                frame
            });
            Ok::<_, BoxError>(Response::from_parts(head, body))
        }
    });
    Ok(Client::new(service, "default"))
}

fn has_signal(data: &[u8]) -> bool {
    data.windows(SIGNAL.len()).any(|part| part == SIGNAL.as_bytes())
}

/// A client of ARM, instrumented.
async fn spied_arm(arm: SocketAddr, recorder: Recorder, clock: Clock) -> anyhow::Result<ArmClient> {
    let one = load_balancers_path().to_lowercase();
    let network = Transport::network(&TrustedRoots::System, Proxies::from_env())?;
    let transport = Transport::new(service_fn(move |request: Request<Bytes>| {
        if request.uri().path().to_lowercase().starts_with(&one) {
            recorder.note(|seen, now| {
                if seen.held.is_some() {
                    seen.arm.get_or_insert(now);
                }
            });
        }
        recorder.note(|seen, now| seen.last = Some(now));
        let network = network.clone();
        async move { network.send(request).await }
    }));
    let base = format!("http://{arm}");
    let endpoints = Endpoints::discover(&transport, &base, None).await?;
    let credential = Credential::ClientSecret {
        client_id: "headgate".to_owned(),
        secret: Secret::new("bench"),
    };
    let identity = Identity::new(&credential, Some("bench"), &endpoints, &base)?;
    let tokens = TokenCache::new(identity, transport.clone(), clock.clone());
    let options = ArmClientOptions {
        endpoints,
        rate_limits: None,
        user_agent: None,
    };
    Ok(ArmClient::new(options, transport, Arc::new(tokens), clock))
}
