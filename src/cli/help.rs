//! The definition of the command line, whose `--help` lists the commands in groups. What only headgate's own pods run is hidden.

use clap::CommandFactory as _;

use super::Arguments;
use super::EXIT_CODES;

/// The groups of `--help`, with their commands.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Set up Azure, and ask it what is assumed", &["azure-setup", "verify"]),
    (
        "See what happens, and why",
        &["status", "why", "check", "version", "sysdump"],
    ),
    ("Drain nodes", &["plan", "drain", "undrain"]),
    ("Give back what headgate wrote", &["restore", "clean-nodes"]),
    ("Run in the cluster", &["agent", "connections"]),
    ("For shells and scripts", &["completions", "man", "help"]),
];

/// The definition of the command line, for the man page, completions and the generated reference.
pub fn definition() -> clap::Command {
    let definition = Arguments::command();
    let template = help_template(&definition);
    definition.help_template(template).after_help(exit_codes_text())
}

/// `--help` of the program: the commands in their groups.
fn help_template(definition: &clap::Command) -> String {
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    let about = |name: &str| {
        let command = definition.find_subcommand(name);
        let about = command.and_then(clap::Command::get_about).map(ToString::to_string);
        about.unwrap_or_else(|| "Print this message or the help of a command".to_owned())
    };
    for (heading, commands) in GROUPS {
        text.extend(["\n", heading, ":\n"]);
        for name in commands {
            let line = format!("  {name:<13}{}\n", about(name));
            text.push_str(&line);
        }
    }
    text += "\nOptions:\n{options}{after-help}";
    text
}

fn exit_codes_text() -> String {
    let lines = EXIT_CODES
        .iter()
        .map(|(code, meaning)| format!("\n  {code:<5}{meaning}"));
    format!("Exit codes:{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_has_every_command_in_one_group() {
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, commands)| commands.iter().copied())
            .collect();
        let mut definition = definition();
        let help = definition.render_help().to_string();
        let shown = definition.get_subcommands().filter(|command| !command.is_hide_set());
        let mut shown: Vec<_> = shown.map(|command| command.get_name().to_owned()).collect();
        grouped.sort_unstable();
        shown.sort_unstable();
        assert_eq!(grouped, shown);
        for part in [
            "\nDrain nodes:\n  plan         Preview a drain",
            "\n  help         Print this message",
            "\nOptions:\n  -h, --help ",
            "Exit codes:\n  0    done",
            "\n  3    the environment",
        ] {
            assert!(help.contains(part), "{part:?} is not in {help}");
        }
        for hidden in ["probe", "hold", "prepare-uninstall"] {
            assert!(!help.contains(&format!("\n  {hidden} ")), "{help}");
        }
    }
}
