//! Leaders that are killed, cut off and made to stand still while there is always something to write: by what ARM was
//! sent, there is never more than one writer.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use headgate_azure_emulator::Settings;
use headgate_clock::Clock;
use headgate_leader::Term;
use headgate_test_kubernetes::{ClientFaults, FakeApi, Fault};
use hyper::Method;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::world::{ENFORCE, Leader, SECOND, Spy, World, two_load_balancers};

const TIMES: usize = 100;

/// Every term there was, and every write: by whom, in which term.
#[derive(Clone, Default)]
struct Writes(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    terms: BTreeMap<String, watch::Receiver<Option<Term>>>,
    sent: Vec<(String, i32)>,
    wrong: Vec<String>,
}

impl Writes {
    fn spy(&self, name: &str, terms: watch::Receiver<Option<Term>>) -> Spy {
        self.0.lock().unwrap().terms.insert(name.to_owned(), terms);
        let (writes, name) = (self.clone(), name.to_owned());
        Arc::new(move |request| {
            if request.method() == Method::PUT {
                writes.write(&name);
            }
        })
    }

    /// Whose terms are valid now.
    fn valid(&self) -> Vec<(String, i32)> {
        let seen = self.0.lock().unwrap();
        let valid = |(name, terms): (&String, &watch::Receiver<Option<Term>>)| {
            let term = terms.borrow().clone()?;
            term.permit().is_ok().then(|| (name.clone(), term.number()))
        };
        seen.terms.iter().filter_map(valid).collect()
    }

    fn write(&self, name: &str) {
        let valid = self.valid();
        let mut seen = self.0.lock().unwrap();
        match &valid[..] {
            [(writer, number)] if writer == name => {
                if seen.sent.last().is_some_and(|(_, last)| last > number) {
                    let text = format!("{name} writes in term {number} after {:?}", seen.sent.last());
                    seen.wrong.push(text);
                }
                seen.sent.push((name.to_owned(), *number));
            }
            other => seen.wrong.push(format!("{name} writes; valid are {other:?}")),
        }
    }

    /// What ARM's own journal says about the last writes is what was seen.
    fn check(&self, world: &World) {
        let seen = self.0.lock().unwrap();
        assert_eq!(seen.wrong, Vec::<String>::new());
        let journal: Vec<_> = world
            .puts()
            .iter()
            .map(|put: &Value| put["userAgent"].as_str().unwrap().to_owned())
            .filter_map(|agent| agent.strip_prefix("headgate/").map(str::to_owned))
            .collect();
        let sent: Vec<_> = seen.sent.iter().map(|(name, _)| name.clone()).collect();
        assert!(
            journal.len() >= 20 && sent.ends_with(&journal[..]),
            "{journal:?} and {sent:?}"
        );
    }
}

/// There is always something to write.
fn taints(world: &World) -> JoinHandle<()> {
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

struct Candidates {
    world: World,
    fake: FakeApi,
    writes: Writes,
    members: BTreeMap<String, (Leader, ClientFaults)>,
    born: usize,
}

impl Candidates {
    async fn new() -> Self {
        let fake = FakeApi::default();
        let clock = Clock::anchored("2026-01-02T03:04:05Z".parse::<Timestamp>().unwrap());
        let settings = Settings {
            operation_delay: SECOND / 4,
            ..Settings::default()
        };
        let world = World::new(fake.client().0, clock, &two_load_balancers(3), settings);
        for number in 1..=3 {
            world.add_node(number).await;
        }
        let mut candidates = Self {
            world,
            fake,
            writes: Writes::default(),
            members: BTreeMap::new(),
            born: 0,
        };
        for _ in 0..3 {
            candidates.add().await;
        }
        candidates
    }

    async fn add(&mut self) {
        self.born += 1;
        let name = format!("leader-{}", self.born);
        let (client, line) = self.fake.client();
        let writes = self.writes.clone();
        let spied = name.clone();
        let leader = Leader::start_seen(&self.world, client, &name, ENFORCE, |terms| writes.spy(&spied, terms)).await;
        self.members.insert(name, (leader, line));
    }

    /// Waits for a leader other than this one, that has written; its name.
    async fn leader_but(&self, not: &str) -> String {
        let since = Instant::now();
        loop {
            assert!(since.elapsed() < 90 * SECOND, "nobody writes after {not:?}");
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
async fn killed_a_hundred_times_there_is_one_writer() {
    let mut candidates = Candidates::new().await;
    let tainting = taints(&candidates.world);
    let mut leader = candidates.leader_but("").await;
    for _ in 0..TIMES {
        drop(candidates.members.remove(&leader));
        candidates.add().await;
        leader = candidates.leader_but(&leader).await;
    }
    tainting.abort();
    candidates.writes.check(&candidates.world);
}

#[tokio::test(start_paused = true)]
async fn cut_off_a_hundred_times_there_is_one_writer() {
    let candidates = Candidates::new().await;
    let tainting = taints(&candidates.world);
    let mut leader = candidates.leader_but("").await;
    for _ in 0..TIMES {
        // It reaches ARM as before, and the API server no more.
        candidates.members[&leader].1.set(Fault::CutOff);
        let next = candidates.leader_but(&leader).await;
        candidates.members[&leader].1.set(Fault::None);
        leader = next;
    }
    tainting.abort();
    candidates.writes.check(&candidates.world);
}

/// A process of its own on a thread of its own, which can be made to stand still as a whole, as by SIGSTOP.
struct Process {
    still: Arc<(Mutex<bool>, Condvar)>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Process {
    fn start(world: Arc<World>, fake: FakeApi, name: String, writes: Writes) -> Self {
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
                let spied = name.clone();
                let leader =
                    Leader::start_seen(&world, client, &name, ENFORCE, |terms| writes.spy(&spied, terms)).await;
                let standing = tokio::spawn(async move {
                    loop {
                        let (still, changed) = &*gate;
                        // Blocks the runtime's one thread, and so everything in this process.
                        drop(changed.wait_while(still.lock().unwrap(), |still| *still).unwrap());
                        sleep(Duration::from_millis(5)).await;
                    }
                });
                let _ = stopped.await;
                standing.abort();
                drop(leader);
            });
        });
        Self {
            still,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn stand_still(&self, still: bool) {
        let (state, changed) = &*self.still;
        *state.lock().unwrap() = still;
        changed.notify_all();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stand_still(false);
        drop(self.stop.take());
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

/// In real time, so only a few times in an ordinary run; `HEADGATE_PAUSES=100` for as many.
#[tokio::test]
async fn made_to_stand_still_there_is_one_writer() {
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
    let (world, writes) = (Arc::new(world), Writes::default());
    let start = |number: usize| {
        let name = format!("leader-{number}");
        let process = Process::start(Arc::clone(&world), fake.clone(), name.clone(), writes.clone());
        (name, process)
    };
    let processes: BTreeMap<_, _> = (1..=3).map(start).collect();
    let tainting = taints(&world);
    let next = async |not: &str| {
        headgate_test_kubernetes::eventually(90 * SECOND, "another one writes", async || {
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
        processes[&leader].stand_still(true);
        let another = next(&leader).await;
        // It wakes up, and believes for a moment to be what it was.
        processes[&leader].stand_still(false);
        sleep(SECOND / 2).await;
        leader = another;
    }
    tainting.abort();
    drop(processes);
    let seen = writes.0.lock().unwrap();
    assert_eq!(seen.wrong, Vec::<String>::new());
    println!("{} writes in {} terms", seen.sent.len(), seen.sent.last().unwrap().1);
}
