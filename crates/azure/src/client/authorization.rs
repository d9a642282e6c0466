//! Reading what the identity may do.

use hyper::Uri;
use serde_json::Value;
use tokio::time::Instant;

use super::{ArmClient, MAX_PAGES, parse_json};
use crate::authorization::{DenyAssignment, Permission};
use crate::error::ArmError;
use crate::id::ResourceGroupId;

/// The API version of Microsoft.Authorization.
const API_VERSION: &str = "2022-04-01";

impl ArmClient {
    /// Lists what the identity may do at a scope: a resource group's id, or a resource's. `group` selects the throttle gates.
    ///
    /// # Errors
    /// When a page is not received before the deadline, or is malformed.
    pub async fn list_permissions(
        &self,
        group: &ResourceGroupId,
        scope: &str,
        deadline: Instant,
    ) -> Result<Vec<Permission>, ArmError> {
        let uri = self.authorization_uri(scope, "permissions")?;
        let listed = self.list_documents("list_permissions", group, uri, deadline).await?;
        Ok(listed.iter().map(Permission::from_document).collect())
    }

    /// Lists the deny assignments of a scope, those above and below it included.
    ///
    /// # Errors
    /// When a page is not received before the deadline, or is malformed.
    pub async fn list_deny_assignments(
        &self,
        group: &ResourceGroupId,
        scope: &str,
        deadline: Instant,
    ) -> Result<Vec<DenyAssignment>, ArmError> {
        let uri = self.authorization_uri(scope, "denyAssignments")?;
        let listed = self
            .list_documents("list_deny_assignments", group, uri, deadline)
            .await?;
        Ok(listed.iter().map(DenyAssignment::from_document).collect())
    }

    fn authorization_uri(&self, scope: &str, kind: &str) -> Result<Uri, ArmError> {
        let path = format!("{scope}/providers/Microsoft.Authorization/{kind}?api-version={API_VERSION}");
        self.origin.join(&path).map_err(ArmError::InvalidResponse)
    }

    async fn list_documents(
        &self,
        name: &'static str,
        group: &ResourceGroupId,
        mut next: Uri,
        deadline: Instant,
    ) -> Result<Vec<Value>, ArmError> {
        let mut documents = Vec::new();
        for _ in 0..MAX_PAGES {
            let page = parse_json(&self.get(name, group, next, deadline).await?)?;
            documents.extend(page["value"].as_array().into_iter().flatten().cloned());
            match page["nextLink"].as_str() {
                Some(link) if !link.is_empty() => next = self.check_link(link)?,
                _ => return Ok(documents),
            }
        }
        Err(ArmError::InvalidResponse(format!(
            "a list of more than {MAX_PAGES} pages"
        )))
    }
}
