//! A response body on its way to its parser.
//!
//! A body that is small, or that is kept as text, is parsed as a whole, because the JSON parser reads a stream byte by byte. A larger one
//! is parsed while it arrives, so that it is never in memory as a whole; at most [`MAX_QUEUED_CHUNKS`] chunks wait for the parser. Above
//! [`MAX_INLINE_BYTES`] either happens on a blocking thread, so that the tasks of the runtime go on meanwhile. A body above the limit,
//! [`MAX_STREAMED_BYTES`] by default, is an error. What the parser keeps is bounded by the parser. Of a body whose beginning is enough, the
//! rest is not received.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use tokio::sync::{Mutex, mpsc};
use tokio::task::{JoinError, JoinHandle};

use crate::transport::TransportError;

/// Size limit of a streamed body. A load balancer with 5,000 nodes in three NIC pools has 17 MB.
pub(crate) const MAX_STREAMED_BYTES: usize = 64 * 1024 * 1024;
/// A larger body is parsed on a blocking thread: parsing this much takes about a millisecond.
const MAX_INLINE_BYTES: usize = 128 * 1024;
/// Chunks that wait for the parser. The connection's reads wait when they are this many.
const MAX_QUEUED_CHUNKS: usize = 4;
/// A buffered body is handed over in pieces of this size. The blocking thread offers its processor to others after each.
const PIECE_BYTES: usize = 64 * 1024;
/// What is received of a body whose beginning is enough, to the end of the chunk. ARM's documents begin with names and tags,
/// which have 38 KB at most.
const BEGINNING_BYTES: usize = 64 * 1024;

/// Parses a body from its beginning to its end, and stores the result where the caller finds it.
type Parse = dyn Fn(BodyReader) -> Result<(), String> + Send + Sync;

/// How the body of a successful response is read. A request that is sent again parses the new response from its beginning.
#[derive(Clone)]
pub(crate) struct BodyParser {
    parse: Arc<Parse>,
    extent: BodyExtent,
    /// A larger body is an error.
    max_bytes: usize,
}

/// How much of a body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyExtent {
    /// All of it.
    Whole {
        /// A body of up to this many bytes is also kept as text.
        max_kept_bytes: usize,
    },
    /// The first [`BEGINNING_BYTES`].
    Beginning,
}

impl BodyExtent {
    /// All of it, and none of the text is kept.
    pub(crate) const PARSED: Self = Self::Whole { max_kept_bytes: 0 };

    /// A larger body is parsed while it arrives.
    fn max_collected_bytes(self) -> usize {
        match self {
            Self::Whole { max_kept_bytes } => max_kept_bytes.max(MAX_INLINE_BYTES),
            Self::Beginning => usize::MAX,
        }
    }
}

impl BodyParser {
    pub(crate) fn new(
        extent: BodyExtent,
        max_bytes: usize,
        parse: impl Fn(BodyReader) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            parse: Arc::new(parse),
            extent,
            max_bytes,
        }
    }
}

impl fmt::Debug for BodyParser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodyParser")
    }
}

/// Where the transport writes the body of one response. Clones write to the same parser. A writer keeps the lock while it waits for
/// the parser. Nobody else waits for the lock: chunks are written one after the other, and `finish` is called after the last one.
#[derive(Clone)]
pub(crate) struct BodySink(Arc<Mutex<State>>);

struct State {
    parser: BodyParser,
    received: usize,
    stage: Stage,
}

enum Stage {
    /// Not parsed yet. A copy: what the connection has received into is free for the next chunk.
    Collecting(Vec<u8>),
    /// A blocking thread parses what arrives.
    Parsing {
        chunks: mpsc::Sender<Bytes>,
        job: JoinHandle<Result<(), String>>,
    },
}

impl BodySink {
    pub(crate) fn new(parser: BodyParser) -> Self {
        Self(Arc::new(Mutex::new(State {
            parser,
            received: 0,
            stage: Stage::Collecting(Vec::new()),
        })))
    }

