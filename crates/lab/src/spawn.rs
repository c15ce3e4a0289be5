//! Processes: of pods, in their namespaces and view; of the mesh, as this binary in a role.

use crate::images::Program;
use crate::rootfs::{self, View};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command as StdCommand, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use trysail_base::tasks::Tasks;
use trysail_netns::ns::NetNs;

/// The most output that is kept of one container, bytes.
const KEPT: usize = 1 << 20;

/// A container's output: the newest part of it, and how much came before.
#[derive(Clone, Default)]
pub struct Output(Arc<Mutex<Ring>>);

#[derive(Default)]
struct Ring {
    bytes: VecDeque<u8>,
    dropped: u64,
}

impl Output {
    /// Adds bytes.
    pub fn push(&self, bytes: &[u8]) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.bytes.extend(bytes);
        let over = ring.bytes.len().saturating_sub(KEPT);
        ring.bytes.drain(..over);
        ring.dropped += over as u64;
    }

    /// What came after `offset`, and the offset of its end.
    pub fn since(&self, offset: u64) -> (Vec<u8>, u64) {
        let ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = usize::try_from(offset.saturating_sub(ring.dropped)).unwrap_or(usize::MAX);
        let bytes: Vec<u8> = ring.bytes.iter().skip(skip).copied().collect();
        (bytes, ring.dropped + ring.bytes.len() as u64)
    }

    /// Bytes that are kept now.
    pub fn held(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).bytes.len() as u64
    }

    /// Collects what a stream brings.
    pub fn follow(&self, mut stream: impl AsyncRead + Unpin + Send + 'static, tasks: &Tasks) {
        let own = self.clone();
        tasks.spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                own.push(buffer.get(..length).unwrap_or_default());
            }
        });
    }
}

/// What to start in a pod.
#[derive(Clone)]
pub struct Start {
    /// The program.
    pub program: Program,
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// Working directory; `/` when none.
    pub dir: Option<PathBuf>,
}

impl Start {
    fn command(&self) -> StdCommand {
        let mut command = StdCommand::new(&self.program.path);
        command.arg0(&self.program.arg0).args(&self.program.args).env_clear().envs(&self.env).process_group(0);
        command.current_dir(self.dir.as_deref().unwrap_or(std::path::Path::new("/")));
        command
    }
}

/// Starts a container: a new view in the pod's network namespace. Its output is piped.
pub fn container(ns: &NetNs, view: View, start: &Start) -> io::Result<Child> {
    let mut command = start.command();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    in_pod(ns, command, move || rootfs::enter(&view))
}

/// Starts a further process beside a container's process `pid`, with the given streams.
pub fn beside(ns: &NetNs, pid: u32, start: &Start, streams: [Stdio; 3]) -> io::Result<Child> {
    let [stdin, stdout, stderr] = streams;
    let mut command = start.command();
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    in_pod(ns, command, move || {
        let mounts = File::open(format!("/proc/{pid}/ns/mnt"))?;
        unshare(CloneFlags::CLONE_FS)?;
        Ok(setns(mounts, CloneFlags::CLONE_NEWNS)?)
    })
}

fn in_pod(
    ns: &NetNs,
    command: StdCommand,
    enter: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<Child> {
    let runtime = tokio::runtime::Handle::current();
    let spawned = ns.run(move || {
        enter()?;
        let _runtime = runtime.enter();
        Command::from(command).spawn()
    });
    spawned.map_err(io::Error::other)?
}

/// Signals a container's whole process group.
pub fn signal(pid: u32, signal: Signal) {
    let Ok(raw) = i32::try_from(pid) else { return };
    if let Err(error) = killpg(Pid::from_raw(raw), signal)
        && error != nix::errno::Errno::ESRCH
    {
        tracing::warn!(pid, %error, "a process could not be signalled");
    }
}

/// Kills every process that is in the network namespace with inode `inode`.
pub fn kill_inside(inode: u64) {
    use std::os::unix::fs::MetadataExt;
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        if std::fs::metadata(entry.path().join("ns/net")).is_ok_and(|m| m.ino() == inode)
            && let Err(error) = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL)
        {
            tracing::debug!(pid, %error, "a left-over process could not be killed");
        }
    }
}
