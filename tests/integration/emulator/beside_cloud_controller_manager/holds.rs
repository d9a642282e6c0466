//! How often headgate's holds of the shared Lease make a reconcile of cloud-controller-manager fail, and how long they are.
//!
//! In each round the signal of a node begins or ends, and the ports of a Service change within [`WINDOW`] after that, at times
//! that are evenly spread over it. cloud-controller-manager does not wait for the Lease: it retries after 5 s, 10, 20 and so on.

use super::*;

const WINDOW: Duration = Duration::from_secs(30);
/// For one round with operations of 5 s and several retries of cloud-controller-manager.
const ROUND_TIMEOUT: Duration = Duration::from_mins(4);
/// Between two looks at the load balancer.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// One row of the table.
struct Row {
    pools: usize,
    delay: &'static str,
    rounds: u32,
}

impl Cluster {
    /// Waits until the load balancer has the ports of `web`; returns how long that took.
    async fn until_written(&self) -> Duration {
        let began = Instant::now();
        while self.written_ports().await != self.ports {
            assert!(
                began.elapsed() < ROUND_TIMEOUT,
                "{}",
                last_log_lines(self.fixture.manager.log())
            );
            sleep(LOOK_INTERVAL).await;
        }
        began.elapsed()
    }

    async fn until_states_are(&self, is_tainted: bool) {
        let began = Instant::now();
        loop {
            let pools = self.pools().await;
            if is_everywhere(&pools, is_tainted) {
                return;
            }
            assert!(began.elapsed() < ROUND_TIMEOUT, "{pools:?}");
            sleep(LOOK_INTERVAL).await;
        }
    }
}

fn median(values: &mut [Duration]) -> Duration {
    values.sort();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

async fn measure(row: Row) {
    let Row { pools, delay, rounds } = row;
    let (control_plane, client) = own_cluster().await;
    let mut cluster = Cluster::start(client.clone(), control_plane.kubeconfig(), delay).await;
    for number in 1..=3 {
        cluster.fixture.add_node(number).await;
    }
    cluster.create_service("web", "Cluster", &["node-1", "node-2"]).await;
    let mut services = vec!["web".to_owned()];
    for number in 1..pools {
        let name = format!("local-{number}");
        cluster.create_service(&name, "Local", &["node-1", "node-2"]).await;
        services.push(name);
    }
    cluster
        .wait_for_pools("all pools", |found| {
            found.len() == pools && found.values().all(|members| members.len() >= 2)
        })
        .await;
    // The Local Services use other frontends with the same port.
    cluster.change_ports().await;
    cluster.until_written().await;
    sleep(Duration::from_secs(10)).await;
    let mut alone = Vec::new();
    for _ in 0..3 {
        cluster.change_ports().await;
        alone.push(cluster.until_written().await);
        sleep(Duration::from_secs(5)).await;
    }

    let holds = Holds::watch(client.clone());
    let controllers = [Controller::start(
        &cluster.fixture,
        &cluster.kubeconfig.clone(),
        "node-2",
    )];
    cluster.until_led(&controllers).await;
    sleep(Duration::from_secs(5)).await;
    let (before, began) = (cluster.lock_failures(), Instant::now());
    let mut beside = Vec::new();
    for round in 0..rounds {
        let is_tainted = round % 2 == 0;
        cluster.set_taint(is_tainted).await;
        // The golden ratio spreads any number of offsets evenly.
        let offset = (f64::from(round) * 0.618_034).fract();
        sleep(WINDOW.mul_f64(offset)).await;
        cluster.change_ports().await;
        beside.push(cluster.until_written().await);
        cluster.until_states_are(is_tainted).await;
        sleep(Duration::from_secs(3)).await;
    }
    let after = cluster.lock_failures();
    let (mut ours, elapsed) = (holds.durations(true, began), began.elapsed());
    let others = holds.durations(false, began).len();
    let held: Duration = ours.iter().sum();
    let longest = ours.last().copied().unwrap_or_default();
    println!(
        "{pools} pools, {delay} an operation, {rounds} rounds: {} reconciles failed, {} holds of cloud-controller-manager (it found the Lease held {} times); {} holds of \
         headgate, median {:.1?}, longest {longest:.1?}, {:.0} % of {elapsed:.0?}; change of a port written after {:.1?} (median; alone \
         {:.1?}), at most {:.1?}",
        after.1 - before.1,
        others,
        after.0 - before.0,
        ours.len(),
        median(&mut ours),
        100.0 * held.as_secs_f64() / elapsed.as_secs_f64(),
        median(&mut beside),
        median(&mut alone),
        beside.last().copied().unwrap_or_default(),
    );
    assert!(
        ours.len() >= rounds as usize / 2,
        "headgate has written: {}",
        controllers[0].log()
    );
    cluster.set_taint(false).await;
    cluster.until_states_are(false).await;
    let names: Vec<_> = services.iter().map(String::as_str).collect();
    cluster.delete_everything(&names).await;
    drop(controllers);
    cluster.fixture.emulator.stop().await;
    control_plane.stop().await;
}

macro_rules! rows {
    ($($name:ident: $pools:literal $delay:literal $rounds:literal)*) => {
        $(#[tokio::test]
        async fn $name() {
            measure(Row { pools: $pools, delay: $delay, rounds: $rounds }).await;
        })*
    };
}

rows! {
    one_pool_at_300_ms: 1 "300ms" 12
    four_pools_at_300_ms: 4 "300ms" 12
    one_pool_at_5_s: 1 "5s" 12
    four_pools_at_5_s: 4 "5s" 12
}
