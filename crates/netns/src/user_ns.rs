//! The start of a lab: namespaces of its own, without root where the kernel allows it.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use std::fs;
use std::io;
use std::path::Path;

/// Why the namespaces cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum IsolateError {
    /// The kernel forbids user namespaces to this user.
    #[error(
        "this machine does not allow unprivileged user namespaces ({setting}).\n  help: {cure}, or run the same command with sudo"
    )]
    Forbidden {
        /// The setting that forbids it.
        setting: String,
        /// What to set.
        cure: String,
    },
    /// A step failed.
    #[error("{step}: {source}")]
    Step {
        /// What was being done.
        step: &'static str,
        /// What happened.
        source: io::Error,
    },
}

fn step<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> IsolateError {
    move |source| IsolateError::Step { step, source: source.into() }
}

/// Puts this process, which must have one thread, into new user (unless root), mount and network namespaces, and its children
/// into a new process namespace.
pub fn isolate() -> Result<(), IsolateError> {
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    let mut flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWPID;
    if !uid.is_root() {
        flags |= CloneFlags::CLONE_NEWUSER;
    }
    unshare(flags).map_err(|error| match why_forbidden() {
        Some(forbidden) => forbidden,
        None if error == nix::errno::Errno::EPERM => IsolateError::Forbidden {
            setting: "no setting says so: a security module, or the container this runs in, does".to_owned(),
            cure: "start the container with --privileged, or without its seccomp profile".to_owned(),
        },
        None => IsolateError::Step { step: "making namespaces", source: error.into() },
    })?;
    if !uid.is_root() {
        fs::write("/proc/self/setgroups", "deny").map_err(step("/proc/self/setgroups"))?;
        fs::write("/proc/self/uid_map", format!("0 {uid} 1")).map_err(step("/proc/self/uid_map"))?;
        fs::write("/proc/self/gid_map", format!("0 {gid} 1")).map_err(step("/proc/self/gid_map"))?;
    }
    Ok(())
}

/// Settings that forbid user namespaces: file, value that forbids, cure.
const SETTINGS: [(&str, &str, &str); 3] = [
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
];

fn why_forbidden() -> Option<IsolateError> {
    SETTINGS.iter().find_map(|(file, forbids, cure)| {
        let value = fs::read_to_string(file).ok()?;
        let setting = format!("{} is {}", file.trim_start_matches("/proc/sys/").replace('/', "."), value.trim());
        (value.trim() == *forbids)
            .then(|| IsolateError::Forbidden { setting, cure: format!("allow them with `sudo sysctl -w {cure}`") })
    })
}

/// Asks the kernel to kill this process when its parent ends.
pub fn die_with_parent() -> io::Result<()> {
    Ok(prctl::set_pdeathsig(Some(Signal::SIGKILL))?)
}

/// In the new mount namespace: nothing that is mounted here is seen outside, `/proc` shows the new process namespace, and `scratch`
/// is an empty file system that ends with the namespace.
pub fn private_mounts(scratch: &Path) -> Result<(), IsolateError> {
    // Some systems let the namespace be made and then forbid everything in it.
    mounts(scratch).map_err(|error| if in_user_ns() { why_forbidden().unwrap_or(error) } else { error })
}

/// Whether this process's root is another user outside.
fn in_user_ns() -> bool {
    fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.split_whitespace().nth(1) != Some("0"))
}

fn mounts(scratch: &Path) -> Result<(), IsolateError> {
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).map_err(step("making mounts private"))?;
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), none).map_err(step("mounting /proc"))?;
    mount(Some("tmpfs"), scratch, Some("tmpfs"), MsFlags::empty(), Some("mode=0755"))
        .map_err(step("mounting a scratch file system"))
}
