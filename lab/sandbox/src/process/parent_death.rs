//! The death signal, by which the kernel kills a child when its parent ends. The only unsafe code in headgate.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};

/// Requests that the kernel kill the child when the thread that spawns it ends.
pub(super) fn kill_with_parent(command: &mut Command) {
    let parent = getpid();
    let request_signal = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // If the parent died between fork and prctl, the kernel would not send the signal.
        if getppid() == parent {
            Ok(())
        } else {
            Err(io::Error::from(Errno::ESRCH))
        }
    };
    #[expect(
        unsafe_code,
        reason = "between fork and exec: two system calls, no allocation, no lock"
    )]
    // SAFETY: prctl(2) and getppid(2) are async-signal-safe; the closure owns a plain number and allocates nothing.
    unsafe {
        command.pre_exec(request_signal);
    }
}
