//! Response bodies that are sent in chunks. A connection's buffer grows to the largest chunk it is given and keeps that
//! size while the connection is open, and answers have megabytes.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// Size of a chunk: large enough that the overhead of each does not matter.
const CHUNK_BYTES: usize = 64 * 1024;

/// The rest of the body.
#[derive(Debug)]
struct ChunkedBody(Bytes);

/// A body that is sent in chunks.
pub(super) fn chunked_body(bytes: Bytes) -> Body {
    Body::new(ChunkedBody(bytes))
}

impl hyper::body::Body for ChunkedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.0.len().min(CHUNK_BYTES);
        let chunk = self.0.split_to(length);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use hyper::body::Body as _;

    use super::*;

    #[tokio::test]
    async fn chunks_are_small_and_the_body_is_whole() {
        for length in [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 1] {
            let sent: Bytes = (0..length).map(|number| number.to_le_bytes()[0]).collect();
            let mut body = chunked_body(sent.clone());
            assert_eq!(body.size_hint().exact(), Some(length as u64));
            let mut got = Vec::new();
            while let Some(frame) = body.frame().await {
                let chunk = frame.unwrap().into_data().unwrap();
                assert!((1..=CHUNK_BYTES).contains(&chunk.len()));
                got.extend_from_slice(&chunk);
            }
            assert_eq!(got, sent);
        }
    }
}
