//! Whole fleets in paused time: how many reads candidates send, and how long a killed leader leaves the fleet without one, also with
//! clocks that are wrong by up to five minutes (docs/dev/decisions.md 7).

use std::time::Duration;

use hyper::Method;
use tokio::time::{Instant, sleep};

use super::election_fixture::{ElectionFixture, SECOND, TestCandidate};

/// The longest read interval of so many candidates, and a little more.
fn round(candidates: u32) -> Duration {
    (Duration::from_millis(125) * candidates).clamp(Duration::from_mins(1), Duration::from_mins(6))
}

#[derive(Debug)]
struct Figures {
    /// Reads a second of all candidates.
    reads: f64,
    /// The same in the ten seconds with the most reads.
    busiest: f64,
    failovers: Vec<Duration>,
}

/// The times of all reads. The holder renews by PUT alone.
fn reads(election: &ElectionFixture, from: Instant) -> Vec<Instant> {
    let requests = election.fake.requests().into_iter();
    let reads = requests.filter(|asked| asked.method == Method::GET && asked.at >= from);
    reads.map(|asked| asked.at).collect()
}

fn busiest_ten_seconds(reads: &[Instant]) -> usize {
    let within = |at: &Instant| {
        let period = *at..*at + 10 * SECOND;
        reads.iter().filter(|other| period.contains(other)).count()
    };
    reads.iter().step_by(7).map(within).max().unwrap_or_default()
}

async fn measure(candidates: u32, deaths: u32, clock_error: impl Fn(u32) -> i64) -> Figures {
    let election = ElectionFixture::new(usize::try_from(candidates).unwrap());
    let fleet = (0..candidates).map(|n| election.candidate(&format!("m{n}"), clock_error(n)));
    let mut fleet: Vec<TestCandidate> = fleet.collect();
    election.leader_after(-1, Duration::from_mins(1)).await;
    let round = round(candidates);
    sleep(round + 40 * SECOND).await;
    let steady = Instant::now();
    let window = round / if candidates > 1000 { 2 } else { 1 };
    sleep(window).await;
    let all = reads(&election, steady);
    let mut failovers = Vec::new();
    for death in 0..deaths {
        // At different times between two renewals.
        sleep(40 * SECOND + 370 * Duration::from_millis(1) * death).await;
        let (number, holder) = election.leader().unwrap();
        let dead = fleet.iter().position(|candidate| candidate.name == holder).unwrap();
        fleet.swap_remove(dead).kill();
        // The size of the fleet stays.
        fleet.push(election.candidate(&format!("n{death}"), clock_error(candidates + death)));
        let (.., took) = election.leader_after(number, Duration::from_mins(12)).await;
        failovers.push(took);
    }
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    let figures = Figures {
        reads: all.len() as f64 / window.as_secs_f64(),
        busiest: busiest_ten_seconds(&all) as f64 / 10.0,
        failovers,
    };
    println!("{candidates} candidates: {figures:.1?}");
    figures
}

/// An error of up to five minutes in either direction.
fn wrong(n: u32) -> i64 {
    i64::from(n.wrapping_mul(2_654_435_761) % 601) - 300
}

fn correct(_: u32) -> i64 {
    0
}

fn check(figures: &Figures, max_reads: f64) {
    assert!(figures.reads <= max_reads, "{}", figures.reads);
    assert!(figures.busiest <= 1.5 * max_reads, "{}", figures.busiest);
    let bounds = Duration::from_secs(12)..=Duration::from_secs(22);
    let is_in_time = figures.failovers.iter().all(|took| bounds.contains(took));
    assert!(is_in_time, "{:?}", figures.failovers);
}

#[tokio::test(start_paused = true)]
async fn few_candidates_cost_few_reads() {
    for candidates in [2, 149, 151] {
        check(&measure(candidates, 5, correct).await, 10.0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_candidates_with_correct_clocks() {
    check(&measure(1000, 4, correct).await, 10.0);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_candidates_with_wrong_clocks() {
    check(&measure(1000, 4, wrong).await, 10.0);
}

#[tokio::test(start_paused = true)]
async fn five_thousand_candidates_with_wrong_clocks() {
    check(&measure(5000, 2, wrong).await, 17.0);
}

#[tokio::test(start_paused = true)]
async fn a_leader_with_a_wrong_clock_is_replaced_as_soon() {
    for clock_error in [-240, 240] {
        let election = ElectionFixture::new(400);
        let bad = election.candidate("wrong", clock_error);
        let (number, ..) = election.leader_after(-1, Duration::from_mins(1)).await;
        let _fleet: Vec<TestCandidate> = (1..400).map(|n| election.candidate(&format!("m{n}"), 0)).collect();
        sleep(round(400) * 3).await;
        bad.kill();
        let (.., took) = election.leader_after(number, Duration::from_mins(12)).await;
        println!("400 candidates, only the leader's clock wrong by {clock_error} s: fail-over {took:.1?}");
        assert!(took < Duration::from_secs(23), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_dies_in_its_first_half_minute_is_replaced_within_22_seconds() {
    for (candidates, rounds) in [(2, 20), (3, 20), (20, 5), (100, 2), (200, 2)] {
        let mut slowest = Duration::ZERO;
        let ages = [0, 1, 2, 3, 5, 8, 12, 16, 20, 28];
        let all = ages
            .into_iter()
            .flat_map(|age| (0..rounds).map(move |round| (age, round)));
        for (age, round) in all {
            let election = ElectionFixture::new(usize::try_from(candidates).unwrap());
            let fleet = (0..candidates).map(|n| election.candidate(&format!("m{n}-{age}-{round}"), 0));
            let mut fleet: Vec<TestCandidate> = fleet.collect();
            let (number, holder, _) = election.leader_after(-1, Duration::from_mins(1)).await;
            sleep(SECOND * age).await;
            let dead = fleet.iter().position(|candidate| candidate.name == holder).unwrap();
            fleet.swap_remove(dead).kill();
            let (.., took) = election.leader_after(number, Duration::from_mins(2)).await;
            slowest = slowest.max(took);
        }
        println!("{candidates} candidates, the first leader dies: fail-over up to {slowest:.1?}");
        assert!(slowest <= 22 * SECOND, "{candidates}: {slowest:?}");
    }
}
