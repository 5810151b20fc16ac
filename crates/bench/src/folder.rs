//! The folder of one run of a command, removed at the end of the run. The next run removes the
//! folder of a run that was killed.

use std::path::{Path, PathBuf};

use crate::fail::{Fail, Named as _};

/// A folder that exists as long as this value.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes the folder of this process in `parent`: its name is `prefix` and the process id.
    /// Removes the folders that killed runs left there.
    pub fn new(parent: &Path, prefix: &str) -> Result<Self, Fail> {
        sweep(parent, prefix);
        let path = parent.join(format!("{prefix}{}", std::process::id()));
        std::fs::create_dir(&path).named(format_args!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes the folders that killed runs left in `among`.
fn sweep(among: &Path, prefix: &str) {
    for entry in among.read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name();
        let run = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
        if run.is_some_and(|run| !Path::new(&format!("/proc/{run}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_ends_with_its_run_and_those_of_killed_runs_with_the_next() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        // No process has such a high number.
        let killed = parent.path().join("run-999999999");
        let foreign = parent.path().join("run-of-another");
        for path in [&killed, &foreign] {
            std::fs::create_dir(path).expect("it is ours");
        }
        let folder = Folder::new(parent.path(), "run-").expect("a folder");
        let path = folder.path().to_owned();
        assert!(path.exists() && foreign.exists() && !killed.exists());
        drop(folder);
        assert!(!path.exists());
    }
}
