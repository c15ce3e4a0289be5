//! A process's own HTTP port: small text answers, by method and path. One for all roles, so that none of them parses HTTP itself.

use crate::ready::Readiness;
use crate::tasks::Tasks;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::net::TcpListener;

pub use hyper::{Method, StatusCode};

/// Status and text of an answer.
pub type Answer = (StatusCode, String);

/// Serves `answer` on `listener` until the tasks stop.
pub fn serve(listener: TcpListener, tasks: &Tasks, answer: impl Fn(&Method, &str) -> Answer + Send + Sync + 'static) {
    let (owner, answer) = (tasks.clone(), Arc::new(answer));
    tasks.spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let answer = answer.clone();
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let (status, body) = answer(request.method(), request.uri().path());
                let mut response = Response::new(Full::new(Bytes::from(body)));
                *response.status_mut() = status;
                async move { Ok::<_, Infallible>(response) }
            });
            owner.spawn(async move {
                let io = hyper_util::rt::TokioIo::new(stream);
                if let Err(error) = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await {
                    tracing::debug!(%error, "admin connection failed");
                }
            });
        }
    });
}

/// The answer about readiness: 200, or 503 with what is waited for.
pub fn readiness(ready: &Readiness) -> Answer {
    let pending = ready.pending();
    if pending.is_empty() {
        (StatusCode::OK, "ready\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for: {}\n", pending.join(", ")))
    }
}
