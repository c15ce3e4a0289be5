//! Clients that speak HTTP by the byte, or in manners that common clients do not; each check prints one line.

use base64::Engine;
use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PATIENCE: Duration = Duration::from_secs(10);

/// Sends bytes and prints everything that comes back, until the far end closes or is silent.
pub fn raw(address: &str, encoded: &str) {
    let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap();
    print!("{}", exchange(address, &bytes, Duration::from_millis(700)));
}

/// Sends bytes and prints the whole answer, until the far end closes.
pub fn whole(address: &str, encoded: &str) {
    let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap();
    print!("{}", said(address, &bytes));
}

/// Sends many, each on a connection of its own; prints the statuses of each, one line each.
pub fn raws(address: &str, list: &str) {
    for encoded in list.split(',') {
        let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap();
        let answer = said(address, &bytes);
        let statuses: Vec<&str> = answer.lines().filter_map(|l| l.strip_prefix("HTTP/1.")?.get(2..5)).collect();
        println!("{}", if statuses.is_empty() { "closed".to_owned() } else { statuses.join(" ") });
    }
}

/// Sends each of `address|bytes`, all at the same time; prints the status of each, 0 where there is no answer.
pub fn each(list: &str) {
    let one = |item: &str| {
        let (address, encoded) = item.split_once('|').unwrap();
        let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap();
        let Ok(mut stream) = TcpStream::connect(address) else { return 0 };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut seen = Vec::new();
        if stream.write_all(&bytes).is_ok() {
            let _ = stream.read_to_end(&mut seen);
        }
        let text = String::from_utf8_lossy(&seen).into_owned();
        text.strip_prefix("HTTP/1.1 ").and_then(|t| t.get(..3)?.parse::<u16>().ok()).unwrap_or(0)
    };
    std::thread::scope(|scope| {
        let tries: Vec<_> = list.split(',').map(|item| scope.spawn(move || one(item))).collect();
        tries.into_iter().for_each(|t| println!("{}", t.join().unwrap()));
    });
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends bytes and the end; what comes back.
fn said(address: &str, bytes: &[u8]) -> String {
    let mut stream = connect(address);
    if stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write)).is_err() {
        return String::new();
    }
    let mut seen = Vec::new();
    let _ = stream.read_to_end(&mut seen);
    String::from_utf8_lossy(&seen).into_owned()
}

fn exchange(address: &str, bytes: &[u8], silence: Duration) -> String {
    let mut stream = connect(address);
    stream.set_read_timeout(Some(silence)).unwrap();
    if stream.write_all(bytes).is_err() {
        return String::new();
    }
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        seen.extend(&buffer[..count]);
    }
    String::from_utf8_lossy(&seen).into_owned()
}

/// Reads a head and, by its length, a body.
fn message(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")).and_then(|n| n.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    Some((head, body))
}

fn code(head: &str) -> &str {
    head.get(9..12).unwrap_or("-")
}

/// Every cell of the table, through whatever is between here and `address`.
pub fn protocols(address: &str) {
    let say = |name: &str, result: String| println!("{name}: {result}");
    say("http/1.0", http_1_0(address, ""));
    say("http/1.0 keep-alive", http_1_0(address, "connection: keep-alive\r\n"));
    say("http/1.1", http_1_1(address));
    say("head 204 304", framing(address));
    say("unknown upgrade", upgrade_unknown(address));
    say("websocket", websocket(address));
    say("100-continue", expect(address, "/count", true));
    say("401 before the body", expect(address, "/401", false));
    say("417 before the body", expect(address, "/417", false));
    say("chunked with trailers", chunked(address));
    say("response trailers", response_trailers(address));
    say("request headers", request_headers(address));
    say("response headers", response_headers(address));
    say("client abort", client_abort(address));
    say("server abort", server_abort(address));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        say("h2c", h2c(address).await);
        say("grpc unary", grpc_unary(address).await);
        say("grpc streaming", grpc_streaming(address).await);
        say("websocket over h2", websocket_h2(address).await);
        say("slow reader", slow_reader(address).await);
    });
}

