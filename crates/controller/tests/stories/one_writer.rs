//! Leaders that are killed, cut off from the API server, or stopped as by SIGSTOP, while changes are always due: one alone sends
//! writes, and by the order in which they arrive at ARM, no write changes what one of a later term has written. They are on their way
//! for some time, and arrive whatever becomes of their sender.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};

use headgate_azure_emulator::{Deviation, Settings};
use headgate_core::clock::Clock;
use headgate_kubernetes::leader::Term;
use headgate_test_kubernetes::{ClientFaults, FakeApi, Fault, Random, eventually, met, number_from, run_seeds};
use hyper::{Method, Request};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::world::{ENFORCE, Leader, SECOND, Spy, TravelTime, World, two_load_balancers};

/// Kills or partitions of a run.
const TIMES: usize = 50;
/// Runs unless `HEADGATE_STORIES` says otherwise.
const DEFAULT_RUNS: u64 = 2;

/// The terms of each leader, and each write as it was sent and as it arrived.
#[derive(Clone, Default)]
struct WriteLog(Arc<Mutex<LogState>>);

#[derive(Default)]
struct LogState {
    terms: BTreeMap<String, watch::Receiver<Option<Term>>>,
    /// The writers and their terms.
    sent: Vec<(String, i32)>,
    /// The terms by the ids of requests.
    term_of: BTreeMap<String, i32>,
    /// Up to where the journal of ARM was read.
    position: u64,
    arrived: usize,
    /// How many of them arrived after one of a later term was accepted.
    late: usize,
    /// The terms of the last accepted writes by load balancer, all of whose pools have one version.
    accepted: BTreeMap<String, i32>,
    violations: Vec<String>,
}