    /// Takes the next chunk of the body; waits while the parser is behind. Returns whether more is needed.
    pub(crate) async fn write(&self, chunk: Bytes) -> Result<bool, TransportError> {
        let mut state = self.0.lock().await;
        state.received += chunk.len();
        let is_beginning = state.parser.extent == BodyExtent::Beginning;
        if state.received > state.parser.max_bytes && !is_beginning {
            return Err(TransportError::StreamTooLarge(state.parser.max_bytes));
        }
        let needs_more = !is_beginning || state.received < BEGINNING_BYTES;
        let is_collected = state.received <= state.parser.extent.max_collected_bytes();
        match &mut state.stage {
            Stage::Collecting(collected) => {
                collected.extend_from_slice(&chunk);
                if !is_collected {
                    let (chunks, queue) = mpsc::channel(MAX_QUEUED_CHUNKS);
                    let reader = BodyReader::arriving(std::mem::take(collected).into(), queue);
                    let parse = Arc::clone(&state.parser.parse);
                    let job = tokio::task::spawn_blocking(move || parse(reader));
                    state.stage = Stage::Parsing { chunks, job };
                }
            }
            // A parser that has ended needs no more, or has found an error, which `finish` returns.
            Stage::Parsing { chunks, .. } => drop(chunks.send(chunk).await),
        }
        Ok(needs_more)
    }

    /// Takes a whole body.
    pub(crate) async fn write_all(&self, mut body: Bytes) -> Result<(), TransportError> {
        while !body.is_empty() {
            let piece = body.split_to(body.len().min(PIECE_BYTES));
            if !self.write(piece).await? {
                break;
            }
        }
        Ok(())
    }

    /// Waits for the parser to reach the end. Returns the body if it is small enough to be kept, or an empty one.
    pub(crate) async fn finish(&self) -> Result<Bytes, TransportError> {
        let mut state = self.0.lock().await;
        let (parse, length) = (Arc::clone(&state.parser.parse), state.received);
        let parse_whole = move |mut text: Vec<u8>| {
            // It has grown by doubling.
            text.shrink_to_fit();
            let text = Bytes::from(text);
            parse(BodyReader::whole(text.clone())).map(|()| text)
        };
        let parsed = match std::mem::replace(&mut state.stage, Stage::Collecting(Vec::new())) {
            Stage::Collecting(text) if length <= MAX_INLINE_BYTES => parse_whole(text),
            Stage::Collecting(text) => joined(tokio::task::spawn_blocking(move || parse_whole(text)).await),
            Stage::Parsing { chunks, job } => {
                drop(chunks);
                joined(job.await).map(|()| Bytes::new())
            }
        };
        let text = parsed.map_err(TransportError::Malformed)?;
        let is_kept = matches!(state.parser.extent, BodyExtent::Whole { max_kept_bytes } if length <= max_kept_bytes);
        Ok(if is_kept { text } else { Bytes::new() })
    }
}

fn joined<T>(parsed: Result<Result<T, String>, JoinError>) -> Result<T, String> {
    parsed.unwrap_or_else(|error| Err(error.to_string()))
}

/// A body for its parser: as text, or as a blocking reader whose end is the end of the body, or of the request that was dropped.
pub(crate) struct BodyReader {
    current: Bytes,
    /// What was read of `current`.
    position: usize,
    /// What follows `current` in the same chunk.
    rest: Bytes,
    /// Further chunks, on a blocking thread.
    queue: Option<mpsc::Receiver<Bytes>>,
}

impl BodyReader {
    pub(crate) fn whole(text: Bytes) -> Self {
        Self {
            current: Bytes::new(),
            position: 0,
            rest: text,
            queue: None,
        }
    }

    pub(crate) fn arriving(collected: Bytes, queue: mpsc::Receiver<Bytes>) -> Self {
        Self {
            queue: Some(queue),
            ..Self::whole(collected)
        }
    }

    /// The whole body, if it is in memory.
    pub(crate) fn text(&self) -> Option<&[u8]> {
        self.queue.is_none().then_some(&*self.rest)
    }

    /// The next piece of at most [`PIECE_BYTES`].
    fn next_piece(&mut self) -> Option<Bytes> {
        if self.queue.is_some() {
            // On few cores the runtime's thread would wait for the end of this thread's time slice, which is milliseconds.
            thread::yield_now();
        }
        if self.rest.is_empty() {
            self.rest = self.queue.as_mut().and_then(mpsc::Receiver::blocking_recv)?;
        }
        Some(self.rest.split_to(self.rest.len().min(PIECE_BYTES)))
    }
}

