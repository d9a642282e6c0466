//! The settings of the updater: headgate's own, what `azure.json` says, and what follows from both.

use std::sync::Arc;
use std::time::Duration;

use headgate_azure::AzureJson;

use crate::local_pools::{
    CloudConfig, LocalServicePools, MaxRetries, PreConfigured, UpdaterSettings, is_active, update_interval,
};

/// After this time at the latest every pool is compared again, and an update that was given up is tried again.
const RESYNC_INTERVAL: Duration = Duration::from_mins(5);

/// What `azure.json` says about pools of Local Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalPoolsTarget {
    /// Whether the cluster has several Standard load balancers.
    pub cloud: CloudConfig,
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
        let pre_configured = config.pre_configured_load_balancer_types.as_deref().unwrap_or_default();
        Self {
            cloud: CloudConfig {
                load_balancer_sku: config.load_balancer_sku.clone(),
                load_balancer_configurations: config.load_balancers.len(),
            },
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

/// How the updater of one term works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectiveSettings {
    /// From one tick to the next.
    pub interval: Duration,
    /// After this time the load balancers are listed again, and an update that was given up is tried again.
    pub resync_interval: Duration,
    /// The updater's own settings.
    pub updater: UpdaterSettings,
}

impl EffectiveSettings {
    /// From the setting and `azure.json`; `None` if pools of Local Services are not updated.
    pub fn new(setting: LocalServicePools, target: &LocalPoolsTarget) -> Option<Self> {
        is_active(setting, &target.cloud).then(|| Self {
            interval: update_interval(target.interval_seconds),
            resync_interval: RESYNC_INTERVAL,
            updater: UpdaterSettings {
                selection: setting.selection(),
                max_retries: MaxRetries::from_config(target.max_retries),
                pre_configured: target.pre_configured,
                resync_interval: RESYNC_INTERVAL,
                ..UpdaterSettings::default()
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use headgate_azure::ConfigSources;

    use super::*;
    use crate::local_pools::EndpointSelection;

    fn effective(text: &str, setting: LocalServicePools) -> Option<EffectiveSettings> {
        let config = AzureJson::load(ConfigSources {
            secret: Some(text),
            ..ConfigSources::default()
        });
        EffectiveSettings::new(setting, &LocalPoolsTarget::new(&config.unwrap()))
    }

    const SEVERAL: &str = "loadBalancerBackendPoolConfigurationType: nodeIP\n\
        multipleStandardLoadBalancerConfigurations: [{name: a, primaryVMSet: x}]\n";

    #[test]
    fn updater_follows_azure_json_unless_the_settings_differ() {
        let auto = LocalServicePools::default();
        assert_eq!(effective("{}", auto), None);
        let found = effective(SEVERAL, auto).unwrap();
        assert_eq!(
            (found.interval, found.updater.max_retries.get(), found.resync_interval),
            (Duration::from_secs(30), 3, Duration::from_mins(5))
        );
        let text = format!(
            "{SEVERAL}loadBalancerBackendPoolUpdateIntervalInSeconds: 7\nloadBalancerBackendPoolUpdateMaxRetries: 0\n\
             preConfiguredBackendPoolLoadBalancerTypes: Internal"
        );
        let found = effective(&text, auto).unwrap();
        assert_eq!(
            (found.interval, found.updater.max_retries.get()),
            (Duration::from_secs(7), 0)
        );
        assert_eq!(found.updater.pre_configured, PreConfigured::Internal);
        assert!(effective("{}", LocalServicePools::AllEndpoints).is_some());
        let ready = effective(&text, LocalServicePools::ReadyEndpoints).unwrap();
        assert_eq!(
            (ready.interval, ready.updater.selection),
            (found.interval, EndpointSelection::Ready)
        );
        assert_eq!(effective(SEVERAL, LocalServicePools::Disabled), None);
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
