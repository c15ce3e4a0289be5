//! The harness for requests that must not be executed twice: a server that acts on each order, and a collector that is told of each act
//! and counts them by the order's name.

use crate::client::{Connection, Template};
use crate::journal::REQUEST_ID;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use trysail_base::tasks::Tasks;

/// Names that the collector keeps apart; an order beyond them is refused, so that nothing is counted wrong.
const NAMES: usize = 1_000_000;

/// What the collector has been told.
#[derive(Clone, Default)]
pub struct Collected(Arc<Mutex<BTreeMap<String, u64>>>);

impl Collected {
    /// Counts an act; false when there are too many names to keep them apart.
    pub fn count(&self, id: &str) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= NAMES && !counts.contains_key(id) {
            return false;
        }
        *counts.entry(id.to_owned()).or_default() += 1;
        true
    }

    /// How many names there are, and those that were counted more than once with how often.
    pub fn json(&self) -> Value {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let twice: BTreeMap<&String, &u64> = counts.iter().filter(|(_, times)| **times > 1).collect();
        json!({"total_ids": counts.len(), "dupe_count": twice.len(), "dupes": twice})
    }
}

type Answer = Response<Full<Bytes>>;

fn answer(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
}

/// Serves the collector on `listener` until the tasks stop: `POST /record` with a name as its body, `GET /dupes`.
pub async fn collect(listener: TcpListener, tasks: &Tasks) {
    let collected = Collected::default();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let collected = collected.clone();
        tasks.spawn(async move {
            let service = hyper::service::service_fn(move |request| record(request, collected.clone()));
            // A client that goes away ends its connection, and that is all there is to say.
            http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.unwrap_or_default();
        });
    }
}

async fn record(request: Request<Incoming>, collected: Collected) -> Result<Answer, Infallible> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let Ok(body) = request.into_body().collect().await else {
        return Ok(answer(StatusCode::BAD_REQUEST, "the name did not arrive whole\n"));
    };
    Ok(match (method, path.as_str()) {
        (Method::POST, "/record") => {
            let counted = collected.count(String::from_utf8_lossy(&body.to_bytes()).trim());
            answer(if counted { StatusCode::OK } else { StatusCode::INSUFFICIENT_STORAGE }, "")
        }
        (Method::GET, "/dupes") => answer(StatusCode::OK, collected.json().to_string()),
        _ => answer(StatusCode::NOT_FOUND, ""),
    })
}

/// How orders are served.
#[derive(Clone, Debug)]
pub struct Server {
    /// How long an order takes.
    pub delay: Duration,
    /// Where each act is told, e.g. `http://collector:9090/record`.
    pub collector: String,
    /// Of so many orders one is acted on and then answered with a reset of its connection; none when 0.
    pub reset_every: u64,
}

impl Server {
    /// Serves orders on `listener` until the tasks stop: `POST /order`, by the name in `x-request-id`; `GET /healthz`. Standard output has a line
    /// `received ID` before anything is done, `executed ID` once the collector knows, `answered ID 201`. An order that the collector may
    /// not know of is answered 500, after a line `failed ID: WHY`: what is answered 201 was counted.
    pub async fn serve(self, listener: TcpListener, tasks: &Tasks) {
        let (server, orders) = (Arc::new(self), Arc::new(AtomicU64::new(0)));
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let (server, orders, owner) = (server.clone(), orders.clone(), tasks.clone());
            tasks.spawn(async move {
                let reset = Arc::new(AtomicBool::new(false));
                let stream = Resettable { stream, reset: reset.clone() };
                let service = hyper::service::service_fn(move |request| {
                    let (server, orders, owner, reset) = (server.clone(), orders.clone(), owner.clone(), reset.clone());
                    async move { server.order(request, &orders, &reset, &owner).await }
                });
                // That a connection is reset is asked for; that a client goes away is its own affair.
                http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.unwrap_or_default();
            });
        }
    }

    async fn order(
        &self,
        request: Request<Incoming>,
        orders: &AtomicU64,
        reset: &AtomicBool,
        tasks: &Tasks,
    ) -> Result<Answer, io::Error> {
        match (request.method(), request.uri().path()) {
            (&Method::POST, "/order") => {}
            (&Method::GET, "/healthz") => return Ok(answer(StatusCode::OK, "")),
            _ => return Ok(answer(StatusCode::NOT_FOUND, "")),
        }
        let id = request.headers().get(REQUEST_ID).and_then(|v| v.to_str().ok()).unwrap_or("unknown").to_owned();
        println!("received {id}");
        if request.into_body().collect().await.is_err() {
            return Ok(answer(StatusCode::BAD_REQUEST, "the order did not arrive whole\n"));
        }
        // Wide enough for a pod's end to fall into it.
        tokio::time::sleep(self.delay).await;
        if let Err(error) = self.tell(&id, tasks).await {
            println!("failed {id}: the collector could not be told: {error}");
            return Ok(answer(StatusCode::INTERNAL_SERVER_ERROR, "the collector could not be told\n"));
        }
        println!("executed {id}");
        if self.reset_every > 0 && orders.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.reset_every) {
            reset.store(true, Ordering::Relaxed);
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        println!("answered {id} 201");
        Ok(answer(StatusCode::CREATED, ""))
    }

    async fn tell(&self, id: &str, tasks: &Tasks) -> Result<(), String> {
        let body = Bytes::from(id.to_owned());
        let template = Template::new(&self.collector, &[], body, Duration::from_secs(2)).map_err(|e| e.to_string())?;
        let mut connection = Connection::new(tasks);
        match connection.call(&template, None).await {
            200 => Ok(()),
            -1 => Err(connection.last_error.unwrap_or_default()),
            code => Err(format!("code {code}")),
        }
    }
}

