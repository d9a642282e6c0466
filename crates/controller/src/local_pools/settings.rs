//! The settings of the updater: headgate's own, what `azure.json` says, and what follows from both.

use std::sync::Arc;
use std::time::Duration;

use headgate_azure::AzureJson;

use crate::local_pools::{LocalPoolsMode, PreConfigured, UpdaterSettings};

/// What `azure.json` says about pools of Local Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalPoolsTarget {
    /// Whether cloud-controller-manager runs its updater: the SKU is standard (`UseMultipleStandardLoadBalancers`), and
    /// `multipleStandardLoadBalancerConfigurations` names a load balancer.
    pub has_several_load_balancers: bool,
    /// `loadBalancerBackendPoolUpdateIntervalInSeconds`.
    pub interval_seconds: Option<i64>,
    /// `loadBalancerBackendPoolUpdateMaxRetries`.
    pub max_retries: Option<i64>,
    /// `preConfiguredBackendPoolLoadBalancerTypes`.
    pub pre_configured: PreConfigured,
    /// The id of the cluster's virtual network, if `vnetName` names one.
    pub virtual_network: Option<Arc<str>>,
}

impl LocalPoolsTarget {
    /// The keys of an `azure.json`.
    pub fn new(config: &AzureJson) -> Self {
        let sku = config.load_balancer_sku.as_deref();
        let is_standard = sku.is_none_or(|sku| sku.eq_ignore_ascii_case("standard"));
        let pre_configured = config.pre_configured_load_balancer_types.as_deref().unwrap_or_default();
        Self {
            has_several_load_balancers: is_standard && !config.load_balancers.is_empty(),
            interval_seconds: config.backend_pool_update_interval_seconds,
            max_retries: config.backend_pool_update_max_retries,
            pre_configured: match pre_configured.to_ascii_lowercase().as_str() {
                "internal" => PreConfigured::Internal,
                "external" => PreConfigured::External,
                "all" => PreConfigured::All,
                _ => PreConfigured::None,
            },
            virtual_network: config.virtual_network_id().map(Into::into),
        }
    }
}

impl UpdaterSettings {
    /// From the setting and `azure.json`; `None` if pools of Local Services are not updated. An interval that is absent, 0 or negative
    /// is 30 s; absent retries are 3, and a negative number is 0.
    pub fn new(setting: LocalPoolsMode, target: &LocalPoolsTarget) -> Option<Self> {
        let is_active = match setting {
            LocalPoolsMode::Auto => target.has_several_load_balancers,
            LocalPoolsMode::AllEndpoints | LocalPoolsMode::ReadyEndpoints => true,
            LocalPoolsMode::Disabled => false,
        };
        let default = Self::default();
        let seconds = target.interval_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let seconds = seconds.filter(|seconds| *seconds > 0);
        let retries = |value: i64| u32::try_from(value.max(0)).unwrap_or(u32::MAX);
        is_active.then(|| Self {
            interval: seconds.map_or(default.interval, Duration::from_secs),
            is_ready_required: setting == LocalPoolsMode::ReadyEndpoints,
            max_retries: target.max_retries.map_or(default.max_retries, retries),
            pre_configured: target.pre_configured,
            ..default
        })
    }
}

#[cfg(test)]
mod tests {
    use headgate_azure::ConfigSources;

    use super::*;

    fn settings(text: &str, setting: LocalPoolsMode) -> Option<UpdaterSettings> {
        let config = AzureJson::load(ConfigSources {
            secret: Some(text),
            ..ConfigSources::default()
        });
        UpdaterSettings::new(setting, &LocalPoolsTarget::new(&config.unwrap()))
    }

    const SEVERAL: &str = "loadBalancerBackendPoolConfigurationType: nodeIP\n\
        multipleStandardLoadBalancerConfigurations: [{name: a, primaryVMSet: x}]\n";

    /// What differs from the usual; `None` where the updater is not active.
    type Expected = Option<fn(&mut UpdaterSettings)>;

    #[test]
    fn updater_follows_azure_json_unless_the_settings_differ() {
        let usual = UpdaterSettings::default();
        let seconds = [usual.interval, usual.resync_interval].map(|time| time.as_secs());
        assert_eq!((seconds, usual.max_retries), ([30, 300], 3));
        let rows: [(&str, Expected); 12] = [
            ("", Some(|_| {})),
            ("loadBalancerSku: ''", Some(|_| {})),
            ("loadBalancerSku: Standard", Some(|_| {})),
            ("loadBalancerSku: service", None),
            ("loadBalancerBackendPoolUpdateIntervalInSeconds: 0", Some(|_| {})),
            ("loadBalancerBackendPoolUpdateIntervalInSeconds: -5", Some(|_| {})),
            (
                "loadBalancerBackendPoolUpdateIntervalInSeconds: 7",
                Some(|it| it.interval = Duration::from_secs(7)),
            ),
            (
                "loadBalancerBackendPoolUpdateMaxRetries: 0",
                Some(|it| it.max_retries = 0),
            ),
            (
                "loadBalancerBackendPoolUpdateMaxRetries: -1",
                Some(|it| it.max_retries = 0),
            ),
            (
                "loadBalancerBackendPoolUpdateMaxRetries: 5",
                Some(|it| it.max_retries = 5),
            ),
            (
                "loadBalancerBackendPoolUpdateMaxRetries: 9223372036854775807",
                Some(|it| it.max_retries = u32::MAX),
            ),
            (
                "preConfiguredBackendPoolLoadBalancerTypes: Internal",
                Some(|it| it.pre_configured = PreConfigured::Internal),
            ),
        ];
        for (row, change) in rows {
            let mut all = usual;
            change.unwrap_or(|_| {})(&mut all);
            let several = format!("{SEVERAL}{row}");
            let auto = settings(&several, LocalPoolsMode::Auto);
            assert_eq!(auto, change.is_some().then_some(all), "{row}");
            assert_eq!(settings(row, LocalPoolsMode::Auto), None, "{row}: one load balancer");
            assert_eq!(settings(row, LocalPoolsMode::AllEndpoints), Some(all), "{row}");
            let ready = settings(row, LocalPoolsMode::ReadyEndpoints).unwrap();
            all.is_ready_required = true;
            assert_eq!(ready, all, "{row}");
            assert_eq!(settings(&several, LocalPoolsMode::Disabled), None, "{row}");
        }
    }

    #[test]
    fn virtual_network_is_the_clusters() {
        let target = |text: &str| {
            let config = AzureJson::load(ConfigSources {
                secret: Some(text),
                ..ConfigSources::default()
            });
            LocalPoolsTarget::new(&config.unwrap()).virtual_network
        };
        let own = "subscriptionId: s\nresourceGroup: rg\nvnetName: v";
        let id = |group: &str| {
            format!("/subscriptions/s/resourceGroups/{group}/providers/Microsoft.Network/virtualNetworks/v")
        };
        assert_eq!(target(own).as_deref(), Some(id("rg").as_str()));
        assert_eq!(
            target(&format!("{own}\nvnetResourceGroup: n")).as_deref(),
            Some(id("n").as_str())
        );
        assert_eq!(
            target(&format!("{own}\nnetworkResourceSubscriptionID: other")).as_deref(),
            Some(id("rg").as_str())
        );
        assert_eq!(target("subscriptionId: s\nresourceGroup: rg"), None);
    }
}
