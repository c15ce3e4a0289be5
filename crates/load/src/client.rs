//! One connection's worth of HTTP/1.1 requests.

use crate::journal::REQUEST_ID;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use trysail_base::log::chain;
use trysail_base::tasks::Tasks;

/// What is sent, the same each time.
#[derive(Clone)]
pub struct Template {
    /// Where to, e.g. `echo:8080`.
    pub authority: String,
    /// Path and query.
    pub path: String,
    /// Method.
    pub method: Method,
    /// Headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Body.
    pub body: Bytes,
    /// The longest wait for a connection or an answer.
    pub timeout: Duration,
    /// A new connection for each request.
    pub new_connections: bool,
}

/// Why a target cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// Not an `http://` URL.
    #[error("{0:?} is not an http:// URL")]
    Url(String),
    /// A header without colon or with characters that cannot be sent.
    #[error("header {0:?} is not NAME: VALUE")]
    Header(String),
}

impl Template {
    /// A GET of `url`; with a body, a POST.
    pub fn new(url: &str, headers: &[String], body: Bytes, timeout: Duration) -> Result<Self, TargetError> {
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = full.parse().map_err(|_| TargetError::Url(url.to_owned()))?;
        let host =
            uri.host().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(|| TargetError::Url(url.to_owned()))?;
        let parse = |text: &String| {
            let (name, value) = text.split_once(':').ok_or_else(|| TargetError::Header(text.clone()))?;
            let bad = || TargetError::Header(text.clone());
            Ok((name.trim().parse().map_err(|_| bad())?, value.trim().parse().map_err(|_| bad())?))
        };
        Ok(Self {
            authority: format!("{host}:{}", uri.port_u16().unwrap_or(80)),
            path: uri.path_and_query().map_or("/", |p| p.as_str()).to_owned(),
            method: if body.is_empty() { Method::GET } else { Method::POST },
            headers: headers.iter().map(parse).collect::<Result<_, TargetError>>()?,
            body,
            timeout,
            new_connections: false,
        })
    }

    fn request(&self, id: Option<&str>) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let mut builder = Request::builder().method(self.method.clone()).uri(&self.path);
        if !self.headers.iter().any(|(name, _)| name == HOST) {
            builder = builder.header(HOST, &self.authority);
        }
        builder = builder.header(USER_AGENT, "trysail-load");
        if let Some(id) = id {
            builder = builder.header(REQUEST_ID, id);
        }
        for (name, value) in &self.headers {
            builder = builder.header(name, value);
        }
        builder.body(Full::new(self.body.clone()))
    }
}

/// A connection that is opened when needed.
pub struct Connection {
    sender: Option<SendRequest<Full<Bytes>>>,
    tasks: Tasks,
    /// Connections opened so far.
    pub sockets: u64,
    /// This end of the one that was opened last.
    pub local: Option<SocketAddr>,
    /// What went wrong last.
    pub last_error: Option<String>,
}

impl Connection {
    /// Not open yet.
    pub fn new(tasks: &Tasks) -> Self {
        Self { sender: None, tasks: tasks.clone(), sockets: 0, local: None, last_error: None }
    }

    /// Sends one request, named `id` if it has a name, and reads its whole answer: its status, or -1 if there was none.
    pub async fn call(&mut self, template: &Template, id: Option<&str>) -> i32 {
        match tokio::time::timeout(template.timeout, self.exchange(template, id)).await {
            Ok(Ok(status)) => {
                if template.new_connections {
                    self.sender = None;
                }
                status
            }
            failed => {
                self.sender = None;
                self.last_error = Some(failed.map_or_else(
                    |_| format!("no answer within {:?}", template.timeout),
                    |r| r.map_or_else(|e| e, |s| s.to_string()),
                ));
                -1
            }
        }
    }

    async fn exchange(&mut self, template: &Template, id: Option<&str>) -> Result<i32, String> {
        // A connection that the server has closed meanwhile is replaced before anything is sent on it.
        let open = self.sender.take().filter(|s| !s.is_closed());
        let mut sender = match open {
            Some(sender) => sender,
            None => {
                self.local = None;
                let addresses: Vec<SocketAddr> =
                    tokio::net::lookup_host(&template.authority).await.map_err(|e| chain(&e))?.collect();
                let stream = TcpStream::connect(addresses.as_slice()).await.map_err(|e| chain(&e))?;
                stream.set_nodelay(true).map_err(|e| chain(&e))?;
                self.sockets += 1;
                self.local = stream.local_addr().ok();
                let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| chain(&e))?;
                self.tasks.spawn(async move {
                    // How it ends is seen by the request that was under way.
                    connection.await.unwrap_or_default();
                });
                sender
            }
        };
        sender.ready().await.map_err(|e| chain(&e))?;
        let request = template.request(id).map_err(|e| chain(&e))?;
        let response = sender.send_request(request).await.map_err(|e| chain(&e))?;
        let status = i32::from(response.status().as_u16());
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            frame.map_err(|e| chain(&e))?;
        }
        self.sender = Some(sender);
        Ok(status)
    }
}
