//! Leaders that are killed, cut off from the API server, or stopped as by SIGSTOP, while changes are always due: by the requests
//! that reach ARM, there is never more than one writer.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use headgate_azure_emulator::Settings;
use headgate_core::clock::Clock;
use headgate_kubernetes::leader::Term;
use headgate_test_kubernetes::{ClientFaults, FakeApi, Fault};
use hyper::Method;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::world::{ENFORCE, Leader, SECOND, Spy, World, two_load_balancers};

const TIMES: usize = 100;

/// The terms of each leader, and each write with its writer and term.
#[derive(Clone, Default)]
struct WriteLog(Arc<Mutex<LogState>>);

#[derive(Default)]
struct LogState {
    terms: BTreeMap<String, watch::Receiver<Option<Term>>>,
    sent: Vec<(String, i32)>,
    violations: Vec<String>,
}

impl WriteLog {
    fn spy(&self, name: &str, terms: watch::Receiver<Option<Term>>) -> Spy {
        self.0.lock().unwrap().terms.insert(name.to_owned(), terms);
        let (writes, name) = (self.clone(), name.to_owned());
        Arc::new(move |request| {
            if request.method() == Method::PUT {
                writes.write(&name);
            }
        })
    }

    /// The leaders with a valid term, and its number.
    fn valid(&self) -> Vec<(String, i32)> {
        let log = self.0.lock().unwrap();
        let valid = |(name, terms): (&String, &watch::Receiver<Option<Term>>)| {
            let term = terms.borrow().clone()?;
            term.permit().is_ok().then(|| (name.clone(), term.number()))
        };
        log.terms.iter().filter_map(valid).collect()
    }

    fn write(&self, name: &str) {
        let valid = self.valid();
        let mut log = self.0.lock().unwrap();
        match &valid[..] {
            [(writer, number)] if writer == name => {
                if log.sent.last().is_some_and(|(_, last)| last > number) {
                    let text = format!("{name} writes in term {number} after {:?}", log.sent.last());
                    log.violations.push(text);
                }
                log.sent.push((name.to_owned(), *number));
            }
            other => log.violations.push(format!("{name} writes; valid are {other:?}")),
        }
    }

    /// Checks that no invariant was violated, and that the journal of ARM has the same writes.
    fn check(&self, world: &World) {
        let log = self.0.lock().unwrap();
        assert_eq!(log.violations, Vec::<String>::new());
        let journal: Vec<_> = world
            .puts()
            .iter()
            .map(|put: &Value| put["userAgent"].as_str().unwrap().to_owned())
            .filter_map(|agent| agent.strip_prefix("headgate/").map(str::to_owned))
            .collect();
        let sent: Vec<_> = log.sent.iter().map(|(name, _)| name.clone()).collect();
        assert!(
            journal.len() >= 20 && sent.ends_with(&journal[..]),
            "{journal:?} and {sent:?}"
        );
    }
}

/// Changes taints, so that writes are always due.
fn change_taints(world: &World) -> JoinHandle<()> {
    let world = World::new(world.client.clone(), world.clock.clone(), &[], Settings::default());
    tokio::spawn(async move {
        for round in 0.. {
            let keys: &[&str] = if round % 2 == 0 {
                &["ToBeDeletedByClusterAutoscaler"]
            } else {
                &[]
            };
            world.taint(1 + round / 2 % 3, keys).await;
            sleep(SECOND * 3 / 2).await;
        }
    })
}

struct Contenders {
    world: World,
    fake: FakeApi,
    writes: WriteLog,
    members: BTreeMap<String, (Leader, ClientFaults)>,
    started: usize,
}

impl Contenders {
    async fn new() -> Self {
        let settings = Settings {
            operation_delay: SECOND / 4,
            ..Settings::default()
        };
        let (fake, world) = World::with_nodes(3, &two_load_balancers(3), settings).await;
        let mut contenders = Self {
            world,
            fake,
            writes: WriteLog::default(),
            members: BTreeMap::new(),
            started: 0,
        };
        for _ in 0..3 {
            contenders.add().await;
        }
        contenders
    }

    async fn add(&mut self) {
        self.started += 1;
        let name = format!("leader-{}", self.started);
        let (client, line) = self.fake.client();
        let writes = self.writes.clone();
        let spied_name = name.clone();
        let leader = Leader::start_with_spy(&self.world, client, &name, ENFORCE, |terms| {
            writes.spy(&spied_name, terms)
        })
        .await;
        self.members.insert(name, (leader, line));
    }

