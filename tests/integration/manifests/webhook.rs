//! The mounts and settings that docs/guides/monitoring.md offers: they fit both workloads, and the program accepts them.

use serde_json::{Value, json};

use super::rendering::{folder, hardened};
use super::{only, overlay_of, render, settings, text};

/// The section of the page.
fn section() -> String {
    let page = text("docs/guides/monitoring.md");
    let (_, section) = page.split_once("\n## Webhook notifications\n").unwrap();
    section.split("\n## ").next().unwrap().to_owned()
}

#[test]
fn webhook_snippets_mount_the_secret_and_are_accepted() {
    let section = section();
    let blocks = section.split("```yaml\n").skip(1);
    let blocks: Vec<_> = blocks.map(|block| block.split("```").next().unwrap()).collect();
    let [patches, json_template] = blocks[..] else {
        panic!("{blocks:?}")
    };
    let overlay =
        format!("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [\"@\"]\n{patches}");
    let objects = render(&overlay_of(&folder(&hardened()), &overlay, &[]));
    let mut path = String::new();
    for kind in ["DaemonSet", "Deployment"] {
        let pod = &only(&objects, kind)["spec"]["template"]["spec"];
        let named = |list: &Value| {
            list.as_array()
                .unwrap()
                .iter()
                .find(|item| item["name"] == "webhook")
                .cloned()
        };
        let volume = named(&pod["volumes"]).unwrap();
        assert_eq!(
            volume["secret"],
            json!({"secretName": "headgate-webhook", "optional": true}),
            "{kind}"
        );
        let mount = named(&pod["containers"][0]["volumeMounts"]).unwrap();
        assert_eq!(mount["readOnly"], true, "{kind}");
        path = mount["mountPath"].as_str().unwrap().to_owned();
    }
    headgate_test_kubernetes::assert_contains!(section, format!("`notifications.urlFile: {path}/url`"));
    let (_, plain_template) = json_template.split_once(" # or ").unwrap();
    let plain_template = format!("notifications:\n  template: {plain_template}");
    for block in [json_template, &plain_template] {
        let block = block.replace("notifications:\n", &format!("notifications:\n  urlFile: {path}/url\n"));
        let header = "apiVersion: config.headgate.dev/v1alpha1\nkind: HeadgateConfiguration\n";
        let shown = settings::in_effect(&format!("{header}{block}"));
        assert!(shown.contains(&format!("urlFile: {path}/url\n")), "{shown}");
    }
}
