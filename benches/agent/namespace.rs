//! A network namespace for everything that is measured: kube-proxy writes iptables rules,
//! and no other process uses its ports, queues and addresses.

use std::fs;
use std::process::Command;

use anyhow::Context as _;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

/// Moves this process, which must have one thread, into a fresh namespace with loopback up.
///
/// # Errors
/// One line that names what is missing.
pub(crate) fn enter() -> anyhow::Result<()> {
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        unshare(CloneFlags::CLONE_NEWNET).context("a network namespace cannot be had (CAP_SYS_ADMIN is missing)")?;
    } else {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)
            .context("a network namespace cannot be had (user namespaces are not allowed here; run this as root)")?;
        for (file, text) in [
            ("setgroups", "deny".to_owned()),
            ("uid_map", format!("0 {user} 1")),
            ("gid_map", format!("0 {group} 1")),
        ] {
            fs::write(format!("/proc/self/{file}"), text)
                .with_context(|| format!("root in a user namespace cannot be had: /proc/self/{file}"))?;
        }
    }
    run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    run(Command::new("iptables").arg("--version"))?;
    // Enough ports for a new connection at each request.
    fs::write("/proc/sys/net/ipv4/ip_local_port_range", "10240 65535")
        .context("net.ipv4.ip_local_port_range cannot be set in the namespace")
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{program} is missing"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        anyhow::bail!("{program} failed ({}): {}", output.status, error.trim());
    }
    Ok(())
}
