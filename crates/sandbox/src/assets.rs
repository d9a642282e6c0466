//! Where the control plane's programs are: etcd, kube-apiserver and the others, built or downloaded before.
//!
//! Building them is left to `make control-plane`.

use std::env;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Programs without which there is no control plane.
const REQUIRED: [&str; 2] = ["etcd", "kube-apiserver"];

/// No usable programs.
#[derive(Debug, thiserror::Error)]
pub enum AssetsError {
    /// A program is missing from the directory it should be in.
    #[error(
        "no executable {program} in {} ({origin}): run `make control-plane`, or name a directory that has it with --assets or KUBEBUILDER_ASSETS",
        directory.display()
    )]
    Missing {
        /// The program.
        program: String,
        /// Where it was looked for.
        directory: PathBuf,
        /// Who said to look there.
        origin: &'static str,
    },
    /// Nothing says where to look.
    #[error(
        "cannot tell where the control plane's programs are: neither KUBEBUILDER_ASSETS nor HOME is set; give --assets DIR"
    )]
    Nowhere,
}

/// A directory with the control plane's programs.
#[derive(Clone, Debug)]
pub struct Assets {
    directory: PathBuf,
    origin: &'static str,
}

impl Assets {
    /// Finds the programs: in `given` (`--assets`), else in `KUBEBUILDER_ASSETS`, else where
    /// `make control-plane` puts them.
    ///
    /// # Errors
    /// No directory can be told, or etcd or kube-apiserver is not in it.
    pub fn find(given: Option<&Path>) -> Result<Self, AssetsError> {
        let (directory, origin) = locate(given, |name| env::var_os(name)).ok_or(AssetsError::Nowhere)?;
        let directory = std::path::absolute(&directory).unwrap_or(directory);
        let assets = Self { directory, origin };
        for program in REQUIRED {
            assets.program(program)?;
        }
        Ok(assets)
    }

    /// The directory itself.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The path of one program.
    ///
    /// # Errors
    /// It is not there or may not be executed.
    pub fn program(&self, name: &str) -> Result<PathBuf, AssetsError> {
        let path = self.directory.join(name);
        if path
            .metadata()
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        {
            return Ok(path);
        }
        Err(AssetsError::Missing {
            program: name.to_owned(),
            directory: self.directory.clone(),
            origin: self.origin,
        })
    }
}

/// The directory to look in, and who named it. An empty variable counts as unset, as in build.sh.
fn locate(given: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) -> Option<(PathBuf, &'static str)> {
    let variable = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(directory) = given {
        return Some((directory.to_owned(), "from --assets"));
    }
    if let Some(directory) = variable("KUBEBUILDER_ASSETS") {
        return Some((directory, "from KUBEBUILDER_ASSETS"));
    }
    let cache = variable("HEADGATE_CACHE")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("headgate")))
        .or_else(|| Some(variable("HOME")?.join(".cache/headgate")))?;
    Some((
        cache.join("control-plane/current"),
        "where `make control-plane` puts it",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_to_look() {
        let home = ("HOME", "/home/a");
        for (given, variables, want) in [
            (Some("/x"), vec![("KUBEBUILDER_ASSETS", "/k"), home], Some("/x")),
            (
                None,
                vec![("KUBEBUILDER_ASSETS", "/k"), ("HEADGATE_CACHE", "/c"), home],
                Some("/k"),
            ),
            (
                None,
                vec![("KUBEBUILDER_ASSETS", ""), home],
                Some("/home/a/.cache/headgate/control-plane/current"),
            ),
            (
                None,
                vec![("HEADGATE_CACHE", "/c"), ("XDG_CACHE_HOME", "/x"), home],
                Some("/c/control-plane/current"),
            ),
            (
                None,
                vec![("XDG_CACHE_HOME", "/x"), home],
                Some("/x/headgate/control-plane/current"),
            ),
            (None, vec![], None),
        ] {
            let variable = |name: &str| {
                variables
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| value.into())
            };
            let found = locate(given.map(Path::new), variable).map(|(directory, _)| directory);
            assert_eq!(found.as_deref(), want.map(Path::new), "{given:?} {variables:?}");
        }
    }

    #[test]
    fn what_is_missing_is_said_in_one_line() {
        let empty = tempfile::tempdir().unwrap();
        let error = Assets::find(Some(empty.path())).unwrap_err().to_string();
        assert!(error.starts_with("no executable etcd in /"), "{error}");
        assert!(
            error.contains("(from --assets)") && error.contains("make control-plane"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1);
    }
}
