//! Objects from a folder, reloaded as its files change. A file that cannot be read any more leaves its last valid objects in place.

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;
use trysail_api::load::load;
use trysail_api::object::{Object, ObjectKey};

/// The objects of a folder.
pub struct Folder {
    path: PathBuf,
    seen: mpsc::Receiver<Seen>,
    files: BTreeMap<PathBuf, BTreeSet<ObjectKey>>,
}

/// What one look at the watch found.
enum Seen {
    /// These files changed.
    Files(BTreeSet<PathBuf>),
    /// Too much at once: anything may have changed.
    Overflow,
    /// The watch is gone.
    Failed(io::Error),
}

/// Batches of changes under way; a slow reader holds the watch up, and the kernel's own queue then bounds it.
const QUEUE: usize = 64;

/// One object that changed; `None` when it is gone.
pub type ObjectChange = (ObjectKey, Option<Object>);

/// Why a folder cannot be watched.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub struct FolderError {
    path: PathBuf,
    source: io::Error,
}

impl Folder {
    /// Opens `path` and starts to watch it; the first [`Folder::changes`] gives what is there already.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let fail = |source: io::Error| FolderError { path: path.to_owned(), source };
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC).map_err(|e| fail(e.into()))?;
        let events = AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVE | AddWatchFlags::IN_DELETE;
        inotify.add_watch(path, events).map_err(|e| fail(e.into()))?;
        let (sender, seen) = mpsc::channel(QUEUE);
        let dir = path.to_owned();
        let thread = std::thread::Builder::new().name("folder".into());
        thread.spawn(move || follow(&inotify, &dir, &sender)).map_err(fail)?;
        Ok(Self { path: path.to_owned(), seen, files: BTreeMap::new() })
    }

    /// Everything that is in the folder now, compared with what was known.
    pub fn all(&mut self) -> Result<Vec<ObjectChange>, FolderError> {
        let fail = |source| FolderError { path: self.path.clone(), source };
        let mut names: BTreeSet<PathBuf> = self.files.keys().cloned().collect();
        for entry in std::fs::read_dir(&self.path).map_err(fail)? {
            names.insert(entry.map_err(fail)?.path());
        }
        Ok(names.iter().flat_map(|file| self.file(file)).collect())
    }

    fn file(&mut self, path: &Path) -> Vec<ObjectChange> {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let known = [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end));
        if name.starts_with('.') || !known {
            return Vec::new();
        }
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let gone = self.files.remove(path).unwrap_or_default();
                return gone.into_iter().filter(|key| !self.elsewhere(key)).map(|key| (key, None)).collect();
            }
            Err(error) => {
                tracing::warn!("{}: {error}; its last valid objects stay in effect", path.display());
                return Vec::new();
            }
        };
        let read = load(&path.display().to_string(), &text);
        for diagnostic in &read.diagnostics {
            tracing::warn!("{diagnostic}");
        }
        let before = self.files.get(path).cloned().unwrap_or_default();
        let mut now: BTreeSet<ObjectKey> = read.objects.iter().map(|l| l.object.key()).collect();
        let mut changes: Vec<ObjectChange> =
            read.objects.into_iter().map(|l| (l.object.key(), Some(l.object))).collect();
        if read.diagnostics.iter().any(|d| d.severity == trysail_api::Severity::Error) {
            now.extend(before.iter().cloned());
        }
        let left: Vec<ObjectKey> = before.difference(&now).cloned().collect();
        self.files.insert(path.to_owned(), now);
        // An object that has moved to another file has not gone.
        changes.extend(left.into_iter().filter(|key| !self.elsewhere(key)).map(|key| (key, None)));
        changes
    }

    fn elsewhere(&self, key: &ObjectKey) -> bool {
        self.files.values().any(|keys| keys.contains(key))
    }

    /// Waits for changes and returns them. Nothing that happens between calls is missed.
    pub async fn changes(&mut self) -> Result<Vec<ObjectChange>, FolderError> {
        match self.seen.recv().await {
            Some(Seen::Files(files)) => Ok(files.iter().flat_map(|file| self.file(file)).collect()),
            Some(Seen::Overflow) => self.all(),
            Some(Seen::Failed(source)) => Err(FolderError { path: self.path.clone(), source }),
            None => Err(FolderError { path: self.path.clone(), source: io::ErrorKind::BrokenPipe.into() }),
        }
    }
}

/// Blocks on the watch and hands on what it tells, until nobody listens.
fn follow(inotify: &Inotify, dir: &Path, sender: &mpsc::Sender<Seen>) {
    loop {
        let seen = match inotify.read_events() {
            Ok(events) if events.iter().any(|e| e.mask.contains(AddWatchFlags::IN_Q_OVERFLOW)) => Seen::Overflow,
            Ok(events) => Seen::Files(events.into_iter().filter_map(|e| e.name).map(|n| dir.join(n)).collect()),
            Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => Seen::Failed(error.into()),
        };
        let failed = matches!(seen, Seen::Failed(_));
        if sender.blocking_send(seen).is_err() || failed {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
