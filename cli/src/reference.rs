//! `vattention completions` and `vattention man`: completion scripts and manual pages.

use std::path::PathBuf;

use clap::Command;
use clap_complete::Shell;

use crate::fail::{Failure, say};

#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// Shell that reads the script.
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Folder to write the pages to; it is created if it does not exist.
    folder: PathBuf,
}

/// Prints the completion script of a shell.
pub(crate) fn print_completions(args: &CompletionsArgs, mut cli: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli, "vattention", &mut script);
    say(String::from_utf8_lossy(&script).trim_end())
}

/// Writes a manual page for the program and for each of its commands.
pub(crate) fn write_man_pages(args: &ManArgs, cli: Command) -> Result<(), Failure> {
    let folder = &args.folder;
    let written =
        std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(cli, folder));
    written.map_err(|error| Failure::input(format!("{}: {error}", folder.display())))?;
    say(&format!(
        "wrote manual pages to {0}; `man -l {0}/vattention.1` shows one",
        folder.display()
    ))
}
