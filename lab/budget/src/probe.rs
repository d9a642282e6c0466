//! How load balancers probe: an interval, a timeout, and how many results in a row change the status.

use std::time::Duration;

use clap::ValueEnum;

/// When an HTTP probe that gets another answer than 200, or a reset, marks a backend down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProbeRule {
    /// At the first one, whatever the threshold, as Azure documents it. The threshold counts probes without an answer, and
    /// those of TCP.
    #[value(name = "first-non-200")]
    FirstNon200,
    /// After as many in a row as the threshold, as for every other failure.
    Threshold,
}

/// How a load balancer probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSettings {
    /// From one probe to the next.
    pub interval: Duration,
    /// How long a probe waits for its answer.
    pub timeout: Duration,
    /// Failures in a row that mark a backend down, unless `rule` says otherwise.
    pub unhealthy_threshold: u32,
    /// Successes in a row that mark it up again.
    pub healthy_threshold: u32,
    /// What an answer other than 200 does.
    pub rule: ProbeRule,
}

/// The cloud provider whose probe settings apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Provider {
    /// cloud-provider-azure's defaults, `probeThreshold` both ways. Azure waits for an answer as long as the interval, and
    /// takes the first one other than 200 for the end: "Regardless of configured time-out threshold"
    /// (learn.microsoft.com, load-balancer-custom-probe-overview).
    Azure,
    /// cloud-provider-aws for a Network Load Balancer whose Services have `externalTrafficPolicy: Cluster`.
    AwsCluster,
    /// The same with `externalTrafficPolicy: Local`.
    AwsLocal,
    /// cloud-provider-gcp's defaults, the same for both traffic policies.
    Gcp,
}

impl Provider {
    /// The probe settings that this provider's cloud controller manager writes by default.
    pub const fn probe(self) -> ProbeSettings {
        let (interval, timeout, unhealthy_threshold, healthy_threshold) = match self {
            Self::Azure => (5, 5, 2, 2),
            Self::AwsCluster => (30, 10, 3, 3),
            Self::AwsLocal => (10, 10, 2, 2),
            Self::Gcp => (8, 1, 3, 1),
        };
        ProbeSettings {
            interval: Duration::from_secs(interval),
            timeout: Duration::from_secs(timeout),
            unhealthy_threshold,
            healthy_threshold,
            rule: match self {
                Self::Azure => ProbeRule::FirstNon200,
                Self::AwsCluster | Self::AwsLocal | Self::Gcp => ProbeRule::Threshold,
            },
        }
    }
}

impl ProbeSettings {
    /// Answers other than 200 in a row that mark a backend down.
    pub(crate) const fn refusals_needed(&self) -> u32 {
        match self.rule {
            ProbeRule::FirstNon200 => 1,
            ProbeRule::Threshold => self.unhealthy_threshold,
        }
    }

    /// The shortest time from the first answer other than 200 to the status `Down`: the first probe comes at once.
    pub(crate) fn shortest_detection(&self) -> Duration {
        self.interval * self.refusals_needed().saturating_sub(1)
    }

    /// The mean time, for failures that begin at a random point between two probes.
    pub(crate) fn mean_detection(&self) -> Duration {
        (self.shortest_detection() + self.longest_detection()) / 2
    }

    /// The longest time: a probe has just succeeded.
    pub(crate) fn longest_detection(&self) -> Duration {
        self.interval * self.refusals_needed()
    }

    /// The longest time from the first probe without an answer, or failing probe of TCP, to the status `Down`, without the
    /// timeout of the last probe. The post counts so for every failure.
    pub fn longest_detection_by_threshold(&self) -> Duration {
        self.interval * self.unhealthy_threshold
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the values are exact")]
mod tests {
    use super::*;

    #[test]
    fn detection_of_each_provider_is_as_published() {
        let seconds = |provider: Provider| {
            let probe = provider.probe();
            [
                probe.shortest_detection(),
                probe.mean_detection(),
                probe.longest_detection(),
            ]
            .map(|time| time.as_secs_f64())
        };
        assert_eq!(
            seconds(Provider::Azure),
            [0.0, 2.5, 5.0],
            "the first answer other than 200 counts"
        );
        assert_eq!(
            Provider::Azure.probe().longest_detection_by_threshold(),
            Duration::from_secs(10)
        );
        assert_eq!(seconds(Provider::Gcp), [16.0, 20.0, 24.0]);
        assert_eq!(seconds(Provider::AwsCluster), [60.0, 75.0, 90.0]);
        assert_eq!(seconds(Provider::AwsLocal), [10.0, 15.0, 20.0]);
    }

    #[test]
    fn the_post_takes_azures_threshold_for_every_failure() {
        let probe = ProbeSettings {
            rule: ProbeRule::Threshold,
            ..Provider::Azure.probe()
        };
        let times = [
            probe.shortest_detection(),
            probe.mean_detection(),
            probe.longest_detection(),
        ];
        assert_eq!(times.map(|time| time.as_secs_f64()), [5.0, 7.5, 10.0]);
    }
}