impl WriteLog {
    fn spy(&self, name: &str, terms: watch::Receiver<Option<Term>>) -> Spy {
        self.0.lock().unwrap().terms.insert(name.to_owned(), terms);
        let (writes, name) = (self.clone(), name.to_owned());
        Arc::new(move |request| {
            if request.method() == Method::PUT {
                writes.send(&name, request_id(request));
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

    /// The leader that may write, if it has sent the last write.
    fn writer(&self) -> Option<String> {
        let valid = self.valid();
        assert!(valid.len() <= 1, "{valid:?}");
        let last = self.0.lock().unwrap().sent.last().cloned();
        valid
            .into_iter()
            .next()
            .filter(|valid| last.as_ref() == Some(valid))
            .map(|(name, _)| name)
    }

    fn send(&self, name: &str, id: String) {
        let valid = self.valid();
        let mut log = self.0.lock().unwrap();
        match &valid[..] {
            [(writer, number)] if writer == name => {
                if log.sent.last().is_some_and(|(_, last)| last > number) {
                    let text = format!("{name} writes in term {number} after {:?}", log.sent.last());
                    log.violations.push(text);
                }
                log.sent.push((name.to_owned(), *number));
                log.term_of.insert(id, *number);
            }
            other => {
                let text = format!("{name} writes; valid are {other:?}");
                log.violations.push(text);
            }
        }
    }

    /// Takes what has arrived since the last time from the journal of ARM.
    fn take_arrivals(&self, world: &World) {
        let log = &mut *self.0.lock().unwrap();
        let (puts, position) = world.puts_since(log.position);
        if puts.iter().any(|put| put["status"].is_null()) {
            // One arrives right now.
            return;
        }
        log.position = position;
        for put in puts {
            let text = |name: &str| put[name].as_str().unwrap_or_default();
            let Some(&term) = log.term_of.get(text("clientRequestId")) else {
                log.violations.push(format!("nobody has sent {put}"));
                continue;
            };
            log.arrived += 1;
            let (load_balancer, _) = text("path").split_once("/backendAddressPools/").unwrap();
            let accepted = log.accepted.entry(load_balancer.to_owned()).or_default();
            let is_late = term < *accepted;
            log.late += usize::from(is_late);
            if put["status"].as_u64().is_some_and(|status| status >= 300) {
                continue;
            }
            if is_late {
                let text = format!("a write of term {term} is accepted after one of term {accepted}: {put}");
                log.violations.push(text);
            }
            *accepted = term.max(*accepted);
        }
    }

    /// Checks that no invariant was violated, and that some writes arrived late.
    fn check(&self) {
        let log = self.0.lock().unwrap();
        assert_eq!(log.violations, Vec::<String>::new());
        let counts = format!(
            "{} writes sent in {} terms, {} arrived, {} of them late",
            log.sent.len(),
            log.sent.last().unwrap().1,
            log.arrived,
            log.late
        );
        assert!(log.late > 0, "{counts}");
        println!("{counts}");
    }
}

fn request_id<B>(request: &Request<B>) -> String {
    let id = request.headers().get("x-ms-client-request-id").unwrap();
    id.to_str().unwrap().to_owned()
}

/// Most writes arrive soon; every third one may arrive when others have led for long.
fn travel_times(seed: u64) -> TravelTime {
    let random = Mutex::new(Random::new(seed));
    Arc::new(move || {
        let mut random = random.lock().unwrap();
        let longest = *random.pick(&[300, 300, 40_000]);
        random.millis(longest)
    })
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
    async fn new(seed: u64, deviations: &[Deviation]) -> Self {
        let settings = Settings {
            operation_delay: SECOND / 4,
            deviations: deviations.iter().copied().collect(),
            ..Settings::default()
        };
        let (fake, mut world) = World::with_nodes(3, &two_load_balancers(3), settings).await;
        world.travel_time = Some(travel_times(seed));
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
            if let Some(name) = self.writes.writer().filter(|name| name != not) {
                return name;
            }
            sleep(SECOND / 10).await;
        }
    }
}

async fn kills(seed: u64, deviations: &[Deviation]) -> WriteLog {
    let mut contenders = Contenders::new(seed, deviations).await;
    let tainting = change_taints(&contenders.world);
    let mut leader = contenders.next_leader("").await;
    for _ in 0..TIMES {
        drop(contenders.members.remove(&leader));
        contenders.add().await;
        leader = contenders.next_leader(&leader).await;
        contenders.writes.take_arrivals(&contenders.world);
    }
    tainting.abort();
    contenders.writes
}

async fn partitions(seed: u64, deviations: &[Deviation]) -> WriteLog {
    let contenders = Contenders::new(seed, deviations).await;
    let tainting = change_taints(&contenders.world);
    let mut leader = contenders.next_leader("").await;
    for _ in 0..TIMES {
        // It still reaches ARM.
        contenders.members[&leader].1.set(Fault::CutOff);
        let next = contenders.next_leader(&leader).await;
        contenders.members[&leader].1.set(Fault::None);
        leader = next;
        contenders.writes.take_arrivals(&contenders.world);
    }
    tainting.abort();
    contenders.writes
}

#[test]
fn one_writer_through_kills() {
    run_seeds(
        "kills",
        DEFAULT_RUNS,
        |seed| async move { kills(seed, &[]).await.check() },
    );
}

#[test]
fn one_writer_through_partitions() {
    run_seeds("partitions", DEFAULT_RUNS, async |seed| {
        partitions(seed, &[]).await.check();
    });
}

/// What protects a load balancer from a late write is its version: without it these stories fail.
#[tokio::test(start_paused = true)]
async fn a_late_write_is_noticed_where_arm_ignores_versions() {
    let ignored = &[Deviation::IfMatchIgnored];
    for writes in [kills(0, ignored).await, partitions(0, ignored).await] {
        let violations = &writes.0.lock().unwrap().violations;
        let is_noticed = violations
            .iter()
            .any(|text| text.contains("is accepted after one of term"));
        assert!(is_noticed, "{violations:?}");
    }
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Runs,
    StopsInNextWrite,
    Stopped,
}

/// A leader on a thread and runtime of its own, which can be stopped as a whole, as by SIGSTOP.
struct Process {
    run: Arc<(Mutex<Run>, Condvar)>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Process {
    fn start(world: Arc<World>, fake: FakeApi, name: String, writes: WriteLog) -> Self {
        let run = Arc::new((Mutex::new(Run::Runs), Condvar::new()));
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let gate = Arc::clone(&run);
        // With its permit and before the request is on its way. This blocks the only thread of the runtime.
        let stop_in_write = move || {
            let (run, changed) = &*gate;
            let mut run = run.lock().unwrap();
            if *run == Run::StopsInNextWrite {
                *run = Run::Stopped;
            }
            drop(changed.wait_while(run, |run| *run == Run::Stopped).unwrap());
        };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let (client, _line) = fake.client();
                let spied_name = name.clone();
                let spy = |terms| -> Spy {
                    let log = writes.spy(&spied_name, terms);
                    Arc::new(move |request| {
                        log(request);
                        if request.method() == Method::PUT {
                            stop_in_write();
                        }
                    })
                };
                let leader = Leader::start_with_spy(&world, client, &name, ENFORCE, spy).await;
                let _ = stopped.await;
                drop(leader);
            });
        });
        Self {
            run,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn set(&self, to: Run) {
        let (run, changed) = &*self.run;
        *run.lock().unwrap() = to;
        changed.notify_all();
    }

    fn is_stopped(&self) -> bool {
        *self.run.0.lock().unwrap() == Run::Stopped
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.set(Run::Runs);
        drop(self.stop.take());
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

/// In real time, so only once unless `HEADGATE_PAUSES` says otherwise.
#[tokio::test]
async fn a_write_of_a_stopped_process_changes_nothing_when_it_arrives() {
    let times = number_from("HEADGATE_PAUSES").unwrap_or(1);
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
        eventually(90 * SECOND, "another leader writes", async || {
            let found = writes.writer().filter(|name| name != not);
            found.ok_or_else(|| format!("{:?}", writes.valid()))
        })
        .await
    };
    let mut leader = next("").await;
    for _ in 0..times {
        let process = &processes[&leader];
        process.set(Run::StopsInNextWrite);
        eventually(30 * SECOND, "it writes", async || {
            met(process.is_stopped(), "it has not")
        })
        .await;
        let another = next(&leader).await;
        // To all pools, so also to the one of the write that has not arrived.
        eventually(30 * SECOND, "the next leader has written", async || {
            let log = writes.0.lock().unwrap();
            let since = log.sent.iter().rev().take_while(|(name, _)| *name == another).count();
            met(since > 4, since)
        })
        .await;
        writes.take_arrivals(&world);
        // It continues, and for a moment still considers itself the leader.
        let before = writes.0.lock().unwrap().late;
        process.set(Run::Runs);
        eventually(30 * SECOND, "the write arrives", async || {
            writes.take_arrivals(&world);
            let late = writes.0.lock().unwrap().late;
            met(late > before, late)
        })
        .await;
        sleep(SECOND / 2).await;
        leader = another;
    }
    tainting.abort();
    drop(processes);
    writes.take_arrivals(&world);
    writes.check();
}
