//! The one record of a connection. Metrics and access log are written from it, once, and nowhere else.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use trysail_api::ids::SpiffeId;
use trysail_base::log::chain;
use trysail_base::metrics::Metrics;
use trysail_base::relay::Moved;
use trysail_mesh::{Service, Workload};

/// Which end's proxy reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the values are Istio's")]
#[expect(missing_docs, reason = "the values are Istio's")]
pub enum Reporter {
    source,
    destination,
}

/// Whether the connection was mutual TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the values are Istio's")]
#[expect(missing_docs, reason = "the values are Istio's")]
pub enum Security {
    mutual_tls,
    unknown,
}

/// Istio's label set of TCP metrics.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
#[expect(missing_docs, reason = "the labels are Istio's")]
pub struct Labels {
    pub reporter: Reporter,
    pub source_workload: Arc<str>,
    pub source_canonical_service: Arc<str>,
    pub source_canonical_revision: Arc<str>,
    pub source_workload_namespace: Arc<str>,
    pub source_principal: Arc<str>,
    pub source_app: Arc<str>,
    pub source_version: Arc<str>,
    pub source_cluster: Arc<str>,
    pub destination_service: Arc<str>,
    pub destination_service_namespace: Arc<str>,
    pub destination_service_name: Arc<str>,
    pub destination_workload: Arc<str>,
    pub destination_canonical_service: Arc<str>,
    pub destination_canonical_revision: Arc<str>,
    pub destination_workload_namespace: Arc<str>,
    pub destination_principal: Arc<str>,
    pub destination_app: Arc<str>,
    pub destination_version: Arc<str>,
    pub destination_cluster: Arc<str>,
    pub request_protocol: &'static str,
    pub response_flags: &'static str,
    pub connection_security_policy: Security,
}

/// Istio's TCP metrics.
#[derive(Clone, Default)]
pub struct FlowMetrics {
    opened: Family<Labels, Counter>,
    closed: Family<Labels, Counter>,
    failed: Family<Labels, Counter>,
    sent: Family<Labels, Counter>,
    received: Family<Labels, Counter>,
}

impl FlowMetrics {
    /// Registers them.
    pub fn new(metrics: &Metrics) -> Self {
        let own = Self::default();
        metrics.register(|r| {
            r.register("istio_tcp_connections_opened", "Connections opened", own.opened.clone());
            r.register("istio_tcp_connections_closed", "Connections closed", own.closed.clone());
            r.register(
                "istio_tcp_connections_failed",
                "Connections that could not be opened or were refused",
                own.failed.clone(),
            );
            r.register("istio_tcp_sent_bytes", "Bytes of responses", own.sent.clone());
            r.register("istio_tcp_received_bytes", "Bytes of requests", own.received.clone());
        });
        own
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Default)]
pub struct End<'a> {
    /// Its record.
    pub workload: Option<&'a Workload>,
    /// Its identity as it was proven; `None` for plaintext.
    pub identity: Option<&'a SpiffeId>,
}

fn labels_of(reporter: Reporter, source: End<'_>, destination: End<'_>, service: Option<&Service>) -> Labels {
    let unknown: Arc<str> = "unknown".into();
    let text = |value: &str| -> Arc<str> { if value.is_empty() { unknown.clone() } else { value.into() } };
    let of = |end: End<'_>, get: fn(&Workload) -> &str| end.workload.map_or_else(|| unknown.clone(), |w| text(get(w)));
    let principal = |end: End<'_>| end.identity.map_or_else(|| unknown.clone(), |id| id.to_string().into());
    let called = |get: fn(&Service) -> &str| service.map_or_else(|| unknown.clone(), |s| text(get(s)));
    let tls = source.identity.is_some() && destination.identity.is_some();
    Labels {
        reporter,
        source_workload: of(source, |w| &w.owner),
        source_canonical_service: of(source, |w| &w.canonical_name),
        source_canonical_revision: of(source, |w| &w.canonical_revision),
        source_workload_namespace: of(source, |w| &w.namespace),
        source_principal: principal(source),
        source_app: of(source, |w| &w.canonical_name),
        source_version: of(source, |w| &w.canonical_revision),
        source_cluster: of(source, |w| &w.cluster),
        destination_service: called(|s| &s.hostname),
        destination_service_namespace: called(|s| &s.namespace),
        destination_service_name: called(|s| &s.name),
        destination_workload: of(destination, |w| &w.owner),
        destination_canonical_service: of(destination, |w| &w.canonical_name),
        destination_canonical_revision: of(destination, |w| &w.canonical_revision),
        destination_workload_namespace: of(destination, |w| &w.namespace),
        destination_principal: principal(destination),
        destination_app: of(destination, |w| &w.canonical_name),
        destination_version: of(destination, |w| &w.canonical_revision),
        destination_cluster: of(destination, |w| &w.cluster),
        request_protocol: "tcp",
        response_flags: "-",
        connection_security_policy: if tls { Security::mutual_tls } else { Security::unknown },
    }
}

