//! Completions and man pages, from the definition that `--help` is made of.

use clap::CommandFactory;

use super::args::{Arguments, Completions};
use super::failure::Failure;
use super::{args, out};

pub(super) fn completions(args: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Arguments::command(), "lockmod", &mut script);
    Ok(out::bytes(&script)?)
}

/// Writes `lockmod.1`, and `lockmod-run.1` and the like for the commands.
pub(super) fn man(args: &args::Man) -> Result<(), Failure> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Arguments::command(), folder))
        .map_err(|error| {
            Failure::new(Failure::USAGE, format!("cannot write to {}: {error}", folder.display()))
        })
}
