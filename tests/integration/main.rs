//! Tests against real parts: one control plane (etcd and kube-apiserver) for all of them, real agents as
//! child processes. One binary, so that there is one link and one control plane.
//!
//! `KUBEBUILDER_ASSETS` names the control plane's programs; without it tests/control-plane/build.sh
//! provides them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "what a test cannot do without fails the test"
)]

mod alerts;
mod azure;
mod benchmarks;
mod browser;
mod budget;
mod chaos;
mod conformance;
mod connections;
mod credentials;
mod dashboards;
mod docs;
mod drill;
mod drill_report;
mod emulator;
mod etcd_restore;
mod fake_api;
mod generated;
mod go_modules;
mod harness;
mod image;
mod in_memory_listener;
mod kube_proxy;
mod leading;
mod links;
mod listener;
mod maintenance;
mod manifests;
mod node;
mod odd_objects;
mod process;
mod proxy_protocol;
mod release;
mod rollover;

mod sandbox;
mod services;
mod settings_campaign;
mod settings_schema;
mod spot;
mod status;
mod why;
