//! The definitions and policies of the manifests on the real kube-apiserver.

mod cluster;
mod evacuations;
mod node_maintenances;
mod policies;
