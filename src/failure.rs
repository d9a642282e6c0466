//! How commands fail: the exit codes, and what is printed.

use std::process::ExitCode;

/// Exit code for wrong arguments or settings.
const EXIT_SETTINGS: u8 = 2;
/// Exit code for a failure while running, and for a refusal.
const EXIT_RUNTIME: u8 = 1;
/// Exit code where the command could not begin: no cluster was found, or something that it needs does not answer.
const EXIT_ENVIRONMENT: u8 = 3;
/// Exit code after Ctrl-C: 128 and the number of SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

/// The exit codes and their meanings, for `--help` and the reference.
pub const EXIT_CODES: [(u8, &str); 5] = [
    (0, "done, and the answer is yes"),
    (
        EXIT_RUNTIME,
        "refused, failed or not done in time, or the answer is no: a check failed, a node is not out",
    ),
    (
        EXIT_SETTINGS,
        "wrong usage: arguments, settings, or a file that they name",
    ),
    (
        EXIT_ENVIRONMENT,
        "the environment: no cluster was found, or the API server, Azure or an agent that the command cannot do without does not answer, or refuses \
         the read that the answer is made of",
    ),
    (
        EXIT_INTERRUPTED,
        "interrupted; what was begun in the cluster goes on. restore and verify end what they began, with 1",
    ),
];

/// The exit code of a program; a failure is printed.
pub fn exit_code(program: &str, outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report(program, &failure.error);
            ExitCode::from(failure.code)
        }
    }
}

/// Why a subcommand failed, and the exit code of the process.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// The reason.
    pub error: anyhow::Error,
}

impl Failure {
    fn new(code: u8, error: impl Into<anyhow::Error>) -> Self {
        let error = error.into();
        Self { code, error }
    }

    /// Wrong arguments or settings.
    pub fn settings(error: impl Into<anyhow::Error>) -> Self {
        Self::new(EXIT_SETTINGS, error)
    }

    /// The command could not begin: no cluster was found, or something that it needs does not answer.
    pub fn environment(error: impl Into<anyhow::Error>) -> Self {
        Self::new(EXIT_ENVIRONMENT, error)
    }

    /// Ended by Ctrl-C.
    pub(crate) fn interrupted(error: impl Into<anyhow::Error>) -> Self {
        Self::new(EXIT_INTERRUPTED, error)
    }

    /// A failure while running.
    pub fn runtime(error: impl Into<anyhow::Error>) -> Self {
        Self::new(EXIT_RUNTIME, error)
    }
}

/// The user names a Node that does not exist.
pub(crate) fn no_such_node(name: &str) -> anyhow::Error {
    anyhow::anyhow!("there is no Node {name:?}; `kubectl get nodes` lists them")
}

/// Prints an error with its causes to standard error.
#[expect(clippy::print_stderr, reason = "the one place where a command reports its failure")]
pub(crate) fn report(program: &str, error: &anyhow::Error) {
    let text = headgate_core::telemetry::error_chain(error.as_ref());
    eprintln!("{program}: {}", headgate_core::telemetry::escape_lines(&text));
}
