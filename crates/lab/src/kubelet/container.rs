//! One container: start, probes, restarts, orderly end.

use super::context::{ContainerView, Context};
use super::probes::Check;
use crate::spawn;
use nix::sys::signal::Signal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::Instant;
use trysail_api::k8s_openapi::api::core::v1::Container;
use trysail_base::tasks::Tasks;

/// First pause before a container is started again, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// Whether an ended container is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Whatever its exit code.
    Always,
    /// After a failure.
    OnFailure,
    /// Not.
    Never,
}

/// A container's task.
pub struct Task {
    /// The pod.
    pub context: Arc<Context>,
    /// The container.
    pub container: Container,
    /// Restart policy.
    pub restart: Restart,
    /// Set to the moment by which it must have ended.
    pub stop: watch::Receiver<Option<Instant>>,
    /// Hears of every change.
    pub report: watch::Sender<ContainerView>,
    /// The pod's tasks.
    pub tasks: Tasks,
}

enum Ended {
    Exit(Option<i32>),
    Unhealthy(String),
    Stop(Instant),
}

impl Task {
    /// Runs the container until it has ended for good; its last exit code.
    pub async fn run(mut self) -> Option<i32> {
        let mut starts: u32 = 0;
        loop {
            let code = match self.start() {
                Ok(mut child) => {
                    let pid = child.id();
                    self.report.send_modify(|v| {
                        v.pid = pid;
                        v.waiting.clear();
                    });
                    match self.while_running(&mut child, pid.unwrap_or_default()).await {
                        Ended::Exit(code) => code,
                        Ended::Unhealthy(reason) => {
                            tracing::info!(
                                pod = self.context.name(),
                                container = self.container.name,
                                reason,
                                "container is restarted"
                            );
                            let deadline = Instant::now() + Duration::from_secs(30);
                            self.end(&mut child, pid.unwrap_or_default(), deadline).await
                        }
                        Ended::Stop(deadline) => return self.end(&mut child, pid.unwrap_or_default(), deadline).await,
                    }
                }
                Err(error) => {
                    self.report.send_modify(|v| v.waiting = format!("CreateContainerError: {error}"));
                    Some(128)
                }
            };
            self.report.send_modify(|v| {
                v.pid = None;
                v.ready = false;
                v.exit = code;
            });
            let again = match self.restart {
                Restart::Always => true,
                Restart::OnFailure => code != Some(0),
                Restart::Never => false,
            };
            if !again {
                return code;
            }
            starts += 1;
            if !self.pause(starts).await {
                return code;
            }
            self.report.send_modify(|v| v.restarts += 1);
        }
    }

    /// Waits before the next start; false when the container is to end instead.
    async fn pause(&mut self, starts: u32) -> bool {
        let pause = if starts <= 1 {
            Duration::ZERO
        } else {
            BACKOFF.0.saturating_mul(1 << (starts - 2).min(5)).min(BACKOFF.1)
        };
        if !pause.is_zero() {
            // Why it could not be started at all says more.
            self.report.send_modify(|v| {
                if v.waiting.is_empty() {
                    "CrashLoopBackOff".clone_into(&mut v.waiting);
                }
            });
        }
        tokio::time::timeout(pause, self.stop.wait_for(Option::is_some)).await.is_err()
    }

    fn start(&self) -> Result<Child, String> {
        let start = self.context.start(&self.container)?;
        let view = self.context.view(&self.container, &start.program.path).map_err(|e| e.to_string())?;
        let mut child = spawn::container(&self.context.ns, view, &start)
            .map_err(|e| format!("{}: {e}", start.program.path.display()))?;
        if let Some(output) = self.context.outputs.get(&self.container.name) {
            if let Some(stdout) = child.stdout.take() {
                output.follow(stdout, &self.tasks);
            }
            if let Some(stderr) = child.stderr.take() {
                output.follow(stderr, &self.tasks);
            }
        }
        Ok(child)
    }

    async fn while_running(&mut self, child: &mut Child, pid: u32) -> Ended {
        let check = Check { context: &self.context, container: &self.container, pid };
        let report = Mutex::new(&self.report);
        let ready = |now: bool| {
            report.lock().unwrap_or_else(PoisonError::into_inner).send_modify(|v| v.ready = now);
        };
        let stop = async {
            match self.stop.wait_for(Option::is_some).await.as_deref() {
                Ok(Some(deadline)) => *deadline,
                _ => Instant::now(),
            }
        };
        tokio::select! {
            status = child.wait() => Ended::Exit(status.ok().and_then(|s| s.code())),
            reason = check.watch(ready) => Ended::Unhealthy(reason),
            deadline = stop => Ended::Stop(deadline),
        }
    }

    /// preStop, then SIGTERM, then SIGKILL at the deadline.
    async fn end(&self, child: &mut Child, pid: u32, deadline: Instant) -> Option<i32> {
        if let Some(hook) = self.container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref()) {
            let check = Check { context: &self.context, container: &self.container, pid };
            let run = async {
                if let Some(sleep) = &hook.sleep {
                    tokio::time::sleep(Duration::from_secs(sleep.seconds.try_into().unwrap_or(0))).await;
                    Ok(())
                } else if let Some(exec) = &hook.exec {
                    check.exec(exec).await
                } else if let Some(get) = &hook.http_get {
                    check.http(get).await
                } else {
                    Ok(())
                }
            };
            tokio::select! {
                result = tokio::time::timeout_at(deadline, run) => match result {
                    Ok(Err(reason)) => tracing::warn!(pod = self.context.name(), container = self.container.name, reason, "preStop failed"),
                    Err(_) => tracing::warn!(pod = self.context.name(), container = self.container.name, "preStop did not end in time"),
                    Ok(Ok(())) => {}
                },
                _ = child.wait() => {}
            }
        }
        let status = stop_by(child, pid, deadline).await;
        // Whatever the container's process has left behind of its group.
        spawn::signal(pid, Signal::SIGKILL);
        status.ok().and_then(|s| s.code())
    }
}

/// SIGTERM, and SIGKILL at the deadline; its exit status.
async fn stop_by(child: &mut Child, pid: u32, deadline: Instant) -> std::io::Result<std::process::ExitStatus> {
    spawn::signal(pid, Signal::SIGTERM);
    match tokio::time::timeout_at(deadline, child.wait()).await {
        Ok(status) => status,
        Err(_) => {
            spawn::signal(pid, Signal::SIGKILL);
            child.wait().await
        }
    }
}

/// Stops a process that leads its own group, within `limit`.
pub async fn stop_process(child: &mut Child, limit: Duration) {
    let Some(pid) = child.id() else { return };
    if let Err(error) = stop_by(child, pid, Instant::now() + limit).await {
        tracing::warn!(pid, %error, "a process could not be waited for");
    }
}
