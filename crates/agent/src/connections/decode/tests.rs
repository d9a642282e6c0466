use proptest::prelude::*;

use super::*;
use crate::connections::samples::{Entry, done, established, message, refusal};

fn all(datagram: &[u8]) -> Vec<Result<Message, Malformed>> {
    messages(datagram).collect()
}

#[test]
fn entries_of_both_families_are_flows() {
    let v4 = established("192.0.2.1:50000", "10.0.0.4:30080", 7);
    let v6 = Entry {
        state: Some(5),
        zone: Some(9),
        started: Some(1_700_000_000_000_000_000),
        ..established("[2001:db8::1]:50000", "[fd00::4]:443", 8)
    };
    let udp = Entry {
        protocol: 17,
        state: None,
        ..v4
    };
    let started = Some(1_700_000_000_000_000_000);
    let (pod, v6_pod) = ("10.244.0.7:8080", "[fd00:7::1]:8080");
    let (v4_to, v6_to) = ((Protocol::Tcp, "10.0.0.4:30080"), (Protocol::Tcp, "[fd00::4]:443"));
    let udp_to = (Protocol::Udp, "10.0.0.4:30080");
    for (entry, (protocol, destination), state, zone, id, started, source, responder) in [
        (v4, v4_to, Some(3), 0, 7, None, "192.0.2.1", pod),
        (v6, v6_to, Some(5), 9, 8, started, "2001:db8::1", v6_pod),
        (udp, udp_to, None, 0, 7, None, "192.0.2.1", pod),
    ] {
        let destination: SocketAddr = destination.parse().unwrap();
        let flow = Flow {
            source: source.parse().unwrap(),
            destination: Destination {
                protocol,
                address: destination.ip(),
                port: destination.port(),
            },
            responder: Some(responder.parse().unwrap()),
            state: state.map(TcpState),
            zone,
            id: Some(id),
            started_unix_nanos: started,
        };
        assert_eq!(all(&entry.message()), [Ok(Message::Flow(flow))]);
    }
}

#[test]
fn messages_follow_each_other_in_a_datagram() {
    let entry = established("192.0.2.1:50000", "10.0.0.4:30080", 7);
    let icmp = Entry {
        protocol: 1,
        state: None,
        ..entry
    };
    let (flow, other) = (entry.message(), message(1, 0, &[]));
    let datagram = [flow.clone(), icmp.message(), other, flow, done(0)].concat();
    let is_flow = |message: Result<Message, _>| matches!(message.unwrap(), Message::Flow(_));
    let kinds: Vec<bool> = messages(&datagram).map(is_flow).collect();
    assert_eq!(kinds, [true, false, false, true, false]);
    assert_eq!(all(&datagram).last(), Some(&Ok(Message::Done)));
    assert_eq!(all(&[]), []);
}

#[test]
fn ends_and_errors_are_told_apart() {
    for (datagram, expected) in [
        (done(0), Ok(Message::Done)),
        (message(3, 2, &[]), Ok(Message::Done)),
        (done(95), Ok(Message::Failed(95))),
        (refusal(1), Ok(Message::Failed(1))),
        (message(2, 0, &[0; 20]), Ok(Message::Other)),
        (message(3, 2 | NLM_F_DUMP_INTR, &[0; 4]), Ok(Message::Interrupted)),
        (message(0x100, NLM_F_DUMP_INTR, &[]), Ok(Message::Interrupted)),
        (message(2, 0, &[1, 2]), Err(Malformed)),
        (message(0x100, 2, &[2, 0]), Err(Malformed)),
        (message(0x100, 2, &[2, 0, 0, 0]), Err(Malformed)),
        (vec![1, 2, 3], Err(Malformed)),
        (i32::MIN.to_ne_bytes().to_vec(), Err(Malformed)),
    ] {
        assert_eq!(all(&datagram), [expected], "{datagram:?}");
    }
    let smallest = message(3, 2, &i32::MIN.to_ne_bytes());
    assert_eq!(all(&smallest), [Ok(Message::Failed(i32::MAX))]);
}

#[test]
fn entry_that_is_cut_anywhere_is_an_error() {
    let whole = established("[2001:db8::1]:50000", "[fd00::4]:443", 8).message();
    for length in 1..whole.len() {
        assert_eq!(all(&whole[..length]), [Err(Malformed)], "{length} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn random_bytes_never_panic_and_end(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(messages(&bytes).count() <= bytes.len() / 16 + 1);
    }

    #[test]
    fn random_attributes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let datagram = message(MESSAGE_NEW, 2, &[vec![2, 0, 0, 0], bytes].concat());
        prop_assert_eq!(messages(&datagram).count(), 1);
    }

    #[test]
    fn changed_entries_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut datagram = established("192.0.2.1:50000", "10.0.0.4:30080", 7).message();
        datagram.extend(done(0));
        for (at, byte) in changes {
            let at = at.index(datagram.len());
            datagram[at] = byte;
        }
        prop_assert!(messages(&datagram).count() <= datagram.len() / 16 + 1);
    }
}
