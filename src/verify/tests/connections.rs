//! The connections on real sockets: an HTTP server behind a load balancer that follows the emulator's admin state.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use headgate_azure_emulator::Settings;
use headgate_core::clock::Clock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};
use tokio_util::sync::CancellationToken;

use super::{World, plan, with_verdict};
use crate::verify::report::Verdict;

/// How the load balancer takes `Down`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataPlane {
    /// As documented: no new connections, and established ones go on.
    Documented,
    /// It ignores admin states.
    Ignores,
    /// It ends established connections, too.
    Resets,
}

/// How long the load balancer takes.
const PROPAGATION: Duration = Duration::from_millis(400);

/// Follows the admin state of the entry of the pool `one`.
async fn follow(world: &World, is_down: watch::Sender<bool>) {
    let mut ticks = interval(Duration::from_millis(20));
    loop {
        ticks.tick().await;
        let down = world
            .entries()
            .into_iter()
            .any(|(pool, _, state)| pool == "one" && state.is_some());
        if *is_down.borrow() != down {
            sleep(PROPAGATION).await;
            is_down.send_replace(down);
        }
    }
}

/// Answers each request on each connection.
async fn serve(listener: TcpListener, data_plane: DataPlane, is_down: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        if *is_down.borrow() && data_plane != DataPlane::Ignores {
            continue;
        }
        let mut is_down = is_down.clone();
        connections.spawn(async move {
            let reset = async {
                let is_reset = is_down.wait_for(|is_down| *is_down && data_plane == DataPlane::Resets);
                let _ = is_reset.await.is_ok();
            };
            tokio::select! {
                () = answer(stream) => {}
                () = reset => {}
            }
        });
    }
}

async fn answer(mut stream: TcpStream) {
    let mut request = [0; 1024];
    while let Ok(1..) = stream.read(&mut request).await {
        let answered = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
        if answered.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn new_and_established_connections_are_told_apart() {
    let rows: [(DataPlane, &[&str]); 3] = [
        (DataPlane::Documented, &[]),
        (DataPlane::Ignores, &["new-connections"]),
        (DataPlane::Resets, &["established-connections"]),
    ];
    for (data_plane, falsified) in rows {
        let settings = Settings {
            operation_delay: Duration::from_millis(200),
            ..Settings::default()
        };
        let world = World::new(false, settings, Clock::System).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let frontend: SocketAddr = listener.local_addr().unwrap();
        let (sender, is_down) = watch::channel(false);
        let mut plan = plan(false);
        plan.named.second = None;
        plan.spare = None;
        plan.frontend = Some(frontend);
        let report = tokio::select! {
            report = world.run(plan, CancellationToken::new()) => report,
            () = follow(&world, sender) => unreachable!(),
            () = serve(listener, data_plane, is_down) => unreachable!(),
        };
        let text = report.markdown();
        assert_eq!(
            with_verdict(&report, Verdict::False),
            falsified.iter().copied().collect::<BTreeSet<_>>(),
            "{data_plane:?}: {text}"
        );
        let both = ["new-connections", "established-connections"].into_iter();
        let others = both.filter(|id| !falsified.contains(id));
        let holds = with_verdict(&report, Verdict::Holds);
        for id in others {
            assert!(holds.contains(id), "{data_plane:?}: {text}");
        }
        assert!(
            world.entries().iter().all(|(.., state)| state.is_none()),
            "{data_plane:?}"
        );
    }
}
