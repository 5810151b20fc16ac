//! `sprat completions` and `sprat man`: write shell completions and manual pages, made from the
//! commands.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;
use sprat_bench::fail::{Fail, Named as _};
use sprat_bench::out;

/// Write the completions of a shell to standard output.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat completions bash > ~/.local/share/bash-completion/completions/sprat
  sprat completions zsh > ~/.zfunc/_sprat
  sprat completions fish > ~/.config/fish/completions/sprat.fish")]
pub(crate) struct Completions {
    /// The shell to write completions for.
    #[arg(value_enum)]
    shell: Shell,
}

/// Write the manual pages to a folder, one for each command.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat man ~/.local/share/man/man1
  man sprat-bench-echo")]
pub(crate) struct Man {
    /// The folder to write the pages to; it is made if there is none.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Runs `sprat completions` for the commands of `sprat`.
pub(crate) fn completions(args: &Completions, mut sprat: clap::Command) -> Result<(), Fail> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut sprat, "sprat", &mut text);
    out::raw(text)
}

/// Runs `sprat man` for the commands of `sprat`.
pub(crate) fn man(args: &Man, sprat: clap::Command) -> Result<(), Fail> {
    let failed = format!("cannot write to {}", args.folder.display());
    std::fs::create_dir_all(&args.folder).named(&failed)?;
    clap_mangen::generate_to(sprat, &args.folder).named(&failed)
}
