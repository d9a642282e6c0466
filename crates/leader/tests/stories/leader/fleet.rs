//! Whole fleets in paused time, counted: what candidates cost the API server, and how long a dead leader leaves it
//! without one; with clocks that are up to five minutes off (DESIGN decision 7).

use std::time::Duration;

use hyper::Method;
use tokio::time::{Instant, sleep};

use super::world::{Member, SECOND, World};

/// The longest that a candidate of so many waits from one look to the next, and some more.
fn round(candidates: u32) -> Duration {
    (Duration::from_millis(125) * candidates).clamp(Duration::from_mins(1), Duration::from_mins(6))
}

struct Figures {
    /// Looks a second, of all candidates.
    looks: f64,
    /// The most in any ten seconds.
    busiest: f64,
    failovers: Vec<Duration>,
}

/// The requests of candidates: the holder renews by PUT alone.
fn looks(world: &World, from: Instant) -> Vec<Instant> {
    let requests = world.fake.requests().into_iter();
    let looks = requests.filter(|asked| asked.method == Method::GET && asked.at >= from);
    looks.map(|asked| asked.at).collect()
}

fn busiest_ten_seconds(looks: &[Instant]) -> usize {
    let within = |at: &Instant| {
        looks
            .iter()
            .filter(|other| **other >= *at && **other < *at + 10 * SECOND)
            .count()
    };
    looks.iter().step_by(7).map(within).max().unwrap_or_default()
}

async fn measure(candidates: u32, deaths: u32, off: impl Fn(u32) -> i64) -> Figures {
    let world = World::new(candidates);
    let mut members: Vec<Member> = (0..candidates)
        .map(|n| world.member(&format!("m{n}"), off(n)))
        .collect();
    world.leader_after(-1, Duration::from_mins(1)).await;
    let round = round(candidates);
    sleep(round + 40 * SECOND).await;
    let steady = Instant::now();
    let window = round / if candidates > 1000 { 2 } else { 1 };
    sleep(window).await;
    let all = looks(&world, steady);
    let mut failovers = Vec::new();
    for death in 0..deaths {
        // At any moment between two renewals.
        sleep(40 * SECOND + 370 * Duration::from_millis(1) * death).await;
        let (number, holder) = world.leader().unwrap();
        let dead = members.iter().position(|member| member.name == holder).unwrap();
        members.swap_remove(dead).kill();
        // The fleet's size stays.
        members.push(world.member(&format!("n{death}"), off(candidates + death)));
        let (.., took) = world.leader_after(number, Duration::from_mins(12)).await;
        failovers.push(took);
    }
    #[expect(clippy::cast_precision_loss, reason = "small counts")]
    let figures = Figures {
        looks: all.len() as f64 / window.as_secs_f64(),
        busiest: busiest_ten_seconds(&all) as f64 / 10.0,
        failovers,
    };
    let Figures {
        looks,
        busiest,
        failovers,
    } = &figures;
    println!(
        "{candidates} candidates: {looks:.1} looks/s, {busiest:.1} in the busiest 10 s, fail-over {failovers:.1?}"
    );
    figures
}

/// Five minutes off in either direction, each otherwise.
fn anyhow(n: u32) -> i64 {
    i64::from(n.wrapping_mul(2_654_435_761) % 601) - 300
}

fn right(_: u32) -> i64 {
    0
}

fn hold(figures: &Figures, most: f64) {
    assert!(figures.looks <= most, "{}", figures.looks);
    let bounds = Duration::from_secs(13)..=Duration::from_secs(23);
    assert!(
        figures.failovers.iter().all(|took| bounds.contains(took)),
        "{:?}",
        figures.failovers
    );
}

#[tokio::test(start_paused = true)]
async fn few_candidates() {
    for candidates in [2, 149, 151] {
        hold(&measure(candidates, 5, right).await, 10.0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_candidates_whose_clocks_are_right() {
    hold(&measure(1000, 4, right).await, 10.0);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_candidates_whose_clocks_are_up_to_five_minutes_off() {
    hold(&measure(1000, 4, anyhow).await, 10.0);
}

#[tokio::test(start_paused = true)]
async fn five_thousand_candidates_whose_clocks_are_up_to_five_minutes_off() {
    hold(&measure(5000, 2, anyhow).await, 17.0);
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_clock_alone_is_off_is_missed_as_soon() {
    for off in [-240, 240] {
        let world = World::new(400);
        let bad = world.member("off", off);
        let (number, ..) = world.leader_after(-1, Duration::from_mins(1)).await;
        let _members: Vec<Member> = (1..400).map(|n| world.member(&format!("m{n}"), 0)).collect();
        sleep(round(400) * 3).await;
        bad.kill();
        let (.., took) = world.leader_after(number, Duration::from_mins(12)).await;
        println!("400 candidates, the leader's clock alone {off} s off: fail-over {took:.1?}");
        assert!(took < Duration::from_secs(23), "{took:?}");
    }
}
