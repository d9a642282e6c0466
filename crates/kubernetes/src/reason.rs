//! Why a watch failed, as one of a few words for metrics and logs. Pure.

use kube::runtime::watcher;

/// The reason of a watch that was too old.
pub const EXPIRED: &str = "expired";
/// Reasons an error is counted under.
pub const REASONS: [&str; 6] = ["connection", EXPIRED, "forbidden", "server", "unauthorized", "other"];

/// The reason an error is counted and logged under, one of [`REASONS`].
#[must_use]
pub fn reason(error: &watcher::Error) -> &'static str {
    let of_status = |code: u16| match code {
        401 => "unauthorized",
        403 => "forbidden",
        410 => EXPIRED,
        429 | 500.. => "server",
        _ => "other",
    };
    let of_client = |error: &kube::Error| match error {
        kube::Error::Api(status) => of_status(status.code),
        kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => "connection",
        _ => "other",
    };
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => of_client(error),
        watcher::Error::WatchError(status) => of_status(status.code),
        watcher::Error::NoResourceVersion => "other",
    }
}
