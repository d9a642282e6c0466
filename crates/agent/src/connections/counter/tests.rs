use std::collections::VecDeque;

use headgate_core::service::{Ingress, ServicePort};
use nix::errno::Errno;

use super::*;
use crate::connections::count::{CountOrder, NodeFacts};
use crate::connections::samples::{Entry, done, established, message, refusal};
use crate::connections::services::Service;

const TIMEOUT: Duration = Duration::from_secs(5);
const SHOP: &str = "20.1.2.3:80";
const V6_PROBE: &str = "[fe80::1234:5678:9abc]:50000";

/// Answers each request with the next list of datagrams, each of which may be an error.
#[derive(Default)]
struct Kernel {
    answers: VecDeque<Vec<Result<Vec<u8>, Errno>>>,
    current: VecDeque<Result<Vec<u8>, Errno>>,
    /// Whether each request had a filter.
    requests: Vec<bool>,
    refuses_sockets: Option<Errno>,
}

impl Kernel {
    fn answering(answers: Vec<Vec<Result<Vec<u8>, Errno>>>) -> Self {
        Self {
            answers: answers.into(),
            ..Self::default()
        }
    }

    fn count(&mut self, counter: &mut Counter) -> Result<Count, ReadError> {
        self.count_to("20.1.2.3", counter)
    }

    fn count_to(&mut self, ip: &str, counter: &mut Counter) -> Result<Count, ReadError> {
        let excluded = CountOrder::new(NodeFacts::default(), Vec::new(), &[]).excluded;
        counter.count_through(self, &destinations(ip), &excluded, TIMEOUT)
    }
}

impl Transport for Kernel {
    fn request(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.requests.push(bytes.len() > 20);
        self.current = self.answers.pop_front().unwrap_or_default().into();
        self.refuses_sockets.map_or(Ok(()), Err)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let datagram = self.current.pop_front().unwrap_or(Err(Errno::EAGAIN))?;
        for (to, from) in buffer.iter_mut().zip(&datagram) {
            *to = *from;
        }
        Ok(datagram.len())
    }
}

/// The sum over all Services.
fn total(count: &Count) -> Flows {
    count.services.values().fold(Flows::default(), |sum, flows| Flows {
        tcp: sum.tcp + flows.tcp,
        udp: sum.udp + flows.udp,
    })
}

/// `default/shop`, with one destination.
fn destinations(ip: &str) -> Destinations {
    let shop = Service {
        name: NamespacedName::new("default", "shop"),
        ports: vec![ServicePort {
            port: 80,
            ..ServicePort::default()
        }],
        ingress: vec![Ingress {
            ip: ip.to_owned(),
            hostname: String::new(),
        }],
    };
    Destinations::new(vec![shop], &[])
}

fn datagram(entries: &[Entry]) -> Vec<u8> {
    entries.iter().flat_map(Entry::message).collect()
}

#[test]
fn azures_probes_do_not_count() {
    for (ip, destination, probe, other) in [
        ("20.1.2.3", SHOP, "168.63.129.16:50000", "168.63.129.17:50000"),
        ("fd20::1", "[fd20::1]:80", V6_PROBE, "[fe80::1234:5678:9abd]:50000"),
    ] {
        let flows = [probe, other].map(|client| established(client, destination, 1));
        let mut kernel = Kernel::answering(vec![vec![Ok(datagram(&flows)), Ok(done(0))]]);
        let count = kernel.count_to(ip, &mut Counter::default()).unwrap();
        assert_eq!((total(&count).tcp, count.entries), (1, 2), "{probe}");
    }
}

#[test]
fn open_connections_count() {
    let open = established("192.0.2.1:50000", SHOP, 1);
    let with_state = |state| Entry {
        state: Some(state),
        ..open
    };
    let probe = Entry {
        client: "168.63.129.16:50000".parse().unwrap(),
        ..open
    };
    let in_zone = Entry { zone: Some(7), ..open };
    let first = datagram(&[open, with_state(2), with_state(4), with_state(7)]);
    let second = datagram(&[probe, in_zone]);
    let mut kernel = Kernel::answering(vec![vec![Ok(first), Ok(second), Ok(done(0))]]);
    let count = kernel.count(&mut Counter::default()).unwrap();
    let shop = count.services[&NamespacedName::new("default", "shop")];
    assert_eq!((shop, total(&count)), (Flows { tcp: 2, udp: 0 }, shop));
    assert_eq!((count.entries, count.in_other_zones), (6, 1));
    assert!(count.has_translation);
    assert_eq!((count.oldest, kernel.requests), (Some(Duration::ZERO), vec![true]));
}

#[test]
fn table_without_connections_is_zero() {
    let mut kernel = Kernel::answering(vec![vec![Ok(done(0))]]);
    let count = kernel.count(&mut Counter::default()).unwrap();
    assert_eq!((total(&count), count.oldest), (Flows::default(), None));
    assert!(!count.has_translation);
    let mut kernel = Kernel::default();
    let nothing = Destinations::default();
    let count = Counter::default().count_through(&mut kernel, &nothing, &[], TIMEOUT);
    let found = (count.unwrap().entries, kernel.requests.len());
    assert_eq!(found, (0, 0), "nothing to ask for");
}

