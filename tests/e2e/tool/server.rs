//! An HTTP server that does what the path asks for, in every version and manner.

use base64::Engine;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Answer = Response<BoxBody<Bytes, std::io::Error>>;

/// What this server says of itself in its answers.
static NAME: std::sync::OnceLock<String> = std::sync::OnceLock::new();
/// Requests that asked for `/flaky`.
static FLAKY: AtomicU64 = AtomicU64::new(0);
/// Requests of a path beginning with `/mirrored`.
static MIRRORED: AtomicU64 = AtomicU64::new(0);
/// What was posted to the place for spans (OTLP/HTTP).
static SPANS: std::sync::Mutex<Vec<u8>> = std::sync::Mutex::new(Vec::new());
/// Requests whose body ended with an error.
static ABORTED: AtomicU64 = AtomicU64::new(0);

fn full(text: impl Into<Bytes>) -> BoxBody<Bytes, std::io::Error> {
    Full::new(text.into()).map_err(|never: Infallible| match never {}).boxed()
}

/// Serves until it is killed.
pub fn run(port: &str, name: &str) {
    NAME.set(name.to_owned()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(format!("0.0.0.0:{port}")).await.unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let service = hyper::service::service_fn(|request| async { Ok::<_, Infallible>(answer(request).await) });
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder.http1().max_headers(1000).max_buf_size(1 << 20);
            builder.http2().enable_connect_protocol().max_header_list_size(1 << 20);
            #[allow(clippy::disallowed_methods)]
            tokio::spawn(async move {
                let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
                let _ = connection.await;
            });
        }
    });
}

fn number(request: &Request<Incoming>, key: &str) -> usize {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').find_map(|p| p.strip_prefix(key)?.strip_prefix('=')).and_then(|n| n.parse().ok()).unwrap_or(0)
}

async fn answer(mut request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    let upgrade = request.headers().get("upgrade").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    if path == "/ws" && upgrade == "websocket" {
        let on = hyper::upgrade::on(&mut request);
        #[allow(clippy::disallowed_methods)]
        tokio::spawn(async move {
            let mut io = TokioIo::new(on.await.unwrap());
            let mut buffer = [0; 1024];
            while let Ok(count @ 1..) = io.read(&mut buffer).await {
                io.write_all(&buffer[..count]).await.unwrap();
            }
        });
        return Response::builder()
            .status(101)
            .header("upgrade", "websocket")
            .header("connection", "upgrade")
            .body(full(""))
            .unwrap();
    }
    let mut response = match path.as_str() {
        "/count" => return count(request).await,
        "/v1/traces" => {
            let spans = request.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
            SPANS.lock().unwrap().extend(&spans);
            return Response::new(full("{}"));
        }
        // What is asked for, decoded: a file that is made by whoever names it.
        path if path.starts_with("/decoded/") => {
            let text = path.trim_start_matches("/decoded/");
            Response::new(full(base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text).unwrap_or_default()))
        }
        "/spans" => Response::new(full(SPANS.lock().unwrap().clone())),
        "/bytes" => return stream(number(&request, "mib")),
        "/trailers" => return trailers(),
        // The first two tries of three fail.
        "/flaky" if FLAKY.fetch_add(1, Ordering::SeqCst) % 3 != 2 => status(StatusCode::SERVICE_UNAVAILABLE),
        "/503" => status(StatusCode::SERVICE_UNAVAILABLE),
        "/slow" => {
            tokio::time::sleep(std::time::Duration::from_millis(number(&request, "ms") as u64)).await;
            Response::new(full("slept"))
        }
        "/mirrors" => Response::new(full(MIRRORED.load(Ordering::SeqCst).to_string())),
        path if path.starts_with("/mirrored") => {
            MIRRORED.fetch_add(1, Ordering::SeqCst);
            Response::new(full("copied"))
        }
        "/401" => status(StatusCode::UNAUTHORIZED),
        "/417" => status(StatusCode::EXPECTATION_FAILED),
        "/204" => status(StatusCode::NO_CONTENT),
        "/304" => status(StatusCode::NOT_MODIFIED),
        "/abort" => return broken(),
        "/aborted" => Response::new(full(ABORTED.load(Ordering::SeqCst).to_string())),
        "/unary" | "/stream" => return grpc(request).await,
        "/headers" => {
            let size = number(&request, "size");
            let mut response = Response::new(full("headers"));
            if size > 0 {
                response.headers_mut().insert("x-large", "h".repeat(size).parse().unwrap());
            }
            response
        }
        _ => Response::new(full(told(&request))),
    };
    #[allow(clippy::disallowed_methods)]
    let pod = std::env::var("HOSTNAME").unwrap_or_default();
    response.headers_mut().insert("x-pod", pod.parse().unwrap());
    if request.method() == Method::HEAD {
        let length = response.body().size_hint().exact().unwrap_or(0);
        response.headers_mut().insert("content-length", length.into());
    }
    response
}

