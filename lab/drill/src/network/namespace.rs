//! Network namespaces without names, and threads that run in them.
//!
//! A namespace lives as long as a file descriptor or a thread refers to it. None of them is mounted under
//! `/run/netns`, so the kernel removes all of them, with their interfaces and rules, when this process ends, even by
//! SIGKILL.

use std::fs::File;
use std::future::Future;
use std::io;
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{Uid, getgid, getuid};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// A network namespace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// The process may not create network namespaces.
    #[error(
        "cannot create a network namespace: {0}; run as root (in a container with CAP_SYS_ADMIN), or allow user namespaces \
         (sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)"
    )]
    Create(io::Error),
    /// A thread cannot be started or cannot enter the namespace.
    #[error("cannot run the thread {thread} in its network namespace: {source}")]
    Enter {
        /// The name of the thread in the namespace.
        thread: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A thread ended by a panic.
    #[error("the thread {0} panicked")]
    Panicked(String),
}

/// Puts this process into a user namespace, in which it may create network namespaces, unless it is root already.
///
/// Call it before the process starts any other thread: the kernel refuses it afterwards.
///
/// # Errors
/// The kernel or its settings forbid user namespaces.
pub fn acquire_privileges() -> Result<(), NamespaceError> {
    if Uid::effective().is_root() {
        return Ok(());
    }
    let (uid, gid) = (getuid(), getgid());
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|errno| NamespaceError::Create(errno.into()))?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {uid} 1")),
        ("gid_map", format!("0 {gid} 1")),
    ] {
        std::fs::write(format!("/proc/self/{file}"), text).map_err(NamespaceError::Create)?;
    }
    Ok(())
}

/// A network namespace; it goes away with the last reference to it.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// A new one, with nothing but a loopback interface that is down.
    ///
    /// # Errors
    /// The process has no right to create one (see [`acquire_privileges`]).
    pub fn create() -> Result<Self, NamespaceError> {
        let creating = thread::Builder::new().name("namespace".to_owned()).spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        });
        let created = creating.map_err(NamespaceError::Create)?.join();
        let file = created.map_err(|_| NamespaceError::Panicked("namespace".to_owned()))?;
        file.map(Self).map_err(NamespaceError::Create)
    }

    /// A path to it for `ip`, valid as long as this value lives.
    pub fn path(&self) -> String {
        use std::os::fd::AsRawFd as _;
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs what `work` makes on a thread of its own in this namespace, under a runtime of its own. Sockets and child
    /// processes that it makes are in the namespace.
    ///
    /// # Errors
    /// The thread cannot be started. Failing to enter the namespace is an error of [`Running::join`].
    pub fn spawn<T, F>(
        &self,
        name: &str,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Running<T>, NamespaceError>
    where
        T: Send + 'static,
        F: Future<Output = T>,
    {
        let enter_error = |source| NamespaceError::Enter {
            thread: name.to_owned(),
            source,
        };
        let file = self.0.try_clone().map_err(enter_error)?;
        let (send, outcome) = oneshot::channel();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let result = enter(&file).map(|runtime| runtime.block_on(work()));
                // The owner may have gone away; then the result is of no use.
                let _ = send.send(result);
            })
            .map_err(enter_error)?;
        Ok(Running {
            name: name.to_owned(),
            outcome,
        })
    }
}

fn enter(namespace: &File) -> io::Result<tokio::runtime::Runtime> {
    setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|errno: Errno| io::Error::from(errno))?;
    Builder::new_current_thread().enable_all().build()
}

/// A thread in a namespace.
#[derive(Debug)]
pub struct Running<T> {
    name: String,
    outcome: oneshot::Receiver<io::Result<T>>,
}

impl<T> Running<T> {
    /// Waits until the thread has done its work. May be dropped and called again.
    ///
    /// # Errors
    /// It could not enter its namespace, or panicked.
    pub async fn join(&mut self) -> Result<T, NamespaceError> {
        match (&mut self.outcome).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(source)) => Err(NamespaceError::Enter {
                thread: self.name.clone(),
                source,
            }),
            Err(_) => Err(NamespaceError::Panicked(self.name.clone())),
        }
    }
}
