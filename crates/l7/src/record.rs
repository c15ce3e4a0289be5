//! The record of a request: filled as it goes, written once as metrics, access log and span.

use crate::access::Access;
use crate::reason::Reason;
use crate::settings::AccessLog;
use crate::trace::{Context, Span, Tracer};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use serde_json::json;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Instant, SystemTime};
use trysail_api::ids::{ServiceKey, SpiffeId, WorkloadUid};
use trysail_base::metrics::Metrics;
use trysail_mesh::{Service, Workload};

/// Who reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label's values")]
#[expect(missing_docs, reason = "Istio's names")]
pub enum Reporter {
    source,
    destination,
    waypoint,
}

/// Istio's labels of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
#[expect(missing_docs, reason = "Istio's names")]
pub struct Labels {
    pub reporter: Reporter,
    pub source_workload: String,
    pub source_canonical_service: String,
    pub source_canonical_revision: String,
    pub source_workload_namespace: String,
    pub source_principal: String,
    pub source_app: String,
    pub source_version: String,
    pub source_cluster: String,
    pub destination_workload: String,
    pub destination_workload_namespace: String,
    pub destination_principal: String,
    pub destination_app: String,
    pub destination_version: String,
    pub destination_service: String,
    pub destination_canonical_service: String,
    pub destination_canonical_revision: String,
    pub destination_service_name: String,
    pub destination_service_namespace: String,
    pub destination_cluster: String,
    pub request_protocol: &'static str,
    pub response_code: u16,
    pub grpc_response_status: String,
    pub response_flags: &'static str,
    pub connection_security_policy: &'static str,
}

/// The metrics of requests.
#[derive(Clone)]
pub struct RequestMetrics {
    requests: Family<Labels, Counter>,
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    request_bytes: Family<Labels, Histogram, fn() -> Histogram>,
    response_bytes: Family<Labels, Histogram, fn() -> Histogram>,
    retries: Family<Again, Counter>,
    /// The series of label sets that were met, so that a request makes none of its own.
    met: Arc<RwLock<HashMap<SeriesKey, Arc<Series>>>>,
}

/// Series that are remembered; beyond that they are looked up by their labels again.
const MET: usize = 10_000;

/// What a label set is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SeriesKey {
    reporter: Reporter,
    ends: (Option<WorkloadUid>, Option<WorkloadUid>),
    identities: (Option<SpiffeId>, Option<SpiffeId>),
    service: Option<ServiceKey>,
    outcome: (u16, Reason, bool, bool),
    grpc_status: Option<String>,
}

/// The metrics of one label set.
struct Series {
    requests: Counter,
    durations: Histogram,
    request_bytes: Histogram,
    response_bytes: Histogram,
}

/// Why a request was tried again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Again {
    /// The reason of the try that failed.
    pub reason: &'static str,
    /// Whether it was proven that nothing had arrived.
    pub undelivered: &'static str,
}

fn milliseconds() -> Histogram {
    Histogram::new([
        0.5, 1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0, 30000.0, 60000.0,
    ])
}

fn bytes() -> Histogram {
    Histogram::new([0.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9])
}

impl RequestMetrics {
    /// Registers the families.
    pub fn new(metrics: &Metrics) -> Self {
        let own = Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(milliseconds as fn() -> Histogram),
            request_bytes: Family::new_with_constructor(bytes as fn() -> Histogram),
            response_bytes: Family::new_with_constructor(bytes as fn() -> Histogram),
            retries: Family::default(),
            met: Arc::default(),
        };
        metrics.register(|r| {
            r.register("istio_requests", "Requests", own.requests.clone());
            r.register(
                "istio_request_duration_milliseconds",
                "Duration of requests, milliseconds",
                own.durations.clone(),
            );
            r.register("istio_request_bytes", "Size of requests' bodies, bytes", own.request_bytes.clone());
            r.register("istio_response_bytes", "Size of responses' bodies, bytes", own.response_bytes.clone());
            r.register("trysail_retries", "Requests that were tried again, by reason", own.retries.clone());
        });
        own
    }

    fn series(&self, key: SeriesKey, labels: impl FnOnce() -> Labels) -> Arc<Series> {
        if let Some(series) = self.met.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return series.clone();
        }
        let labels = labels();
        let series = Arc::new(Series {
            requests: self.requests.get_or_create(&labels).clone(),
            durations: self.durations.get_or_create(&labels).clone(),
            request_bytes: self.request_bytes.get_or_create(&labels).clone(),
            response_bytes: self.response_bytes.get_or_create(&labels).clone(),
        });
        let mut met = self.met.write().unwrap_or_else(PoisonError::into_inner);
        if met.len() >= MET {
            met.clear();
        }
        met.insert(key, series.clone());
        series
    }

    /// Counts a try.
    pub fn retried(&self, reason: Reason, undelivered: bool) {
        let undelivered = if undelivered { "proven" } else { "unknown" };
        self.retries.get_or_create(&Again { reason: reason.as_str(), undelivered }).inc();
    }
}