/// The record. [`Record::finish`] is called once; a record that is dropped instead was aborted, and is written as such.
#[must_use]
pub struct Record {
    metrics: FlowMetrics,
    labels: Labels,
    reporter: Reporter,
    peer: SocketAddr,
    target: SocketAddr,
    tunnel: Option<SocketAddr>,
    started: Instant,
    opened: bool,
    done: bool,
    moved: Arc<Moved>,
}

/// How a connection ended.
pub enum Outcome<'a> {
    /// Both directions ended in order.
    Complete,
    /// It failed or was refused.
    Failed(&'a dyn std::error::Error),
    /// It was ended from here.
    Stopped(&'static str),
}

impl Record {
    /// The record of a connection that begins.
    pub fn begin(metrics: &FlowMetrics, reporter: Reporter, peer: SocketAddr, target: SocketAddr) -> Self {
        Self {
            metrics: metrics.clone(),
            labels: labels_of(reporter, End::default(), End::default(), None),
            reporter,
            peer,
            target,
            tunnel: None,
            started: Instant::now(),
            opened: false,
            done: false,
            moved: Arc::default(),
        }
    }

    /// Who talks to whom, as it is known now.
    pub fn describe(&mut self, source: End<'_>, destination: End<'_>, service: Option<&Service>) {
        self.labels = labels_of(self.reporter, source, destination, service);
    }

    /// The application's address and the tunnel's, as they were chosen.
    pub fn chosen(&mut self, target: SocketAddr, tunnel: Option<SocketAddr>) {
        self.target = target;
        self.tunnel = tunnel;
    }

    /// The connection is open; the label set stays from now on.
    pub fn opened(&mut self) -> Arc<Moved> {
        self.opened = true;
        self.metrics.opened.get_or_create(&self.labels).inc();
        self.moved.clone()
    }

    /// Writes the record.
    pub fn finish(mut self, outcome: &Outcome<'_>) {
        self.write(outcome);
    }

    fn write(&mut self, outcome: &Outcome<'_>) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let received = self.moved.forward.load(Ordering::Relaxed);
        let sent = self.moved.back.load(Ordering::Relaxed);
        if self.opened {
            self.metrics.closed.get_or_create(&self.labels).inc();
            self.metrics.received.get_or_create(&self.labels).inc_by(received);
            self.metrics.sent.get_or_create(&self.labels).inc_by(sent);
        } else {
            self.metrics.failed.get_or_create(&self.labels).inc();
        }
        let l = &self.labels;
        let (message, error) = match outcome {
            Outcome::Complete => ("connection complete", None),
            Outcome::Failed(error) => ("connection failed", Some(chain(*error))),
            Outcome::Stopped(why) => ("connection complete", Some((*why).to_owned())),
        };
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    target: "access",
                    {
                    src.addr = %self.peer,
                    src.workload = &*l.source_workload,
                    src.namespace = &*l.source_workload_namespace,
                    src.identity = &*l.source_principal,
                    dst.addr = %self.target,
                    dst.hbone_addr = self.tunnel.map(tracing::field::display),
                    dst.service = &*l.destination_service,
                    dst.workload = &*l.destination_workload,
                    dst.namespace = &*l.destination_workload_namespace,
                    dst.identity = &*l.destination_principal,
                    direction = if self.reporter == Reporter::source { "outbound" } else { "inbound" },
                    bytes_sent = sent,
                    bytes_recv = received,
                    duration = format!("{}ms", self.started.elapsed().as_millis()),
                    error
                    },
                    "{message}"
                )
            };
        }
        if matches!(outcome, Outcome::Failed(_)) { log!(warn) } else { log!(info) }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.write(&Outcome::Stopped("aborted"));
    }
}
