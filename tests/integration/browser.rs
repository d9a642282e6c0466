//! `/statusz` in a real browser, Debian's Chromium: what it shows, what it loads, and that the page's policy keeps
//! scripts from running even if one were in it.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headgate_test_kubernetes::{control_plane, create_node, eventually, scratch};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::AgentOptions;

/// Timeout of a wait on a busy machine.
const SOON: Duration = Duration::from_secs(20);
/// What a page would contain if escaping failed.
const INJECTED: &str = "<script>document.title = 'a script ran'</script><img src=\"stolen.png\"></body>";

/// How the proxy changes the pages that it passes on.
#[derive(Clone, Copy)]
enum Change {
    None,
    /// Adds [`INJECTED`].
    Inject,
    /// Adds it and removes the page's policy.
    InjectWithoutPolicy,
}

/// Passes requests on to an agent, one for each connection, and records their paths.
struct Proxy {
    address: SocketAddr,
    paths: Arc<Mutex<BTreeSet<String>>>,
}

impl Proxy {
    async fn start(agent: SocketAddr, change: Change) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let paths = Arc::new(Mutex::new(BTreeSet::new()));
        let recorded = Arc::clone(&paths);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass_on(stream, agent, change, Arc::clone(&recorded)));
            }
        });
        Self { address, paths }
    }

    fn paths(&self) -> BTreeSet<String> {
        // Browsers may look for an icon by themselves.
        let all = self.paths.lock().unwrap().clone();
        all.into_iter().filter(|path| path != "/favicon.ico").collect()
    }
}

async fn pass_on(mut browser: TcpStream, agent: SocketAddr, change: Change, paths: Arc<Mutex<BTreeSet<String>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match browser.read_u8().await {
            Ok(byte) => head.push(byte),
            // A connection that the browser opened in advance.
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap().to_owned();
    paths.lock().unwrap().insert(path);
    let head = head.replace("Connection: keep-alive", "Connection: close");
    let mut upstream = TcpStream::connect(agent).await.unwrap();
    upstream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let is_kept = |line: &&str| {
        let line = line.to_ascii_lowercase();
        let is_policy = line.starts_with("content-security-policy:");
        let is_dropped_policy = is_policy && matches!(change, Change::InjectWithoutPolicy);
        !is_dropped_policy && !line.starts_with("content-length:")
    };
    let head: Vec<_> = head.split("\r\n").filter(is_kept).collect();
    let body = match change {
        Change::None => body.to_owned(),
        Change::Inject | Change::InjectWithoutPolicy => body.replace("</body>", INJECTED),
    };
    let answer = format!("{}\r\nContent-Length: {}\r\n\r\n{body}", head.join("\r\n"), body.len());
    // The browser may have gone.
    let _ = browser.write_all(answer.as_bytes()).await;
}

/// Whether there is a browser. In CI a missing one is a failure.
fn has_browser() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join("chromium").is_file());
    let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(
        found || !is_ci,
        "chromium is missing: tests/prerequisites.sh browser installs it"
    );
    if !found {
        println!("the browser's test is not run: there is no chromium");
    }
    found
}

/// The document that the browser has after it loaded a page.
async fn document(url: String) -> String {
    let run = move || {
        let profile = scratch("browser").join("profile");
        let mut browser = Command::new("timeout");
        browser.args([
            "120",
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
        ]);
        browser.args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
        ]);
        browser
            .arg(format!("--user-data-dir={}", profile.display()))
            .args(["--dump-dom", &url]);
        let output = browser.output().unwrap();
        let (shown, log) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(
            output.status.success(),
            "chromium failed (tests/prerequisites.sh installs it): {log}"
        );
        shown.into_owned()
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn statusz_is_a_page_that_runs_no_script() {
    if !has_browser() {
        return;
    }
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "browser").await;
    let taint =
        Patch::Merge(json!({"spec": {"taints": [{"key": "headgate.dev/maintenance", "effect": "NoSchedule"}]}}));
    let nodes = Api::<Node>::all(cluster.client());
    nodes.patch(&node, &PatchParams::default(), &taint).await.unwrap();
    let agent = AgentOptions::new(&node, &cluster.kubeconfig).start().await;
    eventually(SOON, "503", async || match agent.healthz().await.status {
        503 => Ok(()),
        other => Err(other.to_string()),
    })
    .await;

    let proxy = Proxy::start(agent.metrics_address(), Change::None).await;
    let page = document(format!("http://{}/statusz", proxy.address)).await;
    for part in [
        &format!("<h1>headgate {} on node {node}</h1>", env!("CARGO_PKG_VERSION")),
        "<span class=\"bad\">503</span> since",
        "<span class=\"good\">200</span> since",
        "headgate.dev/maintenance since",
        "node-watch",
    ] {
        assert!(page.contains(part), "{part:?} is not in {page}");
    }
    assert_eq!(
        proxy.paths(),
        ["/statusz", "/statusz.css"].map(str::to_owned).into(),
        "nothing else is loaded"
    );

    for (change, has_run) in [(Change::Inject, false), (Change::InjectWithoutPolicy, true)] {
        let proxy = Proxy::start(agent.metrics_address(), change).await;
        let page = document(format!("http://{}/statusz", proxy.address)).await;
        assert!(page.contains("<script>"), "the proxy injects it: {page}");
        assert_eq!(page.contains("<title>a script ran</title>"), has_run, "{page}");
        assert_eq!(proxy.paths().contains("/stolen.png"), has_run, "{:?}", proxy.paths());
    }
}