/// Everything about a request, to be looked at by whoever sent it.
fn told(request: &Request<Incoming>) -> String {
    let authority = request.uri().authority().map(ToString::to_string);
    let host = || Some(request.headers().get("host")?.to_str().ok()?.to_owned());
    format!(
        "{}{} {} {:?} host={} headers={}",
        NAME.get().filter(|n| !n.is_empty()).map(|n| format!("{n}: ")).unwrap_or_default(),
        request.method(),
        request.uri().path_and_query().map_or("", |p| p.as_str()),
        request.version(),
        authority.or_else(host).unwrap_or_default(),
        listed(request.headers()),
    )
}

fn listed(headers: &HeaderMap) -> String {
    let all = headers.iter().map(|(n, v)| format!("{n}={}", String::from_utf8_lossy(v.as_bytes())));
    all.collect::<Vec<_>>().join(";")
}

fn status(code: StatusCode) -> Answer {
    let mut response = Response::new(full(""));
    *response.status_mut() = code;
    response
}

async fn count(request: Request<Incoming>) -> Answer {
    let (mut bytes, mut trailers) = (0, String::new());
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => match frame.into_data() {
                Ok(data) => bytes += data.len(),
                Err(frame) => trailers = frame.trailers_ref().map(listed).unwrap_or_default(),
            },
            Err(_) => {
                ABORTED.fetch_add(1, Ordering::SeqCst);
                break;
            }
        }
    }
    Response::new(full(format!("{bytes} bytes, trailers {trailers}")))
}

fn stream(mib: usize) -> Answer {
    static CHUNK: [u8; 1 << 18] = [b'x'; 1 << 18];
    let chunks = futures_util::stream::iter(0..mib * 4).map(|_| Ok(Frame::data(Bytes::from_static(&CHUNK))));
    Response::builder().header("content-length", mib << 20).body(BodyExt::boxed(StreamBody::new(chunks))).unwrap()
}

fn trailers() -> Answer {
    let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "42".parse().unwrap())]);
    let frames = vec![Ok(Frame::data(Bytes::from_static(b"data"))), Ok(Frame::trailers(trailers))];
    Response::builder()
        .header("trailer", "x-sum")
        .body(BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames))))
        .unwrap()
}

fn broken() -> Answer {
    let frames = vec![Ok(Frame::data(Bytes::from_static(b"0123456789"))), Err(std::io::Error::other("on purpose"))];
    let frames = futures_util::stream::iter(frames).then(|frame| async {
        if frame.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        frame
    });
    Response::builder().header("content-length", 100).body(BodyExt::boxed(StreamBody::new(frames))).unwrap()
}

/// Echoes each message as it comes, then a status in the trailers.
async fn grpc(request: Request<Incoming>) -> Answer {
    let body = request.into_body().into_data_stream().map(|data| data.map(Frame::data).map_err(std::io::Error::other));
    let end = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
    let frames = body.chain(futures_util::stream::iter([Ok(Frame::trailers(end))]));
    let frames = std::sync::Mutex::new(Box::pin(frames));
    let frames = futures_util::stream::poll_fn(move |cx| frames.lock().unwrap().as_mut().poll_next(cx));
    Response::builder()
        .header("content-type", "application/grpc")
        .body(BodyExt::boxed(StreamBody::new(frames)))
        .unwrap()
}
