//! What a change of a network interface does to the load balancers whose pools it is in.

use super::Store;
use crate::id::{ResourceId, is};
use crate::load_balancer::POOLS;
use crate::{pool, record};

impl Store {
    /// A guess: a pool whose members changed at their interfaces gets its load balancer a new etag.
    pub(super) fn members_changed(&mut self, interface: &ResourceId, pools: Vec<String>) {
        let mut owners: Vec<String> = Vec::new();
        for pool in pools {
            let Some(id) = ResourceId::parse(&pool) else { continue };
            let owner = id.ancestor(1).key();
            let Some(record) = self.records.get_mut(&owner) else {
                continue;
            };
            let members = self.members.of(&pool);
            for kept in record::children_mut(&mut record.document, POOLS).into_iter().flatten() {
                if record::name_of(kept).is_some_and(|name| is(name, id.name()))
                    && let Some(kept) = kept.as_object_mut()
                {
                    pool::forget(kept, &interface.to_string(), members);
                }
            }
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        for owner in owners {
            let etag = self.changed(&owner, Some(format!("the members that {interface} states")));
            if let Some(record) = self.records.get_mut(&owner) {
                record.etag = etag;
            }
        }
    }
}
