//! The settings file: any text gives settings that print as they load, or mistakes that name where, which key,
//! and what is allowed.

use std::path::PathBuf;

use headgate::config::load;

use crate::mutated_corpus;

const WORDS: &[&[u8]] = &[
    b"apiVersion: config.headgate.dev/v1alpha1\nkind: HeadgateConfiguration\n",
    b"connections:\n  ",
    b"healthzBindAddress: ",
    b"proxyProtocol: ",
    b"signals:\n  extra: ",
    b"outOfLoadBalancers:\n  ",
    b"failedProbes: ",
    b"Disabled",
    b"Required",
    b"true",
    b"~",
    b"[]",
    b"{}",
    b"1e9",
    b"0x1F",
    b"-1s",
    b"1ns",
    b"9223372036854775807h",
    b"PT5S",
    b"1y",
    b"'",
    b"\"",
    b"\n",
    b"\n  ",
    b": ",
    b"- ",
    b"&a ",
    b"*a",
    b"<<: ",
    b"!x ",
    b"!!binary ",
    b"--- ",
    b"...",
    b"# ",
    b"| ",
    b"> ",
    b"? ",
    b"\\u0000",
    b"\xef\xbb\xbf",
    b"\xff",
];

#[test]
fn printed_settings_load_again_and_mistakes_name_the_allowed_values() {
    let directory = tempfile::tempdir().unwrap();
    let file: PathBuf = directory.path().join("settings.yaml");
    let again: PathBuf = directory.path().join("again.yaml");
    mutated_corpus::fuzz("settings", WORDS, |bytes| {
        // Mutations seldom leave the version and the kind whole.
        std::fs::write(&file, [WORDS[0], bytes].concat()).unwrap();
        match load(Some(&file), &[]) {
            Ok(settings) => {
                std::fs::write(&again, settings.to_yaml()).unwrap();
                assert_eq!(
                    load(Some(&again), &[]).as_ref(),
                    Ok(&settings),
                    "{}",
                    settings.to_yaml()
                );
            }
            Err(mistakes) => {
                assert!(!mistakes.0.is_empty());
                for mistake in &mistakes.0 {
                    assert_eq!(mistake.origin, file.display().to_string());
                    assert!(mistake.message.contains("allowed: "), "{mistake}");
                    assert_ne!(mistake.key.as_deref(), Some(""));
                    let line = mistake.to_string();
                    assert!(
                        !line.contains(['\n', '\r', '\0', '\u{1b}']),
                        "one line, which no terminal obeys: {line:?}"
                    );
                    assert!(line.len() < 4096, "{} bytes are no message", line.len());
                }
            }
        }
    });
}
