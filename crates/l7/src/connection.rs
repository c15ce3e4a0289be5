//! A connection on which requests come: who is at its other end, what it leads to, and the HTTP server on it.

use crate::exchange::serve;
use crate::framing::{FIELD_LIMIT, HEAD_LIMIT};
use crate::gate::{Gate, Verdicts};
use crate::proxy::Proxy;
use crate::record::End;
use http::Request;
use hyper::body::Incoming;
use hyper::rt::Executor as HyperExecutor;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use trysail_api::ids::{ServiceKey, WorkloadUid};
use trysail_base::tasks::Tasks;
use trysail_policy::authz::Facts;

/// Runs hyper's tasks as owned ones.
#[derive(Clone)]
pub struct Executor(pub Tasks);

impl<F> HyperExecutor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.track(async move { drop(future.await) });
    }
}

/// What requests of a connection are for.
#[derive(Clone, Debug)]
pub enum Hop {
    /// The application in the own pod.
    App {
        /// Where it listens.
        address: SocketAddr,
    },
    /// A service, from the pod's own application.
    Outbound {
        /// The service.
        service: ServiceKey,
    },
    /// A service that this waypoint serves.
    Waypoint {
        /// The service.
        service: ServiceKey,
    },
    /// A workload that this waypoint serves, by its address.
    WaypointWorkload {
        /// The workload.
        uid: WorkloadUid,
        /// Its address.
        address: SocketAddr,
    },
    /// A listener of this gateway.
    Listener,
}

impl Hop {
    /// Whether policies act here.
    pub fn enforces(&self) -> bool {
        !matches!(self, Self::Outbound { .. })
    }
}

/// The connection.
pub struct Downstream {
    /// The process.
    pub proxy: Arc<Proxy>,
    /// What its requests are for.
    pub hop: Hop,
    /// Its other end.
    pub peer: SocketAddr,
    /// The caller, as it was proven.
    pub source: End,
    /// What policies rest on.
    pub facts: Facts,
    /// The port that was called.
    pub port: u16,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// Server name of its TLS handshake.
    pub sni: Option<String>,
    /// Mutual TLS with a mesh peer.
    pub mutual: bool,
}

/// Serves HTTP on `io` until it ends; `http2`: with prior knowledge or as was agreed.
pub async fn run<T>(downstream: Arc<Downstream>, io: T, http2: bool)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let outcome = if http2 { two(downstream, io).await } else { one(downstream, io).await };
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection failed");
    }
}

async fn one<T>(downstream: Arc<Downstream>, io: T) -> Result<(), hyper::Error>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let verdicts = Arc::new(Verdicts::default());
    let gate = Gate::new(io, verdicts.clone());
    let drain = downstream.proxy.drain.clone();
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (downstream, verdicts) = (downstream.clone(), verdicts.clone());
        async move { Ok::<_, Infallible>(serve(downstream, request, Some(&*verdicts)).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .max_headers(FIELD_LIMIT)
        .max_buf_size(HEAD_LIMIT + (16 << 10))
        .half_close(true)
        .serve_connection(TokioIo::new(gate), service)
        .with_upgrades();
    tokio::pin!(connection);
    tokio::select! {
        end = connection.as_mut() => return end,
        () = drain.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

async fn two<T>(downstream: Arc<Downstream>, io: T) -> Result<(), hyper::Error>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (drain, tasks) = (downstream.proxy.drain.clone(), downstream.proxy.connections.clone());
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let downstream = downstream.clone();
        async move { Ok::<_, Infallible>(serve(downstream, request, None).await) }
    });
    let connection = hyper::server::conn::http2::Builder::new(Executor(tasks))
        .timer(TokioTimer::new())
        .max_concurrent_streams(250)
        .max_header_list_size(HEAD_LIMIT as u32)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .keep_alive_timeout(Duration::from_secs(20))
        .enable_connect_protocol()
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(connection);
    tokio::select! {
        end = connection.as_mut() => return end,
        () = drain.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}