    /// Waits until a leader other than this one has written; returns its name.
    async fn next_leader(&self, not: &str) -> String {
        let since = Instant::now();
        loop {
            assert!(since.elapsed() < 90 * SECOND, "no leader writes after {not:?}");
            let valid = self.writes.valid();
            assert!(valid.len() <= 1, "{valid:?}");
            if let Some((name, number)) = valid.first().filter(|(name, _)| name != not)
                && self.writes.0.lock().unwrap().sent.last() == Some(&(name.clone(), *number))
            {
                return name.clone();
            }
            sleep(SECOND / 10).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_writer_through_a_hundred_kills() {
    let mut contenders = Contenders::new().await;
    let tainting = change_taints(&contenders.world);
    let mut leader = contenders.next_leader("").await;
    for _ in 0..TIMES {
        drop(contenders.members.remove(&leader));
        contenders.add().await;
        leader = contenders.next_leader(&leader).await;
    }
    tainting.abort();
    contenders.writes.check(&contenders.world);
}

#[tokio::test(start_paused = true)]
async fn one_writer_through_a_hundred_partitions() {
    let contenders = Contenders::new().await;
    let tainting = change_taints(&contenders.world);
    let mut leader = contenders.next_leader("").await;
    for _ in 0..TIMES {
        // It still reaches ARM.
        contenders.members[&leader].1.set(Fault::CutOff);
        let next = contenders.next_leader(&leader).await;
        contenders.members[&leader].1.set(Fault::None);
        leader = next;
    }
    tainting.abort();
    contenders.writes.check(&contenders.world);
}

/// A leader on a thread and runtime of its own, which can be stopped as a whole, as by SIGSTOP.
struct Process {
    still: Arc<(Mutex<bool>, Condvar)>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Process {
    fn start(world: Arc<World>, fake: FakeApi, name: String, writes: WriteLog) -> Self {
        let still = Arc::new((Mutex::new(false), Condvar::new()));
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let gate = Arc::clone(&still);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let (client, _line) = fake.client();
                let spied_name = name.clone();
                let leader =
                    Leader::start_with_spy(&world, client, &name, ENFORCE, |terms| writes.spy(&spied_name, terms))
                        .await;
                let suspender = tokio::spawn(async move {
                    loop {
                        let (still, changed) = &*gate;
                        // Blocks the only thread of the runtime.
                        drop(changed.wait_while(still.lock().unwrap(), |still| *still).unwrap());
                        sleep(Duration::from_millis(5)).await;
                    }
                });
                let _ = stopped.await;
                suspender.abort();
                drop(leader);
            });
        });
        Self {
            still,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn set_stopped(&self, stopped: bool) {
        let (state, changed) = &*self.still;
        *state.lock().unwrap() = stopped;
        changed.notify_all();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.set_stopped(false);
        drop(self.stop.take());
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

/// In real time, so only once unless `HEADGATE_PAUSES` says otherwise.
#[tokio::test]
async fn one_writer_through_process_stops() {
    let times = std::env::var("HEADGATE_PAUSES")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    let fake = FakeApi::default();
    let settings = Settings {
        operation_delay: SECOND / 4,
        ..Settings::default()
    };
    let world = World::new(fake.client().0, Clock::System, &two_load_balancers(3), settings);
    for number in 1..=3 {
        world.add_node(number).await;
    }
    let (world, writes) = (Arc::new(world), WriteLog::default());
    let start = |number: usize| {
        let name = format!("leader-{number}");
        let process = Process::start(Arc::clone(&world), fake.clone(), name.clone(), writes.clone());
        (name, process)
    };
    let processes: BTreeMap<_, _> = (1..=3).map(start).collect();
    let tainting = change_taints(&world);
    let next = async |not: &str| {
        headgate_test_kubernetes::eventually(90 * SECOND, "another leader writes", async || {
            let valid = writes.valid();
            match &valid[..] {
                [(name, number)] if name != not => {
                    let last = writes.0.lock().unwrap().sent.last().cloned();
                    if last == Some((name.clone(), *number)) {
                        Ok(name.clone())
                    } else {
                        Err(format!("{valid:?}"))
                    }
                }
                _ => Err(format!("{valid:?}")),
            }
        })
        .await
    };
    let mut leader = next("").await;
    for _ in 0..times {
        processes[&leader].set_stopped(true);
        let another = next(&leader).await;
        // It continues, and for a moment still considers itself the leader.
        processes[&leader].set_stopped(false);
        sleep(SECOND / 2).await;
        leader = another;
    }
    tainting.abort();
    drop(processes);
    let log = writes.0.lock().unwrap();
    assert_eq!(log.violations, Vec::<String>::new());
    println!("{} writes in {} terms", log.sent.len(), log.sent.last().unwrap().1);
}
