//! The control plane's programs: finds the directory with etcd, kube-apiserver and the others. `make control-plane`
//! builds them.

use std::env;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The programs that every control plane needs.
const REQUIRED: [&str; 2] = ["etcd", "kube-apiserver"];

/// The programs cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum AssetsError {
    /// A program is missing or not executable.
    #[error(
        "no executable {program} in {} ({origin}): run `make control-plane`, or name a directory that has it with --assets or KUBEBUILDER_ASSETS",
        directory.display()
    )]
    Missing {
        /// The name of the program.
        program: String,
        /// The directory that was searched.
        directory: PathBuf,
        /// Why this directory was searched.
        origin: &'static str,
    },
    /// No setting or variable names a directory.
    #[error("cannot find the control plane's programs: neither KUBEBUILDER_ASSETS nor HOME is set; give --assets DIR")]
    NoDirectory,
}

/// A directory with the control plane's programs.
#[derive(Clone, Debug)]
pub struct Assets {
    directory: PathBuf,
    origin: &'static str,
}

impl Assets {
    /// Finds the programs: in `given` (`--assets`), otherwise in `KUBEBUILDER_ASSETS`, otherwise where `make
    /// control-plane` puts them.
    ///
    /// # Errors
    /// There is no directory to search, or etcd or kube-apiserver is not in it.
    pub fn find(given: Option<&Path>) -> Result<Self, AssetsError> {
        let (directory, origin) = locate(given, |name| env::var_os(name)).ok_or(AssetsError::NoDirectory)?;
        let directory = std::path::absolute(&directory).unwrap_or(directory);
        let assets = Self { directory, origin };
        for program in REQUIRED {
            assets.program(program)?;
        }
        Ok(assets)
    }

    /// The directory with the programs.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The path of a program.
    ///
    /// # Errors
    /// The program is missing or not executable.
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

/// The directory to search, and why. An empty variable counts as unset, as in build.sh.
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
    fn the_directory_is_chosen_by_flag_variable_and_default() {
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
    fn a_missing_program_is_reported_in_one_line() {
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
