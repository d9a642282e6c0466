//! Answers as bodies that give themselves in parts: a connection's buffer takes the size of the largest part it is
//! given and keeps it for as long as the connection is open, and answers have megabytes.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// Large enough that writing it is most of the work.
const PART_BYTES: usize = 64 * 1024;

/// What is left of an answer.
#[derive(Debug)]
struct Parts(Bytes);

/// An answer's body.
pub(super) fn body(bytes: Bytes) -> Body {
    Body::new(Parts(bytes))
}

impl hyper::body::Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.0.len().min(PART_BYTES);
        let part = self.0.split_to(length);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(part))))
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
    async fn parts_are_small_and_the_answer_is_whole() {
        for length in [0, 1, PART_BYTES, 3 * PART_BYTES + 1] {
            let sent: Bytes = (0..length).map(|number| number.to_le_bytes()[0]).collect();
            let mut body = body(sent.clone());
            assert_eq!(body.size_hint().exact(), Some(length as u64));
            let mut got = Vec::new();
            while let Some(frame) = body.frame().await {
                let part = frame.unwrap().into_data().unwrap();
                assert!((1..=PART_BYTES).contains(&part.len()));
                got.extend_from_slice(&part);
            }
            assert_eq!(got, sent);
        }
    }
}
