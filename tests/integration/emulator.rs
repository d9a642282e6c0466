//! The ARM emulator, judged by clients that nobody here wrote.

use std::time::{Duration, Instant};

use self::process::Emulator;
use crate::harness::http::Connection;

mod clients;
mod cloud_controller_manager;
mod evidence;
pub(crate) mod process;

#[tokio::test]
async fn it_ends_at_once_although_connections_are_kept_open() {
    let emulator = Emulator::start(&[]).await;
    let addresses = emulator.directory.join("addresses.json");
    assert!(addresses.exists());
    let mut kept = Connection::open(emulator.arm).await.unwrap();
    kept.send(b"GET / HTTP/1.1\r\nHost: arm\r\n\r\n").await.unwrap();
    kept.answer().await.unwrap();

    let told = Instant::now();
    emulator.stop().await;
    let took = told.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(!addresses.exists(), "it names addresses where nobody is any more");
    assert_eq!(kept.rest().await.unwrap(), b"", "closed");
}
