//! Completions and man pages, from the definition that `--help` is made of.

use super::args::Completions;
use super::definition::definition;
use super::failure::Failure;
use super::{args, out};

pub(super) fn completions(args: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut definition(), "lockmod", &mut script);
    Ok(out::bytes(&script)?)
}

/// Writes `lockmod.1`, and `lockmod-run.1` and the like for the commands.
///
/// The folder is not made: whoever types `lockmod man run` wants to read and not to write.
pub(super) fn man(args: &args::Man) -> Result<(), Failure> {
    let folder = &args.folder;
    if !folder.is_dir() {
        let text = format!(
            "there is no folder {}: make it first; `lockmod COMMAND --help` shows the same",
            folder.display()
        );
        return Err(Failure::new(Failure::USAGE, text));
    }
    clap_mangen::generate_to(definition(), folder).map_err(|error| {
        Failure::new(Failure::USAGE, format!("cannot write to {}: {error}", folder.display()))
    })
}
