//! Network namespaces: create, name, enter, run inside.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open network namespace. It lives at least as long as this handle.
#[derive(Clone, Debug)]
pub struct NetNs {
    file: Arc<OwnedFd>,
}

/// Why a namespace cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum NsError {
    /// A step failed.
    #[error("{step}: {source}")]
    Step {
        /// What was being done.
        step: String,
        /// What happened.
        source: io::Error,
    },
    /// The thread that worked inside the namespace panicked.
    #[error("the work inside the namespace was lost")]
    Lost,
}

fn step<E: Into<io::Error>>(step: impl Into<String>) -> impl FnOnce(E) -> NsError {
    let step = step.into();
    move |source| NsError::Step { step, source: source.into() }
}

const THREAD_NS: &str = "/proc/thread-self/ns/net";

impl NetNs {
    /// Opens a namespace by path, e.g. `/proc/1/ns/net`.
    pub fn open(path: &Path) -> Result<Self, NsError> {
        let file = File::open(path).map_err(step(format!("opening the namespace {}", path.display())))?;
        Ok(Self { file: Arc::new(file.into()) })
    }

    /// The calling thread's own.
    pub fn current() -> Result<Self, NsError> {
        Self::open(Path::new(THREAD_NS))
    }

    /// Takes a descriptor that was received.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { file: Arc::new(fd) }
    }

    /// A new, empty namespace.
    pub fn create() -> Result<Self, NsError> {
        on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(step("making a network namespace"))?;
            Self::current()
        })?
    }

    /// Gives the namespace a path, so that other processes of this mount namespace can open it.
    pub fn bind(&self, path: &Path) -> Result<(), NsError> {
        File::create(path).map_err(step(format!("creating {}", path.display())))?;
        let source = self.proc_path();
        mount(Some(&source), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(step(format!("binding a namespace to {}", path.display())))
    }

    /// Takes the path away again.
    pub fn unbind(path: &Path) {
        let gone = nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH)
            .map_err(io::Error::from)
            .and_then(|()| std::fs::remove_file(path));
        if let Err(error) = gone {
            warn_removal(path, &error);
        }
    }

    /// The path of the handle itself.
    fn proc_path(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// What tells one namespace from another: the inode of its file.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(File::from(self.file.try_clone()?).metadata()?.ino())
    }

    /// Runs `work` on a thread of its own inside the namespace; a process it spawns starts there too.
    pub fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Result<R, NsError> {
        let ns = self.clone();
        on_thread(move || {
            setns(&ns.file, CloneFlags::CLONE_NEWNET).map_err(step("entering a network namespace"))?;
            Ok(work())
        })?
    }

    /// Like [`NetNs::run`], with a runtime for asynchronous calls such as netlink's.
    pub fn run_async<R, F>(&self, work: impl FnOnce() -> F + Send + 'static) -> Result<R, NsError>
    where
        R: Send + 'static,
        F: Future<Output = R>,
    {
        self.run(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map(|runtime| runtime.block_on(work())).map_err(step("starting a runtime"))
        })?
    }

    /// Runs `work`, which must not wait, on this very thread inside the namespace, and comes back. Meant for making sockets, which
    /// stay in the namespace they were made in. A thread that cannot come back must not go on, so the process ends then.
    pub fn within<R>(&self, home: &NetNs, work: impl FnOnce() -> R) -> Result<R, NsError> {
        setns(&self.file, CloneFlags::CLONE_NEWNET).map_err(step("entering a network namespace"))?;
        let result = work();
        if setns(&home.file, CloneFlags::CLONE_NEWNET).is_err() {
            std::process::abort();
        }
        Ok(result)
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn on_thread<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, NsError> {
    let thread = std::thread::Builder::new().name("netns".into()).stack_size(512 * 1024);
    thread.spawn(work).map_err(step("starting a thread"))?.join().map_err(|_| NsError::Lost)
}

/// Writes a network setting of the calling thread's namespace, e.g. `ipv4/ip_forward`.
pub fn sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = format!("/proc/sys/net/{name}");
    std::fs::write(&path, value).map_err(|e| io::Error::new(e.kind(), format!("{path}: {e}")))
}

fn warn_removal(path: &Path, error: &io::Error) {
    eprintln!("warning: {} could not be removed: {error}", path.display());
}
