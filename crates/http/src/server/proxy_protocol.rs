//! The PROXY protocol on a listener: a load balancer's header before the peer's own bytes is read and removed, so
//! that plain HTTP follows.
//!
//! The connection's own task does it, within the time limit of the first request, so a slow peer delays no other.
//! Bytes that were read beyond the header are passed on. A header that is incomplete, invalid or oversized closes the
//! connection. Every outcome is counted. The addresses in a header are not used, so a forged header gains nothing.

mod header;

use headgate_core::telemetry::words;
use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncRead, AsyncReadExt as _};

pub use header::{Prefix, Version, parse_prefix};

/// Bytes of the first read: more than a header with a probe behind it.
const READ_BUFFER_BYTES: usize = 512;

words! {
    /// Whether a connection begins with a PROXY protocol header, version 1 or 2.
    pub enum ProxyProtocol {
        /// A connection starts with a request; one that starts with a header gets 400.
        Disabled = "Disabled",
        /// A connection may start with a header; without one it is plain HTTP.
        Optional = "Optional",
        /// A connection starts with a header; one without it is closed.
        Required = "Required",
    }
}

words! {
    /// What the first bytes of a connection turned out to be; the label `outcome` of the metric. Counters are found by discriminants.
    pub(super) enum HeaderOutcome {
        V1 = "v1",
        V2 = "v2",
        /// No header, where it is optional.
        NoHeader = "none",
        /// No header, where it is required.
        Missing = "missing",
        /// The connection ended within a header.
        Half = "half",
        Invalid = "invalid",
        Oversized = "oversized",
    }
}

/// A listener's counter for each [`HeaderOutcome`].
#[derive(Clone, Debug)]
pub(super) struct HeaderCounters([Counter; HeaderOutcome::ALL.len()]);

impl HeaderCounters {
    pub(super) fn new(counter: impl FnMut(HeaderOutcome) -> Counter) -> Self {
        Self(HeaderOutcome::ALL.map(counter))
    }

    fn increment(&self, outcome: HeaderOutcome) {
        self.0[outcome as usize].inc();
    }
}

/// What a listener expects at the start of a connection.
#[derive(Clone, Debug)]
pub(super) enum ExpectedPrefix {
    /// The peer's own bytes.
    NoHeader,
    /// A header, or the peer's own bytes unless the header is required.
    Header {
        is_required: bool,
        counters: HeaderCounters,
    },
}

/// Counts half a header when it is dropped: the connection ended, took too long, or was evicted.
struct HalfHeaderGuard<'a> {
    counters: &'a HeaderCounters,
    is_armed: bool,
}

impl Drop for HalfHeaderGuard<'_> {
    fn drop(&mut self) {
        if self.is_armed {
            self.counters.increment(HeaderOutcome::Half);
        }
    }
}

impl ExpectedPrefix {
    pub(super) fn new(setting: ProxyProtocol, counters: impl FnOnce() -> HeaderCounters) -> Self {
        let is_required = match setting {
            ProxyProtocol::Disabled => return Self::NoHeader,
            ProxyProtocol::Optional => false,
            ProxyProtocol::Required => true,
        };
        Self::Header {
            is_required,
            counters: counters(),
        }
    }

    /// Reads a header from `stream` and returns the bytes that were read beyond it. `None` means that the connection
    /// must be closed.
    pub(super) async fn strip<S: AsyncRead + Unpin>(&self, stream: &mut S) -> Option<Vec<u8>> {
        let Self::Header { is_required, counters } = self else {
            return Some(Vec::new());
        };
        let mut bytes = Vec::with_capacity(READ_BUFFER_BYTES);
        let mut guard = HalfHeaderGuard {
            counters,
            is_armed: false,
        };
        let (outcome, header_bytes) = loop {
            if stream.read_buf(&mut bytes).await.ok()? == 0 {
                return None;
            }
            guard.is_armed = true;
            match parse_prefix(&bytes) {
                Prefix::Incomplete => {}
                Prefix::Header(Version::One, length) => break (HeaderOutcome::V1, Some(length)),
                Prefix::Header(Version::Two, length) => break (HeaderOutcome::V2, Some(length)),
                Prefix::NoHeader if *is_required => break (HeaderOutcome::Missing, None),
                Prefix::NoHeader => break (HeaderOutcome::NoHeader, Some(0)),
                Prefix::Invalid => break (HeaderOutcome::Invalid, None),
                Prefix::Oversized => break (HeaderOutcome::Oversized, None),
            }
        };
        guard.is_armed = false;
        counters.increment(outcome);
        if header_bytes.is_none() {
            let outcome = outcome.as_str();
            tracing::debug!(outcome, "connection closed because of its PROXY protocol header");
        }
        Some(bytes.split_off(header_bytes?))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    const HEADER: &[u8] = b"PROXY TCP4 192.0.2.1 10.0.0.4 50000 10356\r\n";
    const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\n\r\n";

    /// Sends these pieces one by one; returns the bytes that `strip` leaves and the outcome that it counts.
    async fn strip(required: bool, pieces: &[&[u8]]) -> (Option<Vec<u8>>, Option<&'static str>) {
        let counters = HeaderCounters::new(|_| Counter::default());
        let expected = ExpectedPrefix::Header {
            is_required: required,
            counters: counters.clone(),
        };
        let (mut peer, mut stream) = tokio::io::duplex(64 * 1024);
        let send = async {
            for piece in pieces {
                peer.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(peer);
        };
        let receive = async {
            let mut rest = expected.strip(&mut stream).await?;
            stream.read_to_end(&mut rest).await.unwrap();
            Some(rest)
        };
        let (rest, ()) = tokio::join!(receive, send);
        let counted: Vec<_> = (HeaderOutcome::ALL.iter().zip(&counters.0))
            .filter(|(_, counter)| counter.get() > 0)
            .collect();
        assert!(counted.len() <= 1 && counted.iter().all(|(_, counter)| counter.get() == 1));
        (rest, counted.first().map(|(outcome, _)| outcome.as_str()))
    }

    #[tokio::test]
    async fn a_split_prefix_loses_no_byte() {
        let both = [HEADER, REQUEST].concat();
        for split in 0..=both.len() {
            let (first, second) = both.split_at(split);
            let want = (Some(REQUEST.to_vec()), Some("v1"));
            assert_eq!(strip(true, &[first, second]).await, want, "split at {split}");
        }
        for split in 0..=REQUEST.len() {
            let (first, second) = REQUEST.split_at(split);
            let want = (Some(REQUEST.to_vec()), Some("none"));
            assert_eq!(strip(false, &[first, second]).await, want, "split at {split}");
        }
        let bytes: Vec<&[u8]> = both.chunks(1).collect();
        assert_eq!(strip(false, &bytes).await, (Some(REQUEST.to_vec()), Some("v1")));
    }

    #[tokio::test]
    async fn closed_connections_are_counted() {
        let long = [HEADER.strip_suffix(b"\r\n").unwrap(), &[b' '; 200]].concat();
        for (required, bytes, outcome) in [
            (true, REQUEST, Some("missing")),
            (true, b"PROXY TCP4\r\n", Some("invalid")),
            (false, b"PROXY TCP4\r\n", Some("invalid")),
            (false, &HEADER[..20], Some("half")),
            (true, &HEADER[..20], Some("half")),
            (false, b"PRO", Some("half")),
            (true, b"\r\n\r", Some("half")),
            (false, &long, Some("oversized")),
            // A peer that sends nothing has not begun a header.
            (true, b"", None),
        ] {
            assert_eq!(strip(required, &[bytes]).await, (None, outcome), "{bytes:?}");
        }
    }
}
