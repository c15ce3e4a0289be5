//! Probes, made from the node as the kubelet makes them.

use super::context::{Context, port};
use crate::spawn;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;
use trysail_api::k8s_openapi::api::core::v1::{Container, ExecAction, HTTPGetAction, Probe};
use trysail_netns::socket::connect_in;

/// What is tried.
pub struct Check<'a> {
    /// The pod.
    pub context: &'a Context,
    /// The container.
    pub container: &'a Container,
    /// The container's process.
    pub pid: u32,
}

fn seconds(given: Option<i32>, default: u64) -> Duration {
    Duration::from_secs(given.and_then(|s| u64::try_from(s).ok()).unwrap_or(default))
}

fn count(given: Option<i32>, default: u32) -> u32 {
    given.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0).unwrap_or(default)
}

impl Check<'_> {
    /// Runs the container's probes for ever; returns when it must be restarted, with the reason. `ready` hears of each change.
    pub async fn watch(&self, ready: impl Fn(bool) + Sync) -> String {
        let c = self.container;
        if let Some(probe) = &c.startup_probe
            && let Err(reason) = self.until_started(probe).await
        {
            return format!("startup probe failed: {reason}");
        }
        let readiness = async {
            match &c.readiness_probe {
                None => ready(true),
                Some(probe) => self.readiness(probe, &ready).await,
            }
            std::future::pending::<()>().await;
        };
        let liveness = async {
            match &c.liveness_probe {
                None => std::future::pending().await,
                Some(probe) => self.liveness(probe).await,
            }
        };
        tokio::select! {
            () = readiness => String::new(),
            reason = liveness => format!("liveness probe failed: {reason}"),
        }
    }

    async fn until_started(&self, probe: &Probe) -> Result<(), String> {
        tokio::time::sleep(seconds(probe.initial_delay_seconds, 0)).await;
        let mut failures = 0;
        while let Err(reason) = self.probe(probe).await {
            failures += 1;
            if failures >= count(probe.failure_threshold, 3) {
                return Err(reason);
            }
            tokio::time::sleep(seconds(probe.period_seconds, 10)).await;
        }
        Ok(())
    }

    async fn readiness(&self, probe: &Probe, ready: &(impl Fn(bool) + Sync)) {
        tokio::time::sleep(seconds(probe.initial_delay_seconds, 0)).await;
        let (mut is_ready, mut run) = (false, 0);
        loop {
            let passed = self.probe(probe).await.is_ok();
            run = if passed == is_ready { 0 } else { run + 1 };
            let needed = if passed { count(probe.success_threshold, 1) } else { count(probe.failure_threshold, 3) };
            if run >= needed {
                is_ready = passed;
                run = 0;
                ready(is_ready);
            }
            tokio::time::sleep(seconds(probe.period_seconds, 10)).await;
        }
    }

    async fn liveness(&self, probe: &Probe) -> String {
        tokio::time::sleep(seconds(probe.initial_delay_seconds, 0)).await;
        let mut failures = 0;
        loop {
            match self.probe(probe).await {
                Ok(()) => failures = 0,
                Err(reason) => {
                    failures += 1;
                    if failures >= count(probe.failure_threshold, 3) {
                        return reason;
                    }
                }
            }
            tokio::time::sleep(seconds(probe.period_seconds, 10)).await;
        }
    }

    async fn probe(&self, probe: &Probe) -> Result<(), String> {
        let limit = seconds(probe.timeout_seconds, 1);
        let work = async {
            if let Some(get) = &probe.http_get {
                self.http(get).await
            } else if let Some(tcp) = &probe.tcp_socket {
                let port = port(self.container, &tcp.port).ok_or("no such port")?;
                self.connect(port).await.map(drop)
            } else if let Some(exec) = &probe.exec {
                self.exec(exec).await
            } else {
                Err("the probe says neither httpGet, tcpSocket nor exec".to_owned())
            }
        };
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
    }

    async fn connect(&self, port: u16) -> Result<tokio::net::TcpStream, String> {
        connect_in(&self.context.node, SocketAddr::new(self.context.address.into(), port))
            .await
            .map_err(|e| e.to_string())
    }

    /// An HTTP request; any status from 200 to 399 is a success.
    pub async fn http(&self, get: &HTTPGetAction) -> Result<(), String> {
        let port = port(self.container, &get.port).ok_or("no such port")?;
        let headers: Vec<(String, String)> =
            get.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect();
        let to = SocketAddr::new(self.context.address.into(), port);
        let (status, _) =
            crate::http::get(&self.context.node, to, get.path.as_deref().unwrap_or("/"), &headers).await?;
        if (200..400).contains(&status) { Ok(()) } else { Err(format!("status {status}")) }
    }

    /// A command in the container; exit code 0 is a success.
    pub async fn exec(&self, exec: &ExecAction) -> Result<(), String> {
        let command = exec.command.clone().unwrap_or_default();
        let start = self.context.start_command(self.container, &command)?;
        let streams = [Stdio::null(), Stdio::null(), Stdio::null()];
        let mut child = spawn::beside(&self.context.ns, self.pid, &start, streams).map_err(|e| e.to_string())?;
        let status = child.wait().await.map_err(|e| e.to_string())?;
        if status.success() { Ok(()) } else { Err(status.to_string()) }
    }
}
