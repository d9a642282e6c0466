//! A watch: what there is, or what happened since, and then what happens, until it is over.

use std::collections::VecDeque;
use std::time::Duration;

use futures::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::Response;
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tower::BoxError;

use super::kinds::At;
use super::line::{AnswerBody, Fault, Line, Understood, WAY};
use super::rules::refusal;
use super::{Asked, FakeApi};

struct Watch {
    fake: FakeApi,
    line: Line,
    asked: Asked,
    those: At,
    /// What was told already.
    version: u64,
    to_tell: VecDeque<Value>,
    ends_at: Instant,
    restarts: u64,
    cuts: u64,
    changes: watch::Receiver<()>,
    line_changes: watch::Receiver<u64>,
    over: bool,
}

impl FakeApi {
    pub(super) fn watch(&self, request: &Understood, line: Line, restarts: u64) -> Response<AnswerBody> {
        let number = |name: &str| request.query.get(name).and_then(|value| value.parse::<u64>().ok());
        let cuts = *line.changes.borrow();
        let mut watch = Watch {
            changes: self.0.changes.subscribe(),
            line_changes: line.changes.subscribe(),
            cuts,
            asked: request.asked.clone(),
            those: request.at.clone(),
            version: number("resourceVersion").unwrap_or_default(),
            to_tell: VecDeque::new(),
            ends_at: Instant::now() + Duration::from_secs(number("timeoutSeconds").unwrap_or(290)),
            fake: self.clone(),
            line,
            restarts,
            over: false,
        };
        if watch.version == 0 {
            let store = self.store();
            watch.version = store.version();
            let added = |(_, object): (&At, &Value)| json!({"type": "ADDED", "object": object});
            watch.to_tell = store.objects(&watch.those).map(added).collect();
        }
        let frames = stream::unfold(watch, |mut watch| async move {
            let text = watch.next().await?;
            Some((text.map(Frame::data), watch))
        });
        Response::new(StreamBody::new(frames).boxed_unsync())
    }
}

impl Watch {
    /// The next piece; `None` at the end.
    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        loop {
            if self.over {
                return None;
            }
            if self.fake.life().0 != self.restarts || *self.line.changes.borrow() != self.cuts {
                self.over = true;
                return Some(Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()));
            }
            if Instant::now() >= self.ends_at {
                return None;
            }
            self.changes.borrow_and_update();
            self.line_changes.borrow_and_update();
            // What is sent while the line is cut comes once it is mended.
            if self.line.fault(&self.asked) != Fault::CutOff {
                self.look();
                if !self.to_tell.is_empty() {
                    sleep(WAY).await;
                    let lines = self.to_tell.drain(..).map(|event| format!("{event}\n"));
                    return Some(Ok(lines.collect::<String>().into()));
                }
            }
            tokio::select! {
                _ = self.changes.changed() => {}
                _ = self.line_changes.changed() => {}
                () = sleep_until(self.ends_at) => {}
            }
        }
    }

    fn look(&mut self) {
        let store = self.fake.store();
        let Some(changes) = store.since(self.version, &self.those) else {
            let (_, status) = refusal(410, "Expired", "too old resource version");
            self.to_tell.push_back(json!({"type": "ERROR", "object": status}));
            self.version = store.version();
            self.over = true;
            return;
        };
        self.version = store.version();
        let event = |change: super::store::Change| json!({"type": change.kind, "object": change.object});
        self.to_tell.extend(changes.into_iter().map(event));
    }
}
