//! Runs a plan, with `az` as a function.

use std::collections::BTreeMap;

use super::{Condition, Part, Plan, Step, Variable, Word};

/// What steps have learned from Azure.
type Known = BTreeMap<Variable, String>;

/// Why a plan did not end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// Azure's answer excludes headgate.
    #[error("{0}")]
    Refused(&'static str),
    /// A command failed.
    #[error(transparent)]
    Az(#[from] anyhow::Error),
}

/// Runs every step whose conditions hold, and returns the text of the values. `az` gets the arguments and returns the output.
pub(crate) fn run(plan: &Plan, mut az: impl FnMut(&[String]) -> anyhow::Result<String>) -> Result<String, RunError> {
    let mut known = Known::new();
    for step in &plan.steps {
        match step {
            Step::Refuse {
                variable,
                value,
                message,
            } if value_of(&known, variable) == *value => return Err(RunError::Refused(message)),
            Step::Az {
                conditions,
                saves,
                arguments,
                ..
            } if conditions.iter().all(|condition| holds(*condition, &known)) => {
                let arguments: Vec<String> = arguments.iter().map(|word| text(word, &known)).collect();
                let output = az(&arguments)?;
                if let Some(variable) = saves {
                    known.insert(variable, output.trim_end().to_owned());
                }
            }
            Step::Refuse { .. } | Step::Az { .. } => {}
        }
    }
    Ok(text(&plan.values, &known))
}

fn value_of(known: &Known, variable: Variable) -> &str {
    known.get(variable).map_or("", String::as_str)
}

fn holds(condition: Condition, known: &Known) -> bool {
    match condition {
        Condition::IsEmpty(variable) => value_of(known, variable).is_empty(),
        Condition::IsSet(variable) => !value_of(known, variable).is_empty(),
        Condition::Is(variable, value) => value_of(known, variable) == value,
    }
}

fn text(word: &Word, known: &Known) -> String {
    let parts = word.0.iter().map(|part| match part {
        Part::Text(text) => text.as_str(),
        Part::Variable(variable) => value_of(known, variable),
        Part::Before(variable, text) => {
            let value = value_of(known, variable);
            value.split_once(text).map_or(value, |(before, _)| before)
        }
    });
    parts.collect()
}
