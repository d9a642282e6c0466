//! Reads the connection table of this thread's network namespace through netlink.
//!
//! Invariant: each wait has a bound. The kernel makes the answer while it is received, so a read takes the time of the kernel's walk
//! and does not wait for others; the receive timeout is for a kernel that does not answer. Each request has a socket of its own: the
//! rest of an answer that nobody wants ends with it. Needs `CAP_NET_ADMIN`.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;

use crate::connections::decode::{Message, messages};
use crate::connections::flow::Flow;
use crate::connections::request::Selection;

/// The kernel sends at most 32 KiB at a time.
const BUFFER_LENGTH: usize = 32 * 1024;
/// For a kernel that does not answer.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The table could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The process has no right to.
    #[error("no right to read the connection table: CAP_NET_ADMIN is missing")]
    NoRight,
    /// The kernel lacks the module or its netlink interface.
    #[error("the kernel has no connection table: the module nf_conntrack_netlink is missing")]
    NoTable,
    /// It took too long.
    #[error("reading the connection table took longer than {0:?}")]
    Timeout(Duration),
    /// The table changed too often while it was read.
    #[error("the connection table changed while it was read")]
    Interrupted,
    /// The kernel sent something else.
    #[error("the kernel sent an entry of the connection table that is not readable")]
    Malformed,
    /// A system call failed.
    #[error("cannot read the connection table: {0}")]
    Io(io::Error),
}

impl ReadError {
    fn from_errno(errno: Errno) -> Self {
        match errno {
            Errno::EPERM | Errno::EACCES => Self::NoRight,
            Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT | Errno::EINVAL | Errno::EOPNOTSUPP => Self::NoTable,
            other => Self::Io(other.into()),
        }
    }
}

/// Where answers come from; tests have a kernel of their own.
pub(crate) trait Transport {
    /// Sends a request. What is left of the answer to the last one is dropped.
    fn request(&mut self, bytes: &[u8]) -> Result<(), Errno>;
    /// The next datagram of the answer; returns its length, which may be greater than that of the buffer.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Errno>;
}

/// A socket of ctnetlink.
#[derive(Debug, Default)]
pub(crate) struct Netlink(Option<OwnedFd>);

impl Transport for Netlink {
    fn request(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.0 = None;
        let protocol = SockProtocol::NetlinkNetFilter;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        // From now on only the kernel can send to it.
        connect(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        setsockopt(
            &fd,
            sockopt::ReceiveTimeout,
            &TimeVal::new(RECEIVE_TIMEOUT.as_secs().cast_signed(), 0),
        )?;
        send(fd.as_raw_fd(), bytes, MsgFlags::empty())?;
        self.0 = Some(fd);
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let fd = self.0.as_ref().ok_or(Errno::ENOTCONN)?;
        recv(fd.as_raw_fd(), buffer, MsgFlags::MSG_TRUNC)
    }
}

/// When a read has to be over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    timeout: Duration,
}

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            at: now.checked_add(timeout).unwrap_or(now),
            timeout,
        }
    }

    fn check(&self) -> Result<(), ReadError> {
        if Instant::now() < self.at {
            Ok(())
        } else {
            Err(ReadError::Timeout(self.timeout))
        }
    }
}

/// Passes every flow of a selection to `f`, once, until `f` breaks.
///
/// A flow that is open from the start to the end is passed; one that opens or closes meanwhile may be. When the kernel removes an entry
/// between two datagrams, it may send a few entries of the same bucket again.
pub(crate) fn read(
    transport: &mut impl Transport,
    selection: Selection,
    deadline: Deadline,
    mut f: impl FnMut(&Flow) -> ControlFlow<()>,
) -> Result<(), ReadError> {
    transport
        .request(&selection.to_request())
        .map_err(ReadError::from_errno)?;
    let mut buffer = vec![0; BUFFER_LENGTH];
    loop {
        deadline.check()?;
        let length = match transport.receive(&mut buffer) {
            Ok(length) => length,
            Err(Errno::EINTR) => continue,
            Err(Errno::EAGAIN) => return Err(ReadError::Timeout(RECEIVE_TIMEOUT)),
            // Datagrams were lost.
            Err(Errno::ENOBUFS) => return Err(ReadError::Interrupted),
            Err(errno) => return Err(ReadError::from_errno(errno)),
        };
        // Longer than the buffer, or the end of a socket, which netlink does not have.
        let datagram = buffer.get(..length).filter(|datagram| !datagram.is_empty());
        for message in messages(datagram.ok_or(ReadError::Malformed)?) {
            match message.map_err(|_| ReadError::Malformed)? {
                Message::Flow(flow) => {
                    if f(&flow).is_break() {
                        return Ok(());
                    }
                }
                Message::Other => {}
                Message::Done => return Ok(()),
                Message::Failed(errno) => return Err(ReadError::from_errno(Errno::from_raw(errno))),
                Message::Interrupted => return Err(ReadError::Interrupted),
            }
        }
    }
}
