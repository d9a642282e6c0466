//! A real Prometheus that scrapes the agents of a sandbox each second.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use headgate_sandbox::process::{Process, command_in};
use headgate_test_kubernetes::{eventually, scratch};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::http;

const START_TIMEOUT: Duration = Duration::from_mins(1);

/// The time in seconds since the epoch.
pub(super) fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// The process. Dropping it kills it.
pub(super) struct Prometheus {
    process: Process,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts it with the rules of the alerts, and waits for its port.
    pub(super) async fn start(nodes: &[Value]) -> Self {
        let directory = scratch("prometheus");
        let targets: Vec<Value> = nodes
            .iter()
            .map(|node| json!({"targets": [node["metrics"]], "labels": {"node": node["name"]}}))
            .collect();
        let mut rules = Vec::new();
        for file in ["agents", "leader"] {
            rules.push(super::repository(&format!("charts/headgate/files/alerts/{file}.yaml")));
        }
        let config = json!({"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": rules,
            "scrape_configs": [{"job_name": "kube-system/headgate", "static_configs": targets}]});
        std::fs::write(directory.join("prometheus.yaml"), config.to_string()).unwrap();
        let mut command = command_in("prometheus", &directory);
        command.args([
            "--config.file=prometheus.yaml",
            "--storage.tsdb.path=data",
            "--web.listen-address=127.0.0.1:0",
        ]);
        let mut process = Process::start("prometheus", command, &directory.join("log"))
            .unwrap_or_else(|error| panic!("{error}; `tests/prerequisites.sh prometheus` installs it"));
        let address = eventually(START_TIMEOUT, "Prometheus listens", async || {
            if let Some(end) = process.try_wait() {
                panic!("{end}");
            }
            let log = std::fs::read_to_string(process.log()).unwrap_or_default();
            let line = log.lines().find(|line| line.contains("\"Listening on\""));
            let address = line.and_then(|line| line.split("address=").nth(1)?.split_whitespace().next()?.parse().ok());
            address.ok_or(log)
        })
        .await;
        // It answers 503 until its storage is open.
        eventually(START_TIMEOUT, "Prometheus is ready", async || {
            match http::get(address, "/-/ready").await {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(answer.text()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
        Self { process, address }
    }

    /// The data of an answer, which must be a success.
    async fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let encoded: Vec<String> = parameters
            .iter()
            .map(|(key, value)| format!("{key}={}", encode(value)))
            .collect();
        let path = format!("/api/v1/{path}?{}", encoded.join("&"));
        let mut answer = http::get(self.address, &path).await.unwrap().json();
        assert_eq!(answer["status"], "success", "{parameters:?}: {answer}");
        answer["data"].take()
    }

    /// The first value of an instant query.
    pub(super) async fn value(&self, expression: &str) -> Option<f64> {
        let data = self.ask("query", &[("query", expression)]).await;
        data["result"][0]["value"][1].as_str()?.parse().ok()
    }

    /// The series of a range query with a step of a second.
    pub(super) async fn range(&self, expression: &str, start: i64, end: i64) -> Vec<Value> {
        let (start, end) = (start.to_string(), end.to_string());
        let parameters = [("query", expression), ("start", &start), ("end", &end), ("step", "1")];
        let data = self.ask("query_range", &parameters).await;
        data["result"].as_array().unwrap().clone()
    }

    /// The labels of all series that match.
    pub(super) async fn series(&self, selector: &str) -> Vec<Value> {
        let data = self.ask("series", &[("match[]", selector)]).await;
        data.as_array().unwrap().clone()
    }

    pub(super) async fn stop(mut self) {
        self.process.signal(Signal::SIGTERM);
        assert!(
            self.process.wait(START_TIMEOUT).await.is_some(),
            "Prometheus did not stop"
        );
    }
}

/// Percent-encodes a value of a query string.
fn encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").unwrap();
        }
        encoded
    })
}
