//! How many events of EndpointSlices the updater accepts: each is parsed, converted and applied as the leader's watch does, on
//! one thread, without sockets. Every Service gets five events, and the tick that follows looks at all of them.

use anyhow::{Context as _, ensure};
use headgate_controller::local_pools::{Updater, UpdaterSettings};
use headgate_controller::local_service::{SharedUpdater, SlimEndpointSlice};
use headgate_core::service::{NamespacedName, Service};
use kube::core::WatchEvent;
use serde_json::json;
use tokio::time::Instant;

use crate::local_services::{LocalShape, service_name};
use crate::measuring::cpu_time;
use crate::measuring::figures::{float, mebibytes, millis};
use crate::measuring::report::{Budget, Check, Row};

const SHAPE: LocalShape = LocalShape::MANY;
const EVENTS: usize = 10_000;
const ROUNDS: usize = 5;

pub(super) fn measure() -> anyhow::Result<Row> {
    let updater = SharedUpdater::new(Updater::new(UpdaterSettings::default()));
    for number in 0..SHAPE.services {
        updater.lock().apply_service(&service(number).into());
    }
    let (mut best, mut tick, mut bytes) = (f64::MAX, f64::MAX, 0);
    for round in 0..=ROUNDS {
        let event = |number: usize| {
            let (service, slice) = (number % SHAPE.services, number / SHAPE.services);
            json!({"type": "MODIFIED", "object": SHAPE.slice(service, slice, round)}).to_string()
        };
        let events: Vec<String> = (0..EVENTS).map(event).collect();
        bytes = events.iter().map(String::len).sum();
        let before = cpu_time::thread()?;
        for text in &events {
            let event: WatchEvent<SlimEndpointSlice> = serde_json::from_str(text)?;
            let WatchEvent::Modified(object) = event else {
                anyhow::bail!("another event");
            };
            let slice = object.convert().context("a slice")?;
            updater.lock().apply_slice(&slice);
        }
        let applied = cpu_time::thread()?;
        updater.lock().begin_tick(Instant::now());
        updater.lock().compare_some(Instant::now(), usize::MAX);
        let done = cpu_time::thread()?;
        ensure!(updater.lock().queue().is_empty(), "no pool is known");
        // The first round is a warm-up.
        if round > 0 {
            best = best.min(millis(applied.saturating_sub(before)));
            tick = tick.min(millis(done.saturating_sub(applied)));
        }
    }
    let per_second = float(EVENTS as u64) / (best / 1e3);
    Ok(Row {
        checks: vec![
            Check::new(
                "processor time of 10,000 slice events",
                best,
                "ms",
                None,
                Budget::Most(1000.0),
            ),
            Check::new("events for each second of one core", per_second, "", None, Budget::None),
            Check::new(
                "bytes of 10,000 events",
                mebibytes(bytes as u64),
                "MiB",
                None,
                Budget::None,
            ),
        ],
        raw: json!({"events": EVENTS, "services": SHAPE.services, "endpointsOfEachSlice": SHAPE.entries / SHAPE.slices,
            "tickBeforePoolsAreKnownMilliseconds": tick, "rounds": ROUNDS}),
    })
}

/// A Local Service with one pool.
pub(super) fn service(number: usize) -> Service {
    Service {
        uid: uid(number),
        is_local: true,
        ..Service::named(NamespacedName::new("default", &service_name(number)))
    }
}

/// The UID of a Service.
pub(super) fn uid(number: usize) -> String {
    format!("0b0b0b0b-0b0b-0b0b-0b0b-{number:012}")
}