fn http_1_0(address: &str, header: &str) -> String {
    let mut stream = connect(address);
    write!(stream, "GET /hello HTTP/1.0\r\nhost: app\r\n{header}\r\n").unwrap();
    let Some((head, _)) = message(&mut stream) else { return "no answer".into() };
    let stays = !header.is_empty();
    if stays {
        write!(stream, "GET /hello HTTP/1.0\r\nhost: app\r\n\r\n").unwrap();
        let Some((second, _)) = message(&mut stream) else { return "closed although kept alive".into() };
        return format!("{} {}", code(&head), code(&second));
    }
    let closed = stream.read(&mut [0; 1]).is_ok_and(|n| n == 0);
    format!("{} {}", code(&head), if closed { "closed" } else { "open" })
}

fn http_1_1(address: &str) -> String {
    let mut stream = connect(address);
    let mut codes = Vec::new();
    for _ in 0..3 {
        write!(stream, "GET /hello HTTP/1.1\r\nhost: app\r\n\r\n").unwrap();
        let Some((head, body)) = message(&mut stream) else { return "no answer".into() };
        let whole = String::from_utf8_lossy(&body).starts_with("GET /hello HTTP/1.1 host=app");
        codes.push(if whole { code(&head).to_owned() } else { String::from_utf8_lossy(&body).into_owned() });
    }
    codes.join(" ")
}

/// No body where there must be none, on one connection: a byte too many would shift the next answer.
fn framing(address: &str) -> String {
    let mut stream = connect(address);
    let mut codes = Vec::new();
    for (method, path) in [("HEAD", "/hello"), ("GET", "/204"), ("GET", "/304"), ("GET", "/hello")] {
        write!(stream, "{method} {path} HTTP/1.1\r\nhost: app\r\n\r\n").unwrap();
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return format!("{codes:?}, then nothing"),
            }
        }
        let head = String::from_utf8_lossy(&head).to_lowercase();
        let has_length = head.contains("content-length: ");
        codes.push(format!("{}{}", code(&head), if method == "HEAD" && has_length { "+length" } else { "" }));
    }
    codes.join(" ")
}

fn upgrade_unknown(address: &str) -> String {
    let mut out = Vec::new();
    for protocol in ["TLS/1.2", "h2c", "foo"] {
        let mut stream = connect(address);
        write!(stream, "GET /hello HTTP/1.1\r\nhost: app\r\nconnection: upgrade\r\nupgrade: {protocol}\r\n\r\n")
            .unwrap();
        let first = message(&mut stream);
        // The connection goes on as HTTP.
        write!(stream, "GET /hello HTTP/1.1\r\nhost: app\r\n\r\n").unwrap();
        let second = message(&mut stream);
        let of = |m: &Option<(String, Vec<u8>)>| m.as_ref().map_or("-".to_owned(), |(head, _)| code(head).to_owned());
        out.push(format!("{}/{}", of(&first), of(&second)));
    }
    out.join(" ")
}

fn websocket(address: &str) -> String {
    let mut stream = connect(address);
    write!(stream, "GET /ws HTTP/1.1\r\nhost: app\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n").unwrap();
    let Some((head, _)) = message(&mut stream) else { return "no answer".into() };
    let mut heard = Vec::new();
    for word in [&b"one"[..], b"two"] {
        stream.write_all(word).unwrap();
        let mut back = vec![0; word.len()];
        if stream.read_exact(&mut back).is_err() {
            return format!("{} then silence", code(&head));
        }
        heard.push(String::from_utf8_lossy(&back).into_owned());
    }
    format!("{} {}", code(&head), heard.join(" "))
}

