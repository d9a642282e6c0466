//! The objects of a list that a command can read. It names the others on standard error and goes on without them.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};

use headgate_core::telemetry::escape_line;
use headgate_kubernetes::{Decoded, split_list};
use kube::Resource;
use kube::api::ObjectList;

/// Objects that one process names.
const MAX_WARNINGS: usize = 10;

/// What was named already: a command that repeats itself names an object once.
static NAMED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The objects of a page that can be decoded.
pub fn readable_objects<K>(page: ObjectList<Decoded<K>>) -> Vec<K>
where
    K: Resource<DynamicType: Default> + Clone,
{
    let (objects, undecodable) = split_list(page);
    for object in undecodable {
        let line = format!("{} {object}", K::kind(&K::DynamicType::default()));
        // No section that holds the mutex can panic halfway.
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        if named.len() < MAX_WARNINGS && named.insert(line.clone()) {
            // Without standard error there is no reader.
            let _ = writeln!(
                io::stderr().lock(),
                "headgate: warning: skipped: {}",
                escape_line(&line)
            );
        }
    }
    objects
}