/// A connection that is reset when it is dropped, if that is wanted by then.
struct Resettable {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
}

impl AsyncRead for Resettable {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Resettable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.reset.load(Ordering::Relaxed) {
            // An orderly end before the reset would be one.
            true => Poll::Ready(Ok(())),
            false => Pin::new(&mut self.stream).poll_shutdown(cx),
        }
    }
}

impl Drop for Resettable {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Relaxed) {
            // A socket that cannot be set up so ends in order, which the client takes for an end before the answer all the same.
            self.stream.set_zero_linger().unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Orders by name, one connection each; what the client saw of each, and what the collector says.
    async fn run(reset_every: u64, ids: &[&str]) -> (Vec<i32>, Value) {
        let tasks = Tasks::default();
        let bind = || async { TcpListener::bind("127.0.0.1:0").await.unwrap() };
        let (collector, orders) = (bind().await, bind().await);
        let (at, order) = (collector.local_addr().unwrap(), orders.local_addr().unwrap());
        let server = Server { delay: Duration::ZERO, collector: format!("http://{at}/record"), reset_every };
        let (one, two) = (tasks.clone(), tasks.clone());
        tasks.spawn(async move { collect(collector, &one).await });
        tasks.spawn(async move { server.serve(orders, &two).await });
        let url = format!("http://{order}/order");
        let template = Template::new(&url, &[], Bytes::from("{}"), Duration::from_secs(5)).unwrap();
        let mut codes = Vec::new();
        for id in ids {
            codes.push(Connection::new(&tasks).call(&template, Some(id)).await);
        }
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(b"GET /dupes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        (codes, serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap())
    }

    #[tokio::test]
    async fn acts_are_counted_by_name() {
        let (codes, collected) = run(0, &["a", "b", "a"]).await;
        assert_eq!(codes, [201, 201, 201]);
        assert_eq!(collected, json!({"total_ids": 2, "dupe_count": 1, "dupes": {"a": 2}}));
    }

    #[tokio::test]
    async fn an_order_that_is_not_counted_is_not_confirmed() {
        let tasks = Tasks::default();
        let orders = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/order", orders.local_addr().unwrap());
        // Nobody listens on port 1.
        let collector = "http://127.0.0.1:1/record".to_owned();
        let (server, owner) = (Server { delay: Duration::ZERO, collector, reset_every: 0 }, tasks.clone());
        tasks.spawn(async move { server.serve(orders, &owner).await });
        let template = Template::new(&url, &[], Bytes::from("{}"), Duration::from_secs(5)).unwrap();
        assert_eq!(Connection::new(&tasks).call(&template, Some("a")).await, 500);
    }

    #[tokio::test]
    async fn an_order_can_be_acted_on_and_its_connection_reset() {
        let (codes, collected) = run(2, &["a", "b", "c"]).await;
        assert_eq!(codes, [-1, 201, -1]);
        assert_eq!(collected["total_ids"], 3);
    }
}