#[test]
fn kernel_time_of_the_start_is_the_age() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let hour_ago = now.saturating_sub(Duration::from_hours(1));
    let entry = Entry {
        started: Some(u64::try_from(hour_ago.as_nanos()).unwrap()),
        ..established("192.0.2.1:50000", SHOP, 1)
    };
    let count = Kernel::answering(vec![vec![Ok(datagram(&[entry])), Ok(done(0))]]).count(&mut Counter::default());
    let age = count.unwrap().oldest.unwrap();
    assert!(
        (Duration::from_hours(1)..Duration::from_mins(61)).contains(&age),
        "{age:?}"
    );
}

#[test]
fn kernel_without_filter_is_read_whole_from_then_on() {
    let other = established("192.0.2.1:50000", "10.0.0.9:443", 2);
    let shop = established("192.0.2.1:50000", SHOP, 1);
    let whole = vec![Ok(datagram(&[shop, other])), Ok(done(0))];
    for first in [whole.clone(), vec![Ok(refusal(95))], vec![Ok(refusal(22))]] {
        let mut kernel = Kernel::answering(vec![first, whole.clone(), whole.clone()]);
        let mut counter = Counter::default();
        for _ in 0..2 {
            let count = kernel.count(&mut counter).unwrap();
            assert_eq!((total(&count).tcp, count.entries), (1, 2));
        }
        assert_eq!(kernel.requests, [true, false, false]);
    }
}

#[test]
fn table_that_changes_is_read_again() {
    let shop: Result<Vec<u8>, Errno> = Ok(datagram(&[established("192.0.2.1:50000", SHOP, 1)]));
    let interrupted = vec![shop.clone(), Ok(message(3, 2 | 16, &[0; 4]))];
    let lost = vec![shop.clone(), Err(Errno::ENOBUFS)];
    let good = vec![Err(Errno::EINTR), shop, Ok(done(0))];
    let mut kernel = Kernel::answering(vec![interrupted.clone(), lost, good]);
    assert_eq!(total(&kernel.count(&mut Counter::default()).unwrap()).tcp, 1);
    let mut kernel = Kernel::answering(vec![interrupted; 9]);
    let error = kernel.count(&mut Counter::default()).unwrap_err();
    assert!(matches!(error, ReadError::Interrupted), "{error}");
    assert_eq!(kernel.requests.len(), ATTEMPTS);
}

#[test]
fn table_that_is_not_read_to_its_end_is_an_error() {
    let shop: Result<Vec<u8>, Errno> = Ok(datagram(&[established("192.0.2.1:50000", SHOP, 1)]));
    let cut = shop.clone().map(|bytes| bytes[..bytes.len() - 4].to_vec());
    for (answer, expected) in [
        (vec![shop.clone()], "longer than 2s"),
        (vec![shop.clone(), Err(Errno::ECONNREFUSED)], "os error 111"),
        (vec![shop.clone(), Ok(Vec::new())], "not readable"),
        (vec![shop.clone(), Ok(vec![0; 40_000])], "not readable"),
        (vec![shop.clone(), Ok(done(12))], "os error 12"),
        (vec![cut, Ok(done(0))], "not readable"),
        (vec![Ok(refusal(1))], "CAP_NET_ADMIN is missing"),
    ] {
        let error = Kernel::answering(vec![answer])
            .count(&mut Counter::default())
            .unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(expected), "{text} instead of {expected}");
    }
}

#[test]
fn missing_module_is_no_filter_for_ever() {
    let mut counter = Counter::default();
    let mut kernel = Kernel::answering(vec![vec![Ok(refusal(22))]; 2]);
    let error = kernel.count(&mut counter).unwrap_err();
    assert!(matches!(error, ReadError::NoTable), "{error}");
    let mut kernel = Kernel::answering(vec![vec![Ok(done(0))]]);
    assert_eq!(total(&kernel.count(&mut counter).unwrap()).tcp, 0);
    assert_eq!(kernel.requests, [true]);
    for (errno, expected) in [
        (Errno::EPERM, "CAP_NET_ADMIN"),
        (Errno::EPROTONOSUPPORT, "nf_conntrack_netlink"),
    ] {
        let mut kernel = Kernel {
            refuses_sockets: Some(errno),
            ..Kernel::default()
        };
        let error = kernel.count(&mut Counter::default()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn timeout_bounds_an_answer_without_end() {
    struct Endless(Vec<u8>);
    impl Transport for Endless {
        fn request(&mut self, _: &[u8]) -> Result<(), Errno> {
            Ok(())
        }
        fn receive(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
            buffer[..self.0.len()].copy_from_slice(&self.0);
            Ok(self.0.len())
        }
    }
    let mut kernel = Endless(established("192.0.2.1:50000", SHOP, 1).message());
    let timeout = Duration::from_millis(20);
    let error = Counter::default().count_through(&mut kernel, &destinations("20.1.2.3"), &[], timeout);
    assert!(matches!(error, Err(ReadError::Timeout(_))), "{error:?}");
}
