//! The reference of the command line, from its definition: what several commands share is written once.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

/// In how many commands an argument must be the same to be written once for all of them.
const SHARED_BY: usize = 2;

/// The groups in which the page has the flags of several commands: the types of their arguments, and the titles.
const GROUPS: [(&str, &str); 4] = [
    ("ClusterArguments", "cluster"),
    ("AgentArguments", "agents"),
    ("AzureArguments", "Azure"),
    ("WatchArguments", "watch"),
];

/// The title of the group that an argument of a command belongs to.
fn group_of(command: &Command, arg: &Arg) -> Option<&'static str> {
    let is_in = |id: &str| {
        let mut groups = command.get_groups().filter(|group| group.get_id().as_str() == id);
        groups.any(|group| group.get_args().any(|member| member == arg.get_id()))
    };
    let group = GROUPS.iter().find(|(id, _)| is_in(id));
    group.map(|(_, title)| *title)
}

/// What `--help` shows of an argument, on one line.
fn line(arg: &Arg) -> String {
    let mut text = String::from("- ");
    if let Some(short) = arg.get_short() {
        write!(text, "`-{short}`, ").unwrap();
    }
    write!(text, "`{arg}`: {}", help(arg.get_long_help().or(arg.get_help()))).unwrap();
    let values: Vec<String> = match arg.get_action() {
        ArgAction::Set | ArgAction::Append => arg
            .get_possible_values()
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| match value.get_help() {
                Some(meaning) => format!("`{}` ({})", value.get_name(), help(Some(meaning))),
                None => format!("`{}`", value.get_name()),
            })
            .collect(),
        _ => Vec::new(),
    };
    if !values.is_empty() {
        write!(text, "; {}", values.join(", ")).unwrap();
    }
    let defaults: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|value| format!("`{}`", value.to_string_lossy()))
        .collect();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        write!(text, " [default: {}]", defaults.join(", ")).unwrap();
    }
    text
}

/// The paragraphs of a help text on one line.
fn help(text: Option<&clap::builder::StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    let paragraphs = text.split("\n\n").map(|paragraph| {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        words.join(" ").trim_end_matches('.').to_owned()
    });
    paragraphs.collect::<Vec<_>>().join(". ")
}

/// The arguments of a command that are its own affair.
fn arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    let shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    command.get_arguments().filter(shown)
}

/// The commands that are not hidden.
fn commands(root: &Command) -> Vec<&Command> {
    let shown = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    root.get_subcommands().filter(shown).collect()
}

/// The page.
pub(super) fn reference(mut root: Command) -> String {
    root.build();
    let commands = commands(&root);
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for arg in commands.iter().flat_map(|command| arguments(command)) {
        *counts.entry((arg.to_string(), line(arg))).or_default() += 1;
    }
    // Of several arguments with one name, the one that most commands have.
    let is_shared = |arg: &Arg| {
        let name = arg.to_string();
        let most = counts
            .iter()
            .filter(|((other, _), _)| *other == name)
            .map(|(_, count)| *count);
        let count = counts[&(name.clone(), line(arg))];
        !arg.is_positional() && count >= SHARED_BY && most.max() == Some(count)
    };
    let mut page = String::from(
        "# Command line\n\n<!-- Generated from src/cli by `make docs`; a test compares it. -->\n\n\
         Every command and flag of `headgate`, as `--help` shows them; what only headgate's own pods run is left out.\n\n\
         ## Exit codes\n\n",
    );
    for (code, meaning) in headgate::cli::EXIT_CODES {
        writeln!(page, "- {code}: {meaning}").unwrap();
    }
    page.push_str("\n## Flags of several commands\n");
    let mut written: Vec<(Option<&str>, String)> = Vec::new();
    for command in &commands {
        for arg in arguments(command).filter(|arg| is_shared(arg)) {
            let row = (group_of(command, arg), line(arg));
            if !written.contains(&row) {
                written.push(row);
            }
        }
    }
    for title in GROUPS.iter().map(|(_, title)| Some(*title)).chain([None]) {
        writeln!(page, "\n*{}*:\n", title.unwrap_or("others")).unwrap();
        for (_, line) in written.iter().filter(|(group, _)| *group == title) {
            writeln!(page, "{line}").unwrap();
        }
    }
    for command in commands {
        let usage = command.clone().render_usage().to_string();
        let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
        let about = help(command.get_long_about().or(command.get_about()));
        write!(page, "\n## `headgate {}`\n\n{about}.\n\n", command.get_name()).unwrap();
        let (shared, own): (Vec<&Arg>, Vec<&Arg>) = arguments(command).partition(|arg| is_shared(arg));
        let name = command.get_name();
        if ![format!("headgate {name} [OPTIONS]"), format!("headgate {name}")].contains(&usage.to_owned()) {
            writeln!(page, "`{usage}`\n").unwrap();
        }
        for arg in own {
            writeln!(page, "{}", line(arg)).unwrap();
        }
        let mut names: Vec<String> = Vec::new();
        for arg in shared {
            let name = match group_of(command, arg) {
                Some(title) => format!("*{title}*"),
                None => format!("`--{}`", arg.get_long().unwrap_or(arg.get_id().as_str())),
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if !names.is_empty() {
            writeln!(page, "- also {}", names.join(", ")).unwrap();
        }
    }
    page
}
