//! One run: a cluster, the processes of headgate in it, and the phases one after the other.

use anyhow::{Context as _, anyhow, bail};
use headgate_controller::admin_state::Ledger;
use headgate_sandbox::Interrupts;
use headgate_sandbox::assets::Assets;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use serde_json::json;
use tokio::time::Instant;

use crate::audit::AuditLog;
use crate::azure::Azure;
use crate::azure_emulator::node_name;
use crate::documents::{Members, Shape};
use crate::fleet::Fleet;
use crate::measuring::cores::load_average;
use crate::measuring::output::say;
use crate::node_updates::NodeUpdates;
use crate::options::Options;
use crate::phases;
use crate::report::{Conditions, LedgerSize, Phase, Report};
use crate::services;
use crate::world::World;

/// Half of them have pools of addresses, half of network interfaces.
pub(crate) const LOAD_BALANCERS: usize = 10;

/// The label of all Nodes but the leaders', for which kwok plays kubelets.
const POOL_LABEL: &str = "agentpool=nodes";

/// What runs.
pub(crate) struct Run<'a> {
    pub(crate) options: &'a Options,
    pub(crate) begun: Instant,
    pub(crate) client: Client,
    /// Of the API server.
    pub(crate) port: u16,
    pub(crate) audit: AuditLog,
    pub(crate) fleet: Fleet,
    pub(crate) updates: NodeUpdates,
    pub(crate) azure: Azure,
    pub(crate) world: World,
}

/// Runs all phases until an interrupt. With the report comes why it has not all of them.
///
/// # Errors
/// Something cannot be started.
pub(crate) async fn run(options: &Options, mut interrupts: Interrupts) -> anyhow::Result<(Report, anyhow::Result<()>)> {
    let (load, begun) = (load_average(), Timestamp::now());
    // What was started ends with its owner, whichever of the two ends first.
    let mut run = tokio::select! {
        run = Run::start(options) => run?,
        () = interrupts.next() => bail!("interrupted"),
    };
    let mut phases = Vec::new();
    let measured = tokio::select! {
        measured = measure(&mut run, &mut phases) => measured,
        () = interrupts.next() => Err(anyhow!("interrupted")),
    };
    let Run {
        fleet, azure, world, ..
    } = run;
    fleet.stop().await;
    azure.stop().await;
    world.stop().await;
    let broken_off = measured.as_ref().err().map(|error| format!("{error:#}"));
    let report = Report::new(Conditions::read(options, load, begun)?, phases, broken_off);
    Ok((report, measured))
}

async fn measure(run: &mut Run<'_>, phases: &mut Vec<Phase>) -> anyhow::Result<()> {
    phases.push(phases::at_rest(run).await.context("at rest")?);
    phases.push(phases::churn(run).await.context("churn")?);
    phases.push(phases::burst(run).await.context("burst")?);
    phases.push(phases::tainted(run).await.context("taint of three tenths")?);
    phases.push(phases::leader_killed(run).await.context("leader killed")?);
    phases.push(phases::server_restarted(run).await.context("API server restarted")?);
    phases.push(phases::slow_arm(run).await.context("slow ARM")?);
    Ok(())
}

impl<'a> Run<'a> {
    async fn start(options: &'a Options) -> anyhow::Result<Self> {
        let begun = Instant::now();
        say(&format!(
            "starting etcd and kube-apiserver; then {} Nodes and 2,000 Services",
            options.nodes
        ));
        let assets = Assets::find(None).context("the control plane is needed (`make scale` builds it)")?;
        let mut world = World::start_with(assets, AuditLog::flags).await?;
        world.nodes(options.nodes).await?;
        let client = world.client.clone();
        services::create(&client, |place| node_name(place * options.nodes / services::ENDPOINTS)).await?;
        if options.has_kwok() {
            world.start_kubelets(POOL_LABEL)?;
        }
        say(&format!(
            "{} s: starting ARM, 2 controllers and {} agents",
            begun.elapsed().as_secs(),
            options.agents
        ));
        let azure = start_azure(options).await?;
        let fleet = Fleet::start(options, &world, &azure).await?;
        say(&format!("{} s: all processes run", begun.elapsed().as_secs()));
        let port = world.config().cluster_url.port_u16();
        Ok(Self {
            options,
            begun,
            port: port.context("the API server's port")?,
            audit: AuditLog::new(world.directory()),
            updates: NodeUpdates::new(client.clone(), options),
            client,
            fleet,
            azure,
            world,
        })
    }

    /// The ledger's size.
    pub(crate) async fn ledger(&self) -> anyhow::Result<LedgerSize> {
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), "kube-system");
        let object = maps.get_opt("headgate-admin-state").await.context("the ledger")?;
        let text = object
            .and_then(|object| object.data?.remove("ledger.json"))
            .unwrap_or_default();
        let ledger: Ledger = if text.is_empty() {
            Ledger::default()
        } else {
            serde_json::from_str(&text)?
        };
        Ok(LedgerSize {
            bytes: text.len(),
            entries: ledger.entries().count(),
        })
    }
}

/// The Nodes in the pool of a load balancer: pools take turns over all Nodes.
pub(crate) fn members(options: &Options, load_balancer: usize) -> Vec<usize> {
    let size = options.pool_entries();
    (0..size)
        .map(|place| (load_balancer * size + place) % options.nodes)
        .collect()
}

async fn start_azure(options: &Options) -> anyhow::Result<Azure> {
    let name = |number: usize| format!("balancer-{number}");
    let balancers: Vec<_> = (0..LOAD_BALANCERS)
        .map(|number| {
            let of = if number < LOAD_BALANCERS / 2 {
                Members::Addresses
            } else {
                Members::Interfaces
            };
            of.load_balancer(&name(number), 1, &members(options, number))
        })
        .collect();
    let config = json!({
        "loadBalancerBackendPoolConfigurationType": "nodeIP",
        "multipleStandardLoadBalancerConfigurations":
            (0..LOAD_BALANCERS).map(|number| json!({"name": name(number), "primaryVMSet": format!("agents-{number}")})).collect::<Vec<_>>(),
    });
    // The shape counts none: each pool has nodes of its own.
    let none = Shape {
        members: Members::Addresses,
        load_balancers: 0,
        pools: 1,
        nodes: 0,
    };
    let entries = LOAD_BALANCERS * options.pool_entries();
    Azure::with_seed(none, &json!({"resources": balancers}), entries, config).await
}
