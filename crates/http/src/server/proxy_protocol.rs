//! The PROXY protocol on a listener: a header that a load balancer puts before the peer's own bytes is
//! read and left out, so that what follows is plain HTTP.
//!
//! It is done in the connection's own task, within the time of its first request, so a slow peer keeps
//! nobody waiting. No byte of the peer's own is lost: what was read beyond the header is handed on. A
//! header that is half, wrong or oversized closes the connection, and every outcome is counted. The
//! addresses in it are not used: nothing here trusts a peer any more because of what it says.

mod header;

use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncRead, AsyncReadExt as _};

pub use header::{Start, Version, parse};

/// What may come of a connection's start, as counted.
pub(super) const OUTCOMES: [&str; 7] = ["v1", "v2", "none", "missing", "half", "invalid", "oversized"];

/// Read at once: more than a header with a probe behind it.
const CHUNK: usize = 512;

/// Whether a connection begins with a PROXY protocol header, version 1 or 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// It does not; one that does is a bad request.
    Off,
    /// It may.
    Optional,
    /// It must.
    Required,
}

/// What a listener expects a connection to begin with.
#[derive(Clone, Debug)]
pub(super) enum Expected {
    /// The peer's own bytes.
    Plain,
    /// A header, or, unless it is required, the peer's own bytes.
    Header { required: bool, outcomes: Outcomes },
}

/// A counter for each outcome.
#[derive(Clone, Debug)]
pub(super) struct Outcomes(pub(super) [Counter; OUTCOMES.len()]);

impl Outcomes {
    fn count(&self, outcome: &str) {
        if let Some(index) = OUTCOMES.iter().position(|known| *known == outcome) {
            self.0[index].inc();
        }
    }
}

/// Counts half a header when its connection ends, is closed for taking too long, or is evicted.
struct Half<'a> {
    outcomes: &'a Outcomes,
    begun: bool,
}

impl Drop for Half<'_> {
    fn drop(&mut self) {
        if self.begun {
            self.outcomes.count("half");
        }
    }
}

impl Expected {
    pub(super) fn new(setting: ProxyProtocol, outcomes: impl FnOnce() -> Outcomes) -> Self {
        let required = match setting {
            ProxyProtocol::Off => return Self::Plain,
            ProxyProtocol::Optional => false,
            ProxyProtocol::Required => true,
        };
        Self::Header {
            required,
            outcomes: outcomes(),
        }
    }

    /// Reads a header from `stream`; what was read beyond it, or nothing where the connection is to be closed.
    pub(super) async fn strip<S: AsyncRead + Unpin>(&self, stream: &mut S) -> Option<Vec<u8>> {
        let Self::Header { required, outcomes } = self else {
            return Some(Vec::new());
        };
        let mut bytes = Vec::with_capacity(CHUNK);
        let mut half = Half { outcomes, begun: false };
        let (outcome, length) = loop {
            // A peer that ends or fails before it has said enough is done, and so are we.
            if stream.read_buf(&mut bytes).await.ok()? == 0 {
                return None;
            }
            half.begun = true;
            match parse(&bytes) {
                Start::Undecided => {}
                Start::Header(Version::One, length) => break ("v1", Some(length)),
                Start::Header(Version::Two, length) => break ("v2", Some(length)),
                Start::Plain if *required => break ("missing", None),
                Start::Plain => break ("none", Some(0)),
                Start::Invalid => break ("invalid", None),
                Start::Oversized => break ("oversized", None),
            }
        };
        half.begun = false;
        outcomes.count(outcome);
        if length.is_none() {
            tracing::debug!(outcome, "a connection was closed for its PROXY protocol header");
        }
        Some(bytes.split_off(length?))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    const HEADER: &[u8] = b"PROXY TCP4 192.0.2.1 10.0.0.4 50000 10356\r\n";
    const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\n\r\n";

    /// What `strip` leaves of these pieces, given one by one, and the outcome it counts.
    async fn strip(required: bool, pieces: &[&[u8]]) -> (Option<Vec<u8>>, Option<&'static str>) {
        let outcomes = Outcomes(std::array::from_fn(|_| Counter::default()));
        let expected = Expected::Header {
            required,
            outcomes: outcomes.clone(),
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
        let counted: Vec<_> = (OUTCOMES.iter().zip(&outcomes.0))
            .filter(|(_, counter)| counter.get() > 0)
            .collect();
        assert!(counted.len() <= 1 && counted.iter().all(|(_, counter)| counter.get() == 1));
        (rest, counted.first().map(|(outcome, _)| **outcome))
    }

    #[tokio::test]
    async fn no_byte_is_lost_however_it_is_split() {
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
    async fn what_is_closed_is_counted() {
        let long = [HEADER.strip_suffix(b"\r\n").unwrap(), &[b' '; 200]].concat();
        for (required, bytes, outcome) in [
            (true, REQUEST, Some("missing")),
            (true, b"PROXY TCP4\r\n", Some("invalid")),
            (false, b"PROXY TCP4\r\n", Some("invalid")),
            (false, &HEADER[..20], Some("half")),
            (false, b"PRO", Some("half")),
            (false, &long, Some("oversized")),
            // Who says nothing at all has not tried to say a header.
            (true, b"", None),
        ] {
            assert_eq!(strip(required, &[bytes]).await, (None, outcome), "{bytes:?}");
        }
    }
}