impl Read for BodyReader {
    #[inline]
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        // The JSON parser reads byte by byte.
        if let ([target], Some(byte)) = (&mut *target, self.current.get(self.position)) {
            *target = *byte;
            self.position += 1;
            return Ok(1);
        }
        while self.position == self.current.len() {
            match self.next_piece() {
                Some(piece) => (self.current, self.position) = (piece, 0),
                None => return Ok(0),
            }
        }
        let left = &self.current[self.position..];
        let length = target.len().min(left.len());
        target[..length].copy_from_slice(&left[..length]);
        self.position += length;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as StdMutex;

    use super::*;

    /// A sink whose parser stores what it reads.
    fn sink(extent: BodyExtent) -> (BodySink, Arc<StdMutex<Vec<u8>>>) {
        let stored = Arc::new(StdMutex::new(Vec::new()));
        let target = Arc::clone(&stored);
        let parser = BodyParser::new(extent, MAX_STREAMED_BYTES, move |mut reader| {
            let mut text = Vec::new();
            reader.read_to_end(&mut text).map_err(|error| error.to_string())?;
            if text.starts_with(b"bad") {
                return Err("bad".to_owned());
            }
            *target.lock().unwrap() = text;
            Ok(())
        });
        (BodySink::new(parser), stored)
    }

    #[tokio::test]
    async fn body_reaches_the_parser_and_only_small_ones_are_kept() {
        for (length, max_kept_bytes, is_kept) in [
            (0, 10, true),
            (10, 10, true),
            (11, 10, false),
            (MAX_INLINE_BYTES, usize::MAX, true),
            (MAX_INLINE_BYTES * 20 + 1, usize::MAX, true),
            (MAX_INLINE_BYTES * 20, MAX_INLINE_BYTES, false),
        ] {
            let (sink, stored) = sink(BodyExtent::Whole { max_kept_bytes });
            let body: Bytes = (0..=250_u8).cycle().take(length).collect();
            sink.write_all(body.clone()).await.unwrap();
            let kept = sink.finish().await.unwrap();
            assert!(*stored.lock().unwrap() == body, "{length}");
            assert_eq!(kept == body, is_kept, "{length}");
        }
    }

    #[tokio::test]
    async fn error_of_the_parser_is_reported_at_the_end() {
        for length in [3, MAX_INLINE_BYTES * 2] {
            let (sink, _) = sink(BodyExtent::PARSED);
            let mut body = b"bad".to_vec();
            body.resize(length, b' ');
            sink.write_all(body.into()).await.unwrap();
            let error = sink.finish().await.unwrap_err();
            assert_eq!(error, TransportError::Malformed("bad".to_owned()));
        }
    }

    #[tokio::test]
    async fn body_above_the_limit_is_an_error() {
        let (sink, _) = sink(BodyExtent::PARSED);
        let piece = Bytes::from(vec![b' '; MAX_STREAMED_BYTES / 4]);
        for _ in 0..4 {
            sink.write(piece.clone()).await.unwrap();
        }
        let error = sink.write(Bytes::from_static(b" ")).await.unwrap_err();
        assert_eq!(error, TransportError::StreamTooLarge(MAX_STREAMED_BYTES));
    }

    #[tokio::test]
    async fn only_the_beginning_is_read_where_it_is_enough() {
        for (length, received) in [
            (10, 10),
            (BEGINNING_BYTES - 1, BEGINNING_BYTES - 1),
            (3 * BEGINNING_BYTES + 7, BEGINNING_BYTES),
            (MAX_STREAMED_BYTES + 1, BEGINNING_BYTES),
        ] {
            let (sink, stored) = sink(BodyExtent::Beginning);
            sink.write_all(vec![b' '; length].into()).await.unwrap();
            assert!(sink.finish().await.unwrap().is_empty());
            assert_eq!(stored.lock().unwrap().len(), received, "{length}");
        }
    }
}
