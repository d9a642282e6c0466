//! `completions` and `man`: texts generated from the definition of a command line.

use std::fmt::Write as _;

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Failure, print};

/// The arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell to write for
    shell: Shell,
}

/// Prints the completion script of a program.
///
/// # Errors
/// It cannot be written.
pub fn completions(arguments: &CompletionsArguments, mut definition: Command) -> Result<(), Failure> {
    let mut text = Vec::new();
    let program = definition.get_name().to_owned();
    clap_complete::generate(arguments.shell, &mut definition, program, &mut text);
    print(&text)
}

/// Prints the man page of a program.
///
/// # Errors
/// It cannot be written.
pub fn man(definition: Command) -> Result<(), Failure> {
    let text = man_page(definition).map_err(|error| Failure::runtime(error.context("writing the man page")))?;
    print(text.as_bytes())
}

/// One page for the whole command line, with a section for each subcommand.
fn man_page(mut definition: Command) -> anyhow::Result<String> {
    definition.build();
    let top = Man::new(definition.clone());
    let mut text = Vec::new();
    top.render_title(&mut text)?;
    top.render_name_section(&mut text)?;
    top.render_synopsis_section(&mut text)?;
    top.render_description_section(&mut text)?;
    top.render_options_section(&mut text)?;
    let mut page = String::from_utf8(text)?;
    let subcommands = definition
        .get_subcommands()
        .filter(|command| command.get_name() != "help");
    for command in subcommands {
        let heading = command.get_bin_name().unwrap_or(command.get_name()).to_uppercase();
        let section = Man::new(command.clone());
        let mut text = Vec::new();
        section.render_description_section(&mut text)?;
        section.render_synopsis_section(&mut text)?;
        section.render_options_section(&mut text)?;
        // The sections of a subcommand become subsections.
        let text = String::from_utf8(text)?.replace("\n.SH ", "\n.SS ");
        write!(page, ".SH \"{heading}\"\n{text}")?;
    }
    let mut version = Vec::new();
    top.render_version_section(&mut version)?;
    page.push_str(&String::from_utf8(version)?);
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::super::definition;
    use super::*;

    #[test]
    fn man_page_has_every_flag_and_argument() {
        let page = man_page(definition()).unwrap().replace("\\-", "-");
        assert_eq!(page.matches("\n.SH NAME\n").count(), 1, "{page}");
        let mut definition = definition();
        definition.build();
        for command in definition
            .get_subcommands()
            .filter(|command| command.get_name() != "help")
        {
            let heading = format!("\n.SH \"HEADGATE {}\"\n", command.get_name().to_uppercase());
            let section = page
                .split_once(&heading)
                .unwrap_or_else(|| panic!("no {heading} in {page}"))
                .1;
            let section = section.split("\n.SH ").next().unwrap();
            for argument in command.get_arguments() {
                let shown = match (argument.get_long(), argument.get_value_names()) {
                    (Some(long), _) => format!("--{long}"),
                    (None, Some([name, ..])) => name.to_string(),
                    (None, _) => argument.get_id().to_string(),
                };
                assert!(section.contains(&shown), "{shown} is not in {section}");
            }
        }
    }
}
