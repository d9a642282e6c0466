//! Lists, page by page. Of each page the objects that a command can read: it names the others on standard error and goes on
//! without them.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::{Stream, TryStreamExt as _, stream};
use headgate_core::telemetry::escape_line;
use headgate_kubernetes::{Decoded, split_list};
use kube::api::{ListParams, ObjectList};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::api_error::{RequestError, within};

/// Objects in one response.
const PAGE_SIZE: u32 = 500;
/// Time for one page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(20);
/// Objects that one process names.
const MAX_WARNINGS: usize = 10;

/// What was named already: a command that repeats itself names an object once.
static NAMED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// All objects of a list.
///
/// # Errors
/// A page is missing.
pub async fn list_all<K>(api: &Api<Decoded<K>>, params: ListParams) -> Result<Vec<K>, RequestError>
where
    K: Resource<DynamicType: Default> + Clone + Debug + DeserializeOwned,
{
    pages(api, params).try_concat().await
}

/// The pages of a list.
pub(crate) fn pages<K>(
    api: &Api<Decoded<K>>,
    params: ListParams,
) -> impl Stream<Item = Result<Vec<K>, RequestError>> + Unpin
where
    K: Resource<DynamicType: Default> + Clone + Debug + DeserializeOwned,
{
    let first = Some(params.limit(PAGE_SIZE));
    Box::pin(stream::try_unfold(first, move |params| async move {
        let Some(params) = params else { return Ok(None) };
        let page = within(PAGE_TIMEOUT, api.list(&params)).await?;
        let next = page.metadata.continue_.clone().filter(|token| !token.is_empty());
        let next = next.map(|token| params.continue_token(&token));
        Ok(Some((readable_objects(page), next)))
    }))
}

/// The objects of a page that can be decoded.
pub(crate) fn readable_objects<K>(page: ObjectList<Decoded<K>>) -> Vec<K>
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
