//! The mounts and settings that docs/guides/monitoring.md offers: they fit both workloads, and the program accepts them.

use serde_json::{Value, json};

use super::rendering::{folder, hardened};
use super::{only, overlay_of, render, settings, text};

/// The blocks of YAML in the section of the page.
fn blocks() -> Vec<String> {
    let page = text("docs/guides/monitoring.md");
    let (_, section) = page.split_once("\n## Webhook notifications\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let blocks = section.split("```yaml\n").skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap().to_owned())
        .collect()
}

#[test]
fn webhook_snippets_mount_the_secret_and_are_accepted() {
    let blocks = blocks();
    let [patches, first, json_template, plain_template] = &blocks[..] else {
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
    let header = first.split("notifications:").next().unwrap();
    for block in [
        first.clone(),
        format!("{header}{json_template}"),
        format!("{header}{plain_template}"),
    ] {
        let shown = settings::in_effect(&block);
        assert!(shown.contains(&format!("urlFile: {path}/url\n")), "{shown}");
    }
}
