//! The process metrics with the standard names of Prometheus clients, read from /proc at each scrape.
//!
//! The existing crate for this depends on an older version of prometheus-client.

use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Registry;

use super::Gauges;

/// Registers the process metrics; each scrape reads /proc.
pub fn register_process_metrics(registry: &mut Registry) {
    registry.register_collector(Box::new(ProcessCollector));
}

#[derive(Debug)]
struct ProcessCollector;

/// The fields of /proc/self/stat that metrics show, in the units of the file.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    threads: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

/// Parses the text of /proc/self/stat. The command's name may contain spaces and parentheses, so fields are counted
/// from the last parenthesis on (man 5 proc).
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    // `fields` starts with field 3 of the manual.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat {
        cpu_ticks: field(14)? + field(15)?,
        threads: field(20)?,
        start_ticks: field(22)?,
        virtual_bytes: field(23)?,
        resident_pages: field(24)?,
    })
}

/// The boot time of the machine in Unix seconds.
fn boot_seconds() -> Option<u64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

/// The soft limit on open files of the process.
fn open_files_limit() -> Option<u64> {
    nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)
        .ok()
        .map(|(soft, _)| soft)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "metrics are floating point; 2^53 ticks are 2.8 million years"
)]
fn seconds(ticks: u64, per_second: u64) -> f64 {
    ticks as f64 / per_second as f64
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let stat = fs::read_to_string("/proc/self/stat")
            .ok()
            .as_deref()
            .and_then(parse_stat);
        let Some(stat) = stat else { return Ok(()) };
        let system = |name| {
            nix::unistd::sysconf(name)
                .ok()
                .flatten()
                .and_then(|value| u64::try_from(value).ok())
        };
        let per_second = system(nix::unistd::SysconfVar::CLK_TCK).unwrap_or(100);
        let page = system(nix::unistd::SysconfVar::PAGE_SIZE).unwrap_or(4096);

        let cpu = ConstCounter::new(seconds(stat.cpu_ticks, per_second));
        let help = "Total user and system CPU time spent in seconds.";
        cpu.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?)?;
        let mut gauges = Gauges::from(encoder);
        let files = fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as u64);
        for (name, help, value) in [
            (
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
                Some(stat.resident_pages * page),
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes.",
                Some(stat.virtual_bytes),
            ),
            (
                "process_threads",
                "Number of OS threads in the process.",
                Some(stat.threads),
            ),
            ("process_open_fds", "Number of open file descriptors.", files),
            (
                "process_max_fds",
                "Maximum number of open file descriptors.",
                open_files_limit(),
            ),
        ] {
            if let Some(value) = value.and_then(|value| i64::try_from(value).ok()) {
                gauges.gauge(name, help, value)?;
            }
        }
        if let Some(boot) = boot_seconds() {
            gauges.gauge(
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
                seconds(boot, 1) + seconds(stat.start_ticks, per_second),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_name_with_spaces_and_parentheses_is_skipped() {
        let text =
            "7 (a) b (c) S 1 7 7 0 -1 4194304 10 0 0 0 250 50 0 0 20 0 3 0 1234 10485760 256 18446744073709551615 1 1";
        let want = Stat {
            cpu_ticks: 300,
            threads: 3,
            start_ticks: 1234,
            virtual_bytes: 10_485_760,
            resident_pages: 256,
        };
        assert_eq!(parse_stat(text), Some(want));
        assert_eq!(parse_stat("7 (a) S 1"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn this_process_has_metrics() {
        let mut registry = Registry::default();
        register_process_metrics(&mut registry);
        let text = crate::telemetry::encode_metrics(&registry, crate::telemetry::MetricsFormat::OpenMetrics).unwrap();
        for name in [
            "process_resident_memory_bytes ",
            "process_cpu_seconds_total ",
            "process_start_time_seconds ",
        ] {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            assert!(line.split(' ').nth(1).unwrap().parse::<f64>().unwrap() >= 0.0, "{line}");
        }
    }
}
