//! A subscriber that records spans: their fields, and which is the parent of which.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

/// One span.
#[derive(Clone, Debug, Default)]
pub struct RecordedSpan {
    /// Its name.
    pub name: &'static str,
    /// The index of its parent among all recorded spans.
    pub parent: Option<usize>,
    /// Its fields as text.
    pub fields: BTreeMap<&'static str, String>,
}

impl RecordedSpan {
    /// The field, or the empty text.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

/// The spans so far, in the order in which they began. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct RecordedSpans(Arc<Mutex<Vec<RecordedSpan>>>);

/// The index of a span, in its extensions.
struct Index(usize);

/// While a process has one subscriber, tracing asks the subscriber of the thread that reaches a span first, and keeps the answer
/// for all threads: a test without a subscriber would disable the spans of another test. With these it asks all subscribers.
pub(crate) static OTHER_SUBSCRIBERS: LazyLock<[Dispatch; 2]> =
    LazyLock::new(|| [(); 2].map(|()| Dispatch::new(tracing_subscriber::registry())));

impl RecordedSpans {
    /// Records headgate's spans of this thread until the guard is dropped, down to DEBUG.
    pub fn start() -> (Self, DefaultGuard) {
        LazyLock::force(&OTHER_SUBSCRIBERS);
        let spans = Self::default();
        let own = FilterFn::new(|metadata| metadata.is_span() && metadata.target().starts_with("headgate"));
        let layer = Recorder(spans.clone()).with_filter(own.with_max_level_hint(LevelFilter::from_level(Level::DEBUG)));
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        (spans, guard)
    }

    /// All spans.
    pub fn all(&self) -> Vec<RecordedSpan> {
        self.lock().clone()
    }

    /// The spans with this name.
    pub fn named(&self, name: &str) -> Vec<RecordedSpan> {
        let all = self.lock();
        all.iter().filter(|span| span.name == name).cloned().collect()
    }

    /// The names of a span's parents, the nearest first.
    pub fn parents(&self, span: &RecordedSpan) -> Vec<&'static str> {
        let (all, mut names, mut next) = (self.lock(), Vec::new(), span.parent);
        while let Some(parent) = next.map(|index| &all[index]) {
            names.push(parent.name);
            next = parent.parent;
        }
        names
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RecordedSpan>> {
        self.0.lock().unwrap()
    }
}

struct Recorder(RecordedSpans);

impl<S: Subscriber + for<'span> LookupSpan<'span>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        let index_of = |span: tracing_subscriber::registry::SpanRef<'_, S>| {
            span.extensions().get::<Index>().map(|Index(index)| *index)
        };
        let parent = span.parent().and_then(index_of);
        let mut recorded = RecordedSpan {
            name: attributes.metadata().name(),
            parent,
            ..RecordedSpan::default()
        };
        attributes.record(&mut recorded);
        let mut all = self.0.lock();
        span.extensions_mut().insert(Index(all.len()));
        all.push(recorded);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        let index = span.extensions().get::<Index>().map(|Index(index)| *index).unwrap();
        values.record(&mut self.0.lock()[index]);
    }
}

impl Visit for RecordedSpan {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
}