/// Where records go.
#[derive(Clone)]
pub struct Sinks {
    /// Metrics.
    pub metrics: RequestMetrics,
    /// Access log.
    pub access: Access,
    /// Which requests are logged.
    pub logged: AccessLog,
    /// Spans.
    pub tracer: Tracer,
}

/// One end of a request.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// Its record.
    pub workload: Option<Arc<Workload>>,
    /// Its identity, as it was proven.
    pub identity: Option<SpiffeId>,
}

/// The record.
pub struct Record {
    sinks: Arc<Sinks>,
    began: Instant,
    started: SystemTime,
    reporter: Reporter,
    done: bool,
    /// Method.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Authority.
    pub authority: String,
    /// `HTTP/1.1` and so on.
    pub protocol: &'static str,
    /// gRPC.
    pub grpc: bool,
    /// Id of the request.
    pub request_id: String,
    /// Caller.
    pub source: End,
    /// Its address.
    pub peer: Option<SocketAddr>,
    /// Called.
    pub destination: End,
    /// The service that was called.
    pub service: Option<Arc<Service>>,
    /// The connection to or from the mesh peer is mutual TLS.
    pub mutual: bool,
    /// Endpoint.
    pub upstream: Option<SocketAddr>,
    /// Route.
    pub route: String,
    /// Tries.
    pub attempts: u32,
    /// Status of the answer.
    pub status: u16,
    /// gRPC status of the answer.
    pub grpc_status: Option<String>,
    /// Why it was refused or failed.
    pub reason: Reason,
    /// More on that.
    pub detail: String,
    /// Policies that matched without effect.
    pub noted: Vec<String>,
    /// Bytes of the request's body.
    pub received: u64,
    /// Bytes of the answer's body.
    pub sent: u64,
    /// Trace.
    pub trace: Option<Context>,
}

impl Record {
    /// A request begins.
    pub fn begin(sinks: &Arc<Sinks>, reporter: Reporter) -> Self {
        Self {
            sinks: sinks.clone(),
            began: Instant::now(),
            started: SystemTime::now(),
            reporter,
            done: false,
            method: String::new(),
            path: String::new(),
            authority: String::new(),
            protocol: "",
            grpc: false,
            request_id: String::new(),
            source: End::default(),
            peer: None,
            destination: End::default(),
            service: None,
            mutual: false,
            upstream: None,
            route: String::new(),
            attempts: 0,
            status: 0,
            grpc_status: None,
            reason: Reason::None,
            detail: String::new(),
            noted: Vec::new(),
            received: 0,
            sent: 0,
            trace: None,
        }
    }

    /// A record that is never written, for a request that was written before.
    pub fn silent(sinks: &Arc<Sinks>, reporter: Reporter) -> Self {
        let mut record = Self::begin(sinks, reporter);
        record.done = true;
        record
    }

    /// Whether this hop reports for the caller's side.
    pub fn is_source(&self) -> bool {
        self.reporter == Reporter::source
    }

    /// It failed, or was refused.
    pub fn failed(&mut self, reason: Reason, detail: impl Into<String>) {
        self.reason = reason;
        self.detail = detail.into();
    }

    /// Writes the record.
    pub fn finish(mut self) {
        self.write();
    }

