//! The state as the control API reads and changes it.

use std::time::Duration;

use axum::http::StatusCode;
use headgate_core::clock::{Clock, Moment};
use serde_json::{Value, json};

use super::State;
use crate::error::ErrorResponse;
use crate::faults::FaultRules;
use crate::journal::Journal;
use crate::store::Store;
use crate::throttle::Throttle;

impl State {
    pub(crate) fn faults(&mut self) -> &mut FaultRules {
        &mut self.faults
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Resources, operations, buckets, rules and settings.
    pub(crate) fn shown(&mut self, now: Moment) -> Value {
        self.end_due_operations(now);
        let show_none = self.settings.shows_none();
        let resources = self.store.all();
        let shown = |resource| {
            let mut shown = self.store.show(resource, show_none);
            self.settings.deviations.show_etags(resource, None, &mut shown);
            shown
        };
        let resources: Vec<Value> = resources.map(shown).collect();
        json!({
            "resources": resources,
            "operations": self.store.operations.shown(),
            "throttle": self.throttle.snapshot(now.mono),
            "faults": self.faults.list(),
            "settings": self.settings(),
        })
    }

    pub(crate) fn scheduled_events(&self) -> Value {
        self.imds.document()
    }

    /// Replaces the document of Scheduled Events and returns the new one.
    pub(crate) fn put_scheduled_events(&mut self, document: Value, now: Moment) -> Result<Value, ErrorResponse> {
        self.imds.put(document, now)
    }

    /// Returns to the seed.
    pub(crate) fn reset(&mut self) {
        let mut store = Store::new(self.guids.fork());
        // The same seed was applied at the start, so this does not fail.
        if self.seed.apply(&mut store).is_ok() {
            self.store = store;
        }
        self.faults.clear();
        self.journal.clear();
        self.throttle.reset();
        self.imds.reset();
    }

    /// Sets the clock forward, unless it is the machine's clock.
    pub(crate) fn advance(&mut self, by: Duration) -> Result<(), ErrorResponse> {
        match self.clock {
            Clock::System => Err(ErrorResponse::new(
                StatusCode::FORBIDDEN,
                "ClockIsReal",
                "This emulator uses the machine's clock, which cannot be set forward. Only an emulator inside the process of a \
                 test can set its clock; for others, set a short operationDelay in the settings.",
            )),
            Clock::Derived(_) => {
                self.offset = self.offset.saturating_add(by);
                Ok(())
            }
        }
    }

    /// A bearer token for ARM: `{"token": …, "expiresOn": …}`.
    pub(crate) fn token(&mut self, now: Moment) -> Value {
        let (token, expires) = self.identity.developer_token(now.wall);
        json!({"token": token, "expiresOn": expires.to_string()})
    }

    pub(crate) fn settings(&self) -> Value {
        serde_json::to_value(&self.settings).unwrap_or(Value::Null)
    }

    /// Changes the settings in the request, all or none, and returns all settings.
    pub(crate) fn put_settings(&mut self, given: &Value) -> Result<Value, ErrorResponse> {
        let settings = self.settings.changed(given).map_err(|error| {
            let message = format!("The settings are not accepted: {error}.");
            ErrorResponse::bad_request("InvalidSettings", message)
        })?;
        if settings.throttle != self.settings.throttle {
            self.throttle = Throttle::new(settings.throttle.clone());
        }
        self.settings = settings;
        Ok(self.settings())
    }
}
