//! The mesh's own processes in the lab: started, watched, started again, stopped and started on request.

use crate::spawn::Output;
use std::process::{Command as StdCommand, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use trysail_base::tasks::Tasks;
use trysail_netns::ns::NetNs;

/// Pause before a process that ended by itself is started again.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a process may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A process as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessView {
    /// Its pid, while it runs.
    pub pid: Option<u32>,
    /// Times it was started.
    pub starts: u32,
}

/// A process of the mesh.
#[derive(Clone)]
pub struct Process {
    /// Its name, e.g. `proxy-node-1`.
    pub name: String,
    /// Its role in accounting.
    pub role: &'static str,
    /// Its output.
    pub output: Output,
    wanted: watch::Sender<bool>,
    view: watch::Receiver<ProcessView>,
}

impl Process {
    /// Starts the command that `make` makes, inside `ns`, and keeps it running.
    pub fn start(
        (name, role): (&str, &'static str),
        ns: NetNs,
        make: impl Fn() -> StdCommand + Send + Sync + 'static,
        tasks: &Tasks,
    ) -> Self {
        let (wanted, wants) = watch::channel(true);
        let (sender, view) = watch::channel(ProcessView::default());
        let output = Output::default();
        let process = Self { name: name.to_owned(), role, output: output.clone(), wanted, view };
        tasks.spawn(keep(
            Keeper { name: name.to_owned(), ns, make: Arc::new(make), output, tasks: tasks.clone() },
            wants,
            sender,
        ));
        process
    }

    /// As it is now.
    pub fn view(&self) -> ProcessView {
        self.view.borrow().clone()
    }

    /// Wants it running or not, and waits until it is so.
    pub async fn want(&self, running: bool) {
        self.wanted.send_replace(running);
        let mut view = self.view.clone();
        if view.wait_for(|v| v.pid.is_some() == running).await.is_err() {
            tracing::debug!(process = self.name, "its keeper is gone");
        }
    }
}

struct Keeper {
    name: String,
    ns: NetNs,
    make: Arc<dyn Fn() -> StdCommand + Send + Sync>,
    output: Output,
    tasks: Tasks,
}

impl Keeper {
    fn spawn(&self) -> std::io::Result<Child> {
        let make = self.make.clone();
        let runtime = tokio::runtime::Handle::current();
        let spawned = self.ns.run(move || {
            let _runtime = runtime.enter();
            let mut command = Command::from(make());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        });
        let mut child = spawned.map_err(std::io::Error::other)??;
        if let Some(stream) = child.stdout.take() {
            self.output.follow(stream, &self.tasks);
        }
        if let Some(stream) = child.stderr.take() {
            self.output.follow(stream, &self.tasks);
        }
        Ok(child)
    }
}

async fn keep(keeper: Keeper, mut wants: watch::Receiver<bool>, view: watch::Sender<ProcessView>) {
    loop {
        if wants.wait_for(|wanted| *wanted).await.is_err() {
            return;
        }
        let mut child = match keeper.spawn() {
            Ok(child) => child,
            Err(error) => {
                tracing::error!(process = keeper.name, %error, "a process of the mesh cannot be started");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let pid = child.id();
        view.send_modify(|v| {
            v.pid = pid;
            v.starts += 1;
        });
        let stopped = tokio::select! {
            status = child.wait() => {
                tracing::warn!(process = keeper.name, ?status, "a process of the mesh ended and is started again");
                false
            }
            _ = wants.wait_for(|wanted| !*wanted) => true,
        };
        if stopped {
            crate::kubelet::container::stop_process(&mut child, STOP_LIMIT).await;
        }
        view.send_modify(|v| v.pid = None);
        if !stopped {
            tokio::time::sleep(PAUSE).await;
        }
    }
}
