//! A listener without sockets, for these tests and the fuzz targets.

use headgate_http::server::{Listener, ProxyProtocol};
use tokio::io::DuplexStream;
use tokio::sync::{Mutex, mpsc};

/// A listener whose connections come from the test.
pub(crate) struct InMemoryListener(pub(crate) Mutex<mpsc::UnboundedReceiver<DuplexStream>>);

impl Listener for InMemoryListener {
    type Stream = DuplexStream;

    async fn accept(&self) -> std::io::Result<DuplexStream> {
        match self.0.lock().await.recv().await {
            Some(stream) => Ok(stream),
            None => std::future::pending().await,
        }
    }

    async fn steer_away(&self, _: ProxyProtocol, _: impl FnMut(DuplexStream) + Send) {}
}