fn expect(address: &str, path: &str, body: bool) -> String {
    let mut stream = connect(address);
    write!(stream, "POST {path} HTTP/1.1\r\nhost: app\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n").unwrap();
    let Some((first, _)) = message(&mut stream) else { return "no answer".into() };
    if code(&first) != "100" {
        return format!("{} without asking for the body", code(&first));
    }
    if !body {
        return "100 although the application had refused".into();
    }
    stream.write_all(b"12345").unwrap();
    let Some((second, text)) = message(&mut stream) else { return "100 then nothing".into() };
    format!("100 {} {}", code(&second), String::from_utf8_lossy(&text))
}

fn chunked(address: &str) -> String {
    let mut stream = connect(address);
    write!(stream, "POST /count HTTP/1.1\r\nhost: app\r\ntransfer-encoding: chunked\r\ntrailer: x-end\r\n\r\n3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\nx-end: yes\r\n\r\n").unwrap();
    match message(&mut stream) {
        Some((head, body)) => format!("{} {}", code(&head), String::from_utf8_lossy(&body)),
        None => "no answer".into(),
    }
}

fn response_trailers(address: &str) -> String {
    let text = exchange(
        address,
        b"GET /trailers HTTP/1.1\r\nhost: app\r\nte: trailers\r\nconnection: te\r\n\r\n",
        Duration::from_millis(500),
    );
    let lower = text.to_lowercase();
    format!("{} {}", code(&text), if lower.contains("0\r\nx-sum: 42\r\n") { "x-sum" } else { "no trailer" })
}

fn request_headers(address: &str) -> String {
    let one = |size: usize| {
        let mut stream = connect(address);
        let request = format!("GET /hello HTTP/1.1\r\nhost: app\r\nx-large: {}\r\n\r\n", "h".repeat(size << 10));
        if stream.write_all(request.as_bytes()).is_err() {
            return "reset".to_owned();
        }
        let mut head = [0; 12];
        if stream.read_exact(&mut head).is_err() {
            "reset".to_owned()
        } else {
            String::from_utf8_lossy(&head[9..]).into_owned()
        }
    };
    let fields = |count: usize| {
        let mut stream = connect(address);
        let many: String = (0..count).map(|n| format!("x-{n}: v\r\n")).collect();
        stream.write_all(format!("GET /headers HTTP/1.1\r\nhost: app\r\n{many}\r\n").as_bytes()).unwrap();
        message(&mut stream).map_or("reset".to_owned(), |(head, _)| code(&head).to_owned())
    };
    format!(
        "8K {} 64K {} 200K {} 300K {} 400 fields {} 600 fields {}",
        one(8),
        one(64),
        one(200),
        one(300),
        fields(400),
        fields(600)
    )
}

fn response_headers(address: &str) -> String {
    let one = |size: usize| {
        let mut stream = connect(address);
        write!(stream, "GET /headers?size={} HTTP/1.1\r\nhost: app\r\n\r\n", size << 10).unwrap();
        message(&mut stream).map_or("reset".to_owned(), |(head, _)| code(&head).to_owned())
    };
    format!("8K {} 64K {} 200K {} 400K {}", one(8), one(64), one(200), one(400))
}

fn get(address: &str, path: &str) -> String {
    let mut stream = connect(address);
    write!(stream, "GET {path} HTTP/1.1\r\nhost: app\r\n\r\n").unwrap();
    message(&mut stream).map_or("-".to_owned(), |(_, body)| String::from_utf8_lossy(&body).into_owned())
}