    fn write(&mut self) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let elapsed = self.began.elapsed();
        let series = self.sinks.metrics.series(self.key(), || self.labels());
        series.requests.inc();
        series.durations.observe(elapsed.as_secs_f64() * 1000.0);
        series.request_bytes.observe(self.received as f64);
        series.response_bytes.observe(self.sent as f64);
        let wanted = match self.sinks.logged {
            AccessLog::All => true,
            AccessLog::Failures => self.reason != Reason::None || !self.noted.is_empty(),
            AccessLog::Off => false,
        };
        if wanted && self.sinks.access.is_on() {
            self.sinks.access.write(self.line(&self.labels(), elapsed));
        }
        if let Some(context) = self.trace.take().filter(|c| c.sampled && self.sinks.tracer.is_on()) {
            self.sinks.tracer.finish(self.span(context, &self.labels(), elapsed));
        }
    }

    /// What the labels depend on, cheaper to make than they are.
    fn key(&self) -> SeriesKey {
        let uid = |end: &End| end.workload.as_ref().map(|w| w.uid.clone());
        SeriesKey {
            reporter: self.reporter,
            ends: (uid(&self.source), uid(&self.destination)),
            identities: (self.source.identity.clone(), self.destination.identity.clone()),
            service: self.service.as_ref().map(|s| s.key.clone()),
            outcome: (self.status, self.reason, self.grpc, self.mutual),
            grpc_status: self.grpc_status.clone(),
        }
    }

    fn labels(&self) -> Labels {
        let unknown = || "unknown".to_owned();
        let of =
            |end: &End, get: fn(&Workload) -> &String| end.workload.as_ref().map_or_else(unknown, |w| get(w).clone());
        let principal = |end: &End| end.identity.as_ref().map_or_else(unknown, ToString::to_string);
        let service = self.service.as_deref();
        let (s, d) = (&self.source, &self.destination);
        let app = |end: &End| of(end, |w| &w.canonical_name);
        let revision = |end: &End| of(end, |w| &w.canonical_revision);
        Labels {
            reporter: self.reporter,
            source_workload: of(s, |w| &w.owner),
            source_canonical_service: app(s),
            source_canonical_revision: revision(s),
            source_workload_namespace: of(s, |w| &w.namespace),
            source_principal: principal(s),
            source_app: app(s),
            source_version: revision(s),
            source_cluster: of(s, |w| &w.cluster),
            destination_workload: of(d, |w| &w.owner),
            destination_workload_namespace: of(d, |w| &w.namespace),
            destination_principal: principal(d),
            destination_app: app(d),
            destination_version: revision(d),
            destination_service: service.map_or_else(unknown, |s| s.hostname.clone()),
            destination_canonical_service: app(d),
            destination_canonical_revision: revision(d),
            destination_service_name: service.map_or_else(unknown, |s| s.name.clone()),
            destination_service_namespace: service.map_or_else(unknown, |s| s.namespace.clone()),
            destination_cluster: of(d, |w| &w.cluster),
            request_protocol: if self.grpc { "grpc" } else { "http" },
            response_code: self.status,
            grpc_response_status: self.grpc_status.clone().unwrap_or_default(),
            response_flags: self.reason.as_str(),
            connection_security_policy: if self.mutual { "mutual_tls" } else { "none" },
        }
    }

    fn line(&self, l: &Labels, elapsed: std::time::Duration) -> serde_json::Value {
        let time = jiff::Timestamp::try_from(self.started).map(|t| t.to_string()).unwrap_or_default();
        json!({
            "start_time": time,
            "reporter": format!("{:?}", l.reporter),
            "method": self.method,
            "path": self.path,
            "authority": self.authority,
            "protocol": self.protocol,
            "response_code": self.status,
            "grpc_status": self.grpc_status,
            "reason": self.reason.as_str(),
            "detail": self.detail,
            "noted": self.noted,
            "bytes_received": self.received,
            "bytes_sent": self.sent,
            "duration_ms": elapsed.as_secs_f64() * 1000.0,
            "attempts": self.attempts,
            "request_id": self.request_id,
            "downstream_remote_address": self.peer.map(|p| p.to_string()),
            "upstream_host": self.upstream.map(|u| u.to_string()),
            "route_name": self.route,
            "source_workload": l.source_workload,
            "source_namespace": l.source_workload_namespace,
            "source_principal": l.source_principal,
            "destination_workload": l.destination_workload,
            "destination_namespace": l.destination_workload_namespace,
            "destination_principal": l.destination_principal,
            "destination_service": l.destination_service,
            "trace_id": self.trace.as_ref().map(|t| t.trace.clone()),
        })
    }

    fn span(&self, context: Context, l: &Labels, elapsed: std::time::Duration) -> Span {
        Span {
            context,
            name: format!("{}:{}", l.destination_service, self.method),
            server: self.reporter != Reporter::source,
            start: self.started,
            length: elapsed,
            attributes: vec![
                ("http.request.method", self.method.clone()),
                ("url.path", self.path.clone()),
                ("server.address", self.authority.clone()),
                ("http.response.status_code", self.status.to_string()),
                ("trysail.reason", self.reason.as_str().to_owned()),
                ("trysail.route", self.route.clone()),
                ("source.workload", l.source_workload.clone()),
                ("destination.workload", l.destination_workload.clone()),
                ("request.id", self.request_id.clone()),
            ],
            error: self.status >= 500 || self.reason != Reason::None,
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.done {
            // Whoever waited for the answer is gone.
            if self.reason == Reason::None {
                self.reason = Reason::ClientGone;
            }
            self.write();
        }
    }
}
