//! A plan as a script for a POSIX shell. Texts are quoted, so nothing of the user's is read as shell.

use std::fmt::Write as _;

use super::{Condition, Part, Plan, Step, Variable, Word, display};

/// The longest line, if its words allow it.
const WIDTH: usize = 115;
/// Ends the values in the script.
const END: &str = "END_OF_VALUES";

/// The script that does what the plan has, and writes the values.
pub(crate) fn script(plan: &Plan) -> String {
    let mut text = String::from(
        "#!/bin/sh\n# The commands by which headgate gets an identity in AKS, from headgate azure-setup. It can be repeated.\nset -eu\nsetup() {\n",
    );
    for step in &plan.steps {
        text.push_str(&lines(step));
    }
    let values: String = plan.values.0.iter().map(in_document).collect();
    let file = command_line(&[display(&plan.values_file)]);
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\n# The values for the chart.\ncat >{file} <<{END}\n{values}{END}\n}}\n"
    );
    // Read to the end before it starts, so that no command reads the rest of a script that is piped into sh.
    text.push_str("setup </dev/null\n");
    text
}

fn lines(step: &Step) -> String {
    match step {
        Step::Refuse {
            variable,
            value,
            message,
        } => {
            let message = quoted(message);
            format!("if [ \"${variable}\" = {value} ]; then\n  echo {message} >&2\n  exit 1\nfi\n")
        }
        Step::Az {
            about,
            conditions,
            saves,
            arguments,
        } => {
            let about = if about.is_empty() {
                String::new()
            } else {
                format!("\n# {about}\n")
            };
            let command = wrapped(arguments, *saves);
            if conditions.is_empty() {
                return format!("{about}{command}\n");
            }
            let tests: Vec<String> = conditions.iter().map(test).collect();
            format!("{about}if {}; then\n  {command}\nfi\n", tests.join(" && "))
        }
    }
}

fn test(condition: &Condition) -> String {
    match condition {
        Condition::IsEmpty(variable) => format!("[ -z \"${variable}\" ]"),
        Condition::IsSet(variable) => format!("[ -n \"${variable}\" ]"),
        Condition::Is(variable, value) => format!("[ \"${variable}\" = {value} ]"),
    }
}

/// The command over several lines, none of which begins with the value of a flag.
fn wrapped(arguments: &[Word], saves: Option<Variable>) -> String {
    let (mut text, end) = match saves {
        Some(variable) => (format!("{variable}=$(az"), ")"),
        None => ("az".to_owned(), ""),
    };
    let mut length = text.len();
    for words in arguments.chunk_by(|_, next| !is_flag(next)) {
        let words = command_line(words);
        if length + words.len() > WIDTH {
            text.push_str(" \\\n   ");
            length = 3;
        }
        length += 1 + words.len();
        text.push(' ');
        text.push_str(&words);
    }
    text + end
}

fn is_flag(word: &Word) -> bool {
    matches!(word.0.first(), Some(Part::Text(text)) if text.starts_with("--"))
}

/// Words as a shell reads them.
pub(crate) fn command_line(words: &[Word]) -> String {
    let words: Vec<String> = words.iter().map(word_text).collect();
    words.join(" ")
}

fn word_text(word: &Word) -> String {
    if word.0.is_empty() {
        return quoted("");
    }
    let parts = word.0.iter().map(|part| match part {
        Part::Text(text) => quoted(text),
        Part::Variable(name) => format!("\"${name}\""),
        Part::Before(name, text) => format!("\"${{{name}%%{text}*}}\""),
    });
    parts.collect()
}

/// A text as one word.
fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:,@+=".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A part of a here-document, in which variables are replaced.
fn in_document(part: &Part) -> String {
    match part {
        Part::Text(text) => text.replace('\\', r"\\").replace('$', r"\$").replace('`', r"\`"),
        Part::Variable(name) => format!("${{{name}}}"),
        Part::Before(name, text) => format!("${{{name}%%{text}*}}"),
    }
}
