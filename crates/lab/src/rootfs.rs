//! A pod's view of the file system: this machine's, read-only, with the pod's own volumes, `/tmp`, `/etc/hosts` and `/etc/resolv.conf`.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statvfs::{FsFlags, statvfs};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// What a container sees in its own places.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// An empty folder on the lab's scratch file system, where the view is put together.
    pub root: PathBuf,
    /// Path in the container to folder or file on the scratch file system; read-only or not.
    pub mounts: Vec<(PathBuf, PathBuf, bool)>,
    /// Folders that are hidden from pods: the lab's own.
    pub hidden: Vec<PathBuf>,
}

fn at<E: Into<io::Error>>(what: &str, path: &Path) -> impl FnOnce(E) -> io::Error {
    let text = format!("{what} {}", path.display());
    move |error| {
        let error: io::Error = error.into();
        io::Error::new(error.kind(), format!("{text}: {error}"))
    }
}

fn bind(from: &Path, to: &Path) -> io::Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>).map_err(at("binding", to))
}

fn read_only(path: &Path) -> io::Result<()> {
    let now = statvfs(path)?.flags();
    let mut flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    // Flags that came from outside a user namespace are locked: they must be named again.
    for (has, keep) in [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ] {
        if now.contains(has) {
            flags |= keep;
        }
    }
    mount(None::<&str>, path, None::<&str>, flags, None::<&str>).map_err(at("making read-only", path))
}

/// Puts the calling thread, and the processes it starts, into a mount namespace with this view.
pub fn enter(view: &View) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(io::Error::from)?;
    let none = None::<&str>;
    let root = &view.root;
    mount(Some("tmpfs"), root, Some("tmpfs"), MsFlags::empty(), Some("mode=0755")).map_err(at("mounting", root))?;
    for entry in fs::read_dir("/")? {
        let entry = entry?;
        let (from, to) = (entry.path(), root.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
        } else if kind.is_dir() {
            fs::create_dir(&to)?;
            let own = ["tmp", "run"].iter().any(|name| from == Path::new("/").join(name));
            if own {
                mount(Some("tmpfs"), &to, Some("tmpfs"), MsFlags::empty(), Some("mode=1777"))
                    .map_err(at("mounting", &to))?;
            } else if !view.hidden.contains(&from) && bind(&from, &to).is_ok() && !is_special(&from) {
                read_only(&to)?;
            }
        }
    }
    for (inside, source, writable) in &view.mounts {
        place(root, inside, source)?;
        if !writable {
            read_only(&root.join(inside.strip_prefix("/").unwrap_or(inside)))?;
        }
    }
    nix::unistd::chdir(root)?;
    nix::unistd::pivot_root(".", ".").map_err(at("changing the root to", root))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(io::Error::from)?;
    nix::unistd::chdir("/")?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).map_err(io::Error::from)
}

/// File systems of the kernel's own, in which nothing of this machine's can be changed by writing.
fn is_special(path: &Path) -> bool {
    ["dev", "proc", "sys"].iter().any(|name| path == Path::new("/").join(name))
}

/// Mounts `source` at `inside`. A folder on the way that does not exist is made; where this machine's own folder would have to change,
/// a copy of its listing takes its place.
fn place(root: &Path, inside: &Path, source: &Path) -> io::Result<()> {
    let mut target = root.to_owned();
    let parts: Vec<_> = inside
        .components()
        .filter_map(|c| match c {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    for (index, name) in parts.iter().enumerate() {
        let parent = target.clone();
        target.push(name);
        if target.is_symlink() {
            // A link could lead out of the view, and one to a missing file cannot be mounted on.
            shadow(root, &parent)?;
            fs::remove_file(&target)?;
        }
        if target.exists() {
            continue;
        }
        let last = index + 1 == parts.len();
        let made = if last && source.is_file() { fs::File::create(&target).map(drop) } else { fs::create_dir(&target) };
        if made.is_err() {
            shadow(root, &parent)?;
            if last && source.is_file() { fs::File::create(&target).map(drop)? } else { fs::create_dir(&target)? }
        }
    }
    bind(source, &target)
}

/// Replaces a read-only folder by a writable one with the same entries.
fn shadow(root: &Path, dir: &Path) -> io::Result<()> {
    let aside = root.join(".trysail-aside");
    let probe = dir.join(".trysail-probe");
    if fs::File::create(&probe).is_ok() {
        return fs::remove_file(probe);
    }
    let entries: Vec<_> = fs::read_dir(dir)?.collect::<Result<_, _>>()?;
    fs::create_dir_all(&aside).map_err(at("creating", &aside))?;
    bind(dir, &aside)?;
    mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), Some("mode=0755")).map_err(at("mounting", dir))?;
    for entry in entries {
        let (from, to) = (aside.join(entry.file_name()), dir.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
        } else if kind.is_dir() {
            fs::create_dir(&to)?;
            bind(&from, &to)?;
        } else if kind.is_file() {
            fs::File::create(&to)?;
            bind(&from, &to)?;
        }
    }
    umount2(&aside, MntFlags::MNT_DETACH).map_err(io::Error::from)?;
    fs::remove_dir(&aside)
}