fn client_abort(address: &str) -> String {
    let before: u64 = get(address, "/aborted").parse().unwrap_or(999);
    let mut stream = connect(address);
    write!(stream, "POST /count HTTP/1.1\r\nhost: app\r\ncontent-length: 100000\r\n\r\nsome of it").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    stream.shutdown(Shutdown::Both).unwrap();
    drop(stream);
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if get(address, "/aborted").parse::<u64>().is_ok_and(|now| now > before) {
            return "the application heard of it".into();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    "the application did not hear of it".into()
}

fn server_abort(address: &str) -> String {
    let mut stream = connect(address);
    write!(stream, "GET /abort HTTP/1.1\r\nhost: app\r\n\r\n").unwrap();
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    let text = String::from_utf8_lossy(&all);
    let body = text.split_once("\r\n\r\n").map_or(0, |(_, body)| body.len());
    format!("{} {body} of 100 bytes, then the end", code(&text))
}

type Sender<B> = http2::SendRequest<B>;

async fn handshake<B>(address: &str) -> Sender<B>
where
    B: hyper::body::Body + Send + 'static + Unpin,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).initial_stream_window_size(65_535);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    #[allow(clippy::disallowed_methods)]
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender
}

fn h2_get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("http://app{path}")).body(Empty::new()).unwrap()
}

async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn h2c(address: &str) -> String {
    let mut sender = handshake(address).await;
    match tokio::time::timeout(PATIENCE, sender.send_request(h2_get("/hello"))).await {
        Ok(Ok(response)) => {
            let status = response.status().as_u16();
            format!("{status} {}", text(response).await.split(" headers").next().unwrap_or_default())
        }
        other => format!("{other:?}"),
    }
}

fn grpc_message(payload: &[u8]) -> Bytes {
    let mut out = vec![0];
    out.extend((payload.len() as u32).to_be_bytes());
    out.extend(payload);
    out.into()
}

async fn grpc_unary(address: &str) -> String {
    let mut sender = handshake(address).await;
    let frames = futures_util::stream::iter([Ok::<_, std::io::Error>(Frame::data(grpc_message(b"hi")))]);
    let request = Request::post("http://app/unary")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(StreamBody::new(frames))
        .unwrap();
    let response = match tokio::time::timeout(PATIENCE, sender.send_request(request)).await {
        Ok(Ok(response)) => response,
        other => return format!("{other:?}"),
    };
    let collected = response.into_body().collect().await.unwrap();
    let status = collected.trailers().and_then(|t| t.get("grpc-status")).map(|v| v.to_str().unwrap().to_owned());
    format!("{} bytes, grpc-status {}", collected.to_bytes().len(), status.unwrap_or("-".into()))
}

/// Each message is answered before the next is sent.
async fn grpc_streaming(address: &str) -> String {
    let mut sender = handshake(address).await;
    let (feed, fed) = tokio::sync::mpsc::channel::<Bytes>(1);
    let frames = futures_util::stream::unfold(fed, |mut fed| async {
        let bytes = fed.recv().await?;
        Some((Ok::<_, std::io::Error>(Frame::data(bytes)), fed))
    });
    let request = Request::post("http://app/stream")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(StreamBody::new(Box::pin(frames)))
        .unwrap();
    let answered = sender.send_request(request);
    feed.send(grpc_message(b"1")).await.unwrap();
    let response = match tokio::time::timeout(PATIENCE, answered).await {
        Ok(Ok(response)) => response,
        other => return format!("{other:?}"),
    };
    let mut body = response.into_body();
    let mut turns = 0;
    loop {
        match tokio::time::timeout(PATIENCE, body.frame()).await {
            Ok(Some(Ok(frame))) if frame.is_data() => {
                turns += 1;
                if turns == 3 {
                    break;
                }
                feed.send(grpc_message(b"n")).await.unwrap();
            }
            other => return format!("after {turns} turns: {other:?}"),
        }
    }
    drop(feed);
    let trailers = body.collect().await.ok().and_then(|b| b.trailers().cloned()).unwrap_or_default();
    format!("{turns} turns, grpc-status {}", trailers.get("grpc-status").map_or("-", |v| v.to_str().unwrap()))
}

