//! The echo server: answers as `fortio server` does.

use crate::flags::duration;
use crate::journal::REQUEST_ID;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::fmt::Write;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;
use trysail_base::tasks::Tasks;

/// The largest answer and the longest pause that can be asked for.
const MOST_BYTES: usize = 64 << 20;
const LONGEST: Duration = Duration::from_secs(30);

/// What is written to standard output, one line each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Logged {
    /// Where each connection came from.
    pub connections: bool,
    /// Each request that has a name: `received ID` before anything is done for it, `answered ID STATUS` when its answer is made.
    pub requests: bool,
}

/// Serves HTTP/1.1 and HTTP/2 (prior knowledge) on `listener` until the tasks stop. A request without a query is answered as
/// `default` asks.
pub async fn serve(listener: TcpListener, logged: Logged, default: &'static str, tasks: &Tasks) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else { continue };
        if logged.connections {
            println!("connection from {peer}");
        }
        if stream.set_nodelay(true).is_err() {
            continue;
        }
        tasks.spawn(async move {
            let service = hyper::service::service_fn(move |request| noted(request, peer, default, logged.requests));
            // A client that goes away ends its connection, and that is all there is to say.
            auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await
                .unwrap_or_default();
        });
    }
}

/// One of several outcomes, each with its share in percent, as in `503:10,404:5`; the rest is none.
fn choose(text: &str, roll: f64) -> Option<&str> {
    let mut left = roll * 100.0;
    for part in text.split(',') {
        match part.split_once(':') {
            None => return Some(part),
            Some((value, share)) => {
                left -= share.parse::<f64>().unwrap_or(0.0);
                if left < 0.0 {
                    return Some(value);
                }
            }
        }
    }
    None
}

/// A body of which no more than one chunk is in memory.
struct Answer {
    chunk: Bytes,
    left: usize,
}

impl Answer {
    /// `size` bytes of filler.
    fn filler(size: usize) -> Self {
        static CHUNK: [u8; 1 << 18] = [b'x'; 1 << 18];
        Self { chunk: Bytes::from_static(&CHUNK), left: size }
    }
}

impl From<Bytes> for Answer {
    fn from(chunk: Bytes) -> Self {
        Self { left: chunk.len(), chunk }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = self.chunk.slice(..self.left.min(self.chunk.len()));
        self.left -= part.len();
        Poll::Ready((!part.is_empty()).then(|| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

/// Answers, with a line before and after when `log` says so.
async fn noted(
    request: Request<Incoming>,
    peer: SocketAddr,
    default: &'static str,
    log: bool,
) -> Result<Response<Answer>, Infallible> {
    let id = request.headers().get(REQUEST_ID).filter(|_| log).and_then(|v| v.to_str().ok()).map(str::to_owned);
    if let Some(id) = &id {
        println!("received {id}");
    }
    let response = answer(request, peer, default).await?;
    if let Some(id) = &id {
        println!("answered {id} {}", response.status().as_u16());
    }
    Ok(response)
}

async fn answer(
    request: Request<Incoming>,
    peer: SocketAddr,
    default: &'static str,
) -> Result<Response<Answer>, Infallible> {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query().unwrap_or(default);
    let asked =
        |key: &str| query.split('&').filter_map(|pair| pair.split_once('=')).find(|(k, _)| *k == key).map(|(_, v)| v);
    let received = match body.collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(_) => Bytes::new(),
    };
    if let Some(pause) = asked("delay").and_then(|d| choose(d, fraction())).and_then(|d| duration(d).ok()) {
        tokio::time::sleep(pause.min(LONGEST)).await;
    }
    let status = asked("status").and_then(|s| choose(s, fraction())).and_then(|s| s.parse::<u16>().ok());
    let size = asked("size").and_then(|s| choose(s, fraction())).and_then(|s| s.parse::<usize>().ok());
    let body = match (parts.uri.path(), size) {
        (_, Some(size)) => Answer::filler(size.min(MOST_BYTES)),
        ("/debug", _) => Answer::from(Bytes::from(dump(&parts, peer, &received))),
        (path, _) if path.starts_with("/fortio") => {
            Bytes::from_static(b"<html><body>trysail echo</body></html>\n").into()
        }
        _ => received.into(),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status.and_then(|s| StatusCode::from_u16(s).ok()).unwrap_or(StatusCode::OK);
    Ok(response)
}

/// A number in 0..1 that need not be good: the low bits of the clock, mixed.
fn fraction() -> f64 {
    let nanos =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    (nanos.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64
}

fn dump(parts: &hyper::http::request::Parts, peer: SocketAddr, body: &Bytes) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut out = format!(
        "Hostname: {}\nFrom: {peer}\n{} {} {:?}\n\nheaders:\n\n",
        host.trim(),
        parts.method,
        parts.uri,
        parts.version
    );
    for (name, value) in &parts.headers {
        writeln!(out, "{name}: {}", String::from_utf8_lossy(value.as_bytes())).unwrap_or_default();
    }
    write!(out, "\nbody:\n\n{}\n", String::from_utf8_lossy(body)).unwrap_or_default();
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Connection, Template};

    #[test]
    fn shares_are_percent() {
        assert_eq!(choose("503", 0.99), Some("503"));
        assert_eq!(
            (choose("503:10,404:5", 0.05), choose("503:10,404:5", 0.12), choose("503:10,404:5", 0.5)),
            (Some("503"), Some("404"), None)
        );
    }

    #[tokio::test]
    async fn answers_what_is_asked_for() {
        let tasks = Tasks::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let owner = tasks.clone();
        tasks.spawn(async move { serve(listener, Logged::default(), "", &owner).await });
        let mut connection = Connection::new(&tasks);
        for (path, code) in [("/", 200), ("/fortio/", 200), ("/?status=503", 503), ("/?size=100000&delay=1ms", 200)] {
            let template =
                Template::new(&format!("http://{address}{path}"), &[], Bytes::new(), Duration::from_secs(5)).unwrap();
            assert_eq!(connection.call(&template, None).await, code, "{path}");
        }
        assert_eq!(connection.sockets, 1);
    }
}
