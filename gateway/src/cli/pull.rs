//! `voxlane pull OWNER/NAME`: brings a checkpoint from a hub.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use runtime::ModelSource;

use super::CommandError;
use crate::pull::{Progress, PullOptions, RepoName, default_folder};

#[derive(Args, Debug)]
pub(super) struct PullFlags {
    /// Repository, as OWNER/NAME or OWNER/NAME@REVISION
    repo: String,
    /// Folder to make [default: voxlane/models/OWNER/NAME in XDG_DATA_HOME or ~/.local/share]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

pub(super) fn run(flags: &PullFlags) -> Result<(), CommandError> {
    let usage = |what: String| CommandError::Usage(what);
    let repo: RepoName =
        flags.repo.parse().map_err(|error: crate::pull::NameError| usage(error.to_string()))?;
    let to = flags.to.clone().or_else(|| default_folder(&repo));
    let to = to.ok_or_else(|| usage("there is no home folder; name a folder with --to".to_owned()))?;
    let given = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let options = PullOptions { repo, to, endpoint: given("HF_ENDPOINT"), token: given("HF_TOKEN") };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::Failed(format!("cannot start the async runtime: {error}")))?;
    let mut meter = Meter::default();
    let pulled = runtime.block_on(crate::pull::pull(&options, &mut |progress| meter.show(progress)));
    meter.end();
    let pulled = pulled.map_err(|error| CommandError::Failed(error.to_string()))?;
    let folder = options.to.display();
    say!("{} files, {} bytes of commit {} are in {folder}", pulled.files, pulled.bytes, pulled.commit);
    let name = crate::native::name_of(&options.to);
    match runtime::inspect(ModelSource::Dir(options.to.clone()), &name) {
        Ok(found) => {
            say!("{name} ({}, {}): voxlane serve --model {folder}", found.variant, found.info.licence)
        }
        Err(error) => say!("this server does not speak it: {error}"),
    }
    Ok(())
}

/// Says how far it is: one line that changes on a terminal, else a line every tenth.
#[derive(Default)]
struct Meter {
    shown: Option<u64>,
}

impl Meter {
    fn show(&mut self, progress: Progress<'_>) {
        let Progress { file, came, all } = progress;
        let permille = came.saturating_mul(1_000) / all.max(1);
        let (step, end) = if std::io::stderr().is_terminal() { (1, '\r') } else { (100, '\n') };
        if self.shown.is_some_and(|shown| permille / step == shown / step) {
            return;
        }
        self.shown = Some(permille);
        eprint!("{:>5.1}% of {} MB, {file:<60}{end}", permille as f64 / 10.0, all / 1_000_000);
    }

    fn end(&self) {
        if self.shown.is_some() && std::io::stderr().is_terminal() {
            eprintln!();
        }
    }
}