/// RFC 8441.
async fn websocket_h2(address: &str) -> String {
    let mut sender = handshake(address).await;
    let mut request = Request::connect("http://app/ws").body(Empty::<Bytes>::new()).unwrap();
    request.extensions_mut().insert(hyper::ext::Protocol::from_static("websocket"));
    // The far end's settings say whether it may be asked.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut response = match tokio::time::timeout(PATIENCE, sender.send_request(request)).await {
        Ok(Ok(response)) => response,
        other => return format!("{other:?}"),
    };
    let status = response.status().as_u16();
    let Ok(upgraded) = hyper::upgrade::on(&mut response).await else { return format!("{status}, not agreed") };
    let mut io = TokioIo::new(upgraded);
    io.write_all(b"one").await.unwrap();
    let mut back = [0; 3];
    match tokio::time::timeout(PATIENCE, io.read_exact(&mut back)).await {
        Ok(Ok(_)) => format!("{status} {}", String::from_utf8_lossy(&back)),
        other => format!("{status} {other:?}"),
    }
}

/// One stream is not read; another on the same connection is answered all the same.
async fn slow_reader(address: &str) -> String {
    let mut sender = handshake(address).await;
    let stalled = sender.send_request(h2_get("/bytes?mib=8")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let answer = match tokio::time::timeout(PATIENCE, sender.send_request(h2_get("/hello"))).await {
        Ok(Ok(response)) => response.status().to_string(),
        other => format!("{other:?}"),
    };
    let read = stalled
        .into_body()
        .into_data_stream()
        .fold(0, |sum, data| async move { sum + data.map_or(0, |d| d.len()) })
        .await;
    format!("{answer}, then {} MiB", read >> 20)
}

/// A body of so many MiB there and back; what arrived.
pub fn large(address: &str, mib: &str) {
    let mib: usize = mib.parse().unwrap();
    let mut stream = connect(address);
    write!(stream, "POST /count HTTP/1.1\r\nhost: app\r\ncontent-length: {}\r\n\r\n", mib << 20).unwrap();
    let chunk = vec![b'y'; 1 << 20];
    for _ in 0..mib {
        stream.write_all(&chunk).unwrap();
    }
    let (_, body) = message(&mut stream).unwrap();
    println!("{}", String::from_utf8_lossy(&body));
    write!(stream, "GET /bytes?mib={mib} HTTP/1.1\r\nhost: app\r\nconnection: close\r\n\r\n").unwrap();
    let (mut total, mut buffer) = (0, vec![0; 1 << 20]);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        total += count;
    }
    println!("{} MiB back", total >> 20);
}

/// One GET over TLS, in the version that `alpn` asks for: what was agreed, status and body.
pub fn https(address: &str, (name, root): (&str, &str), alpn: &str) {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::pem::PemObject::from_pem_slice(root.as_bytes()).unwrap()).unwrap();
    let mut config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    let server = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let said = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.map_err(|e| e.to_string())?;
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
        let stream = connector.connect(server, stream).await.map_err(|e| e.to_string())?;
        let agreed = String::from_utf8_lossy(stream.get_ref().1.alpn_protocol().unwrap_or_default()).into_owned();
        let io = TokioIo::new(stream);
        #[allow(clippy::disallowed_methods)]
        let response = if agreed == "h2" {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.map_err(|e| e.to_string())?;
            tokio::spawn(connection);
            let uri = format!("https://{name}/hello");
            sender.send_request(Request::get(uri).body(Empty::<Bytes>::new()).unwrap()).await
        } else {
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(io).await.map_err(|e| e.to_string())?;
            tokio::spawn(connection);
            let request = Request::get("/hello").header("host", name).body(Empty::<Bytes>::new()).unwrap();
            sender.send_request(request).await
        };
        let response = response.map_err(|e| e.to_string())?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(|e| e.to_string())?.to_bytes();
        Ok::<_, String>(format!("{agreed} {status} {}", String::from_utf8_lossy(&body)))
    });
    println!("{}", said.unwrap_or_else(|error| error));
}
