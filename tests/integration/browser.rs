//! `/statusz` in a real browser, Debian's Chromium: what it shows, what it loads, and that the page's policy keeps
//! scripts from running even if one were in it.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headgate_test_kubernetes::{control_plane, create_node, eventually, scratch, set_taints};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{AgentOptions, http};

/// Has the title say how many milliseconds the browser needed from the last byte of the page to the end of its layout.
const TIMED: &str = "<script>addEventListener('load', () => { document.body.getBoundingClientRect(); \
     document.title = 'took ' + Math.round(performance.now() - performance.getEntriesByType('navigation')[0].responseEnd) + ' ms'; \
     });</script></body>";
/// What a page would contain if escaping failed.
const INJECTED: &str = "<script>document.title = 'a script ran'</script><img src=\"stolen.png\"></body>";

/// How the proxy changes the pages that it passes on.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    None,
    /// Adds [`INJECTED`].
    Inject,
    /// Adds it and removes the page's policy.
    InjectWithoutPolicy,
    /// Adds [`TIMED`] and removes the page's policy.
    Time,
}

/// Passes requests on to an agent, one for each connection, and records their paths.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    paths: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    pub(crate) async fn start(agent: SocketAddr, change: Change) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let paths = Arc::default();
        let recorded = Arc::clone(&paths);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass_on(stream, agent, change, Arc::clone(&recorded)));
            }
        });
        Self { address, paths }
    }

    pub(crate) fn paths(&self) -> BTreeSet<String> {
        // Browsers may look for an icon by themselves.
        let all = self.paths.lock().unwrap().clone();
        all.into_iter().filter(|path| path != "/favicon.ico").collect()
    }

    /// How often a path was requested.
    pub(crate) fn requests(&self, path: &str) -> usize {
        let all = self.paths.lock().unwrap();
        all.iter().filter(|requested| *requested == path).count()
    }
}

async fn pass_on(mut browser: TcpStream, agent: SocketAddr, change: Change, paths: Arc<Mutex<Vec<String>>>) {
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
    paths.lock().unwrap().push(path);
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
        let is_dropped_policy = is_policy && matches!(change, Change::InjectWithoutPolicy | Change::Time);
        !is_dropped_policy && !line.starts_with("content-length:")
    };
    let head: Vec<_> = head.split("\r\n").filter(is_kept).collect();
    let body = match change {
        Change::None => body.to_owned(),
        Change::Inject | Change::InjectWithoutPolicy => body.replace("</body>", INJECTED),
        Change::Time => body.replace("</body>", TIMED),
    };
    let answer = format!("{}\r\nContent-Length: {}\r\n\r\n{body}", head.join("\r\n"), body.len());
    // The browser may have gone.
    let _ = browser.write_all(answer.as_bytes()).await;
}

/// The browser, which ends by itself after these seconds.
fn browser(seconds: u32) -> Command {
    let profile = scratch("browser").join("profile");
    let mut browser = Command::new("timeout");
    browser.arg(seconds.to_string()).args([
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
    ]);
    browser.arg(format!("--user-data-dir={}", profile.display()));
    browser
}

/// The document that the browser has after it loaded a page.
pub(crate) async fn document(url: String) -> String {
    let run = move || {
        let output = browser(120).args(["--dump-dom", &url]).output().unwrap();
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

/// Keeps a page open until the browser has loaded it again by itself.
pub(crate) async fn loads_again(proxy: &Proxy, path: &str) {
    let url = format!("http://{}{path}", proxy.address);
    let before = proxy.requests(path);
    // Its clock runs ahead while nothing is to be done.
    let mut command = tokio::process::Command::from(browser(120));
    command.args(["--virtual-time-budget=1000000", "--dump-dom", &url]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let mut open = command.spawn().unwrap();
    eventually(Duration::from_mins(1), "the page is loaded again", async || {
        match proxy.requests(path) - before {
            0..3 => Err("not yet".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
    // `timeout` ends the browser with itself.
    let pid = i32::try_from(open.id().unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM).unwrap();
    open.wait().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs chromium"]
async fn statusz_is_a_page_that_runs_no_script() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "browser").await;
    let taint = json!([{"key": "headgate.dev/maintenance", "effect": "NoSchedule"}]);
    set_taints(&cluster.client(), &node, taint).await;
    let agent = AgentOptions::new(&node, &cluster.kubeconfig).start().await;
    let is_out = |answer: &http::Response| answer.status == 503;
    agent.healthz_becomes(Duration::from_secs(20), "503", is_out).await;

    let proxy = Proxy::start(agent.metrics_address(), Change::None).await;
    let page = document(format!("http://{}/statusz", proxy.address)).await;
    for part in [
        &format!("<h1>headgate {} on node {node}</h1>", env!("CARGO_PKG_VERSION")),
        "/healthz   503 since",
        "/livez     200 since",
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
