//! Completions and man pages, from the same definition as `--help`.

use std::fs;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;

use super::args::Completions;
use super::definition::definition;
use super::failure::Failure;
use super::{args, out};

/// The title of the section with the usage line.
const SYNOPSIS: &str = ".SH SYNOPSIS";

pub(super) fn completions(args: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut definition(), "lockmod", &mut script);
    Ok(out::bytes(&script)?)
}

/// Writes `lockmod.1`, and `lockmod-run.1` and the like for the commands.
///
/// The folder is not created: a user who types `lockmod man run` wants to read a page, not to write
/// one.
pub(super) fn man(args: &args::Man) -> Result<(), Failure> {
    let folder = &args.folder;
    if !folder.is_dir() {
        let text = format!(
            "there is no folder {}: make it first; `lockmod COMMAND --help` shows the same",
            folder.display()
        );
        return Err(Failure::usage(text));
    }
    let mut command = definition().disable_help_subcommand(true);
    command.build();
    let mut pages = std::iter::once(&command).chain(command.get_subcommands());
    pages.try_for_each(|command| write_page(command, folder))
}

/// Writes the page of a command, with the same usage line as `--help`: the generator's own lacks
/// the `--` between the options and a command to run.
fn write_page(command: &Command, folder: &Path) -> Result<(), Failure> {
    let page = Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace('-', "\\-");
    let before = text.lines().take_while(|line| *line != SYNOPSIS).chain([SYNOPSIS, &usage]);
    // After the title and the generator's own line.
    let behind = text.lines().skip_while(|line| *line != SYNOPSIS).skip(2);
    let lines: Vec<&str> = before.chain(behind).collect();
    let file = folder.join(page.get_filename());
    fs::write(&file, lines.join("\n") + "\n").map_err(|error| {
        Failure::new(Failure::FAILED, format!("cannot write {}: {error}", file.display()))
    })
}
