//! The dialling side of a tunnel.

use crate::authority::Authority;
use crate::stream::{self, TunnelRead, TunnelWrite};
use crate::{CLIENT_STREAMS, CONNECTION_WINDOW, FRAME, IDLE, PING_EVERY, PING_LIMIT, READ, STREAM_WINDOW};
use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use http::{HeaderMap, Method, Request, StatusCode};
use rustls::ClientConfig;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_rustls::TlsConnector;
use trysail_base::tasks::Tasks;

/// Why a tunnel could not be had.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// TCP.
    #[error("connecting failed")]
    Connect(#[source] io::Error),
    /// The handshake failed: the peer is not who it must be, or does not accept us.
    #[error("the TLS handshake failed")]
    Tls(#[source] io::Error),
    /// Took longer than [`crate::CONNECT_LIMIT`].
    #[error("connecting took too long")]
    Timeout,
    /// HTTP/2 failed before the stream was open.
    #[error("the tunnel failed before the stream was open")]
    Http2(#[source] h2::Error),
    /// The far end answered CONNECT with an error.
    #[error("the far end answered {0}")]
    Refused(StatusCode),
    /// The inner address cannot be sent.
    #[error("the inner address cannot be sent")]
    Address(#[source] http::Error),
}

/// An open tunnel connection. Counted streams; closed when its peer says so, fails, or it was idle too long.
pub struct Tunnel {
    sender: SendRequest<Bytes>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    streams: AtomicUsize,
    closed: AtomicBool,
    close: Notify,
}

/// A place among a tunnel's streams, given back when dropped.
pub struct Slot(Arc<State>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

/// TLS and HTTP/2 on a connected socket. The connection's driver runs in `tasks`.
pub async fn handshake(stream: TcpStream, config: Arc<ClientConfig>, tasks: &Tasks) -> Result<Tunnel, DialError> {
    let address = stream.peer_addr().map_err(DialError::Connect)?.ip();
    let tls = TlsConnector::from(config)
        .connect(address.into(), BufReader::with_capacity(READ, stream))
        .await
        .map_err(DialError::Tls)?;
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_header_list_size(16 << 10)
        .max_send_buffer_size(STREAM_WINDOW as usize)
        .enable_push(false);
    let (sender, mut connection) = builder.handshake(tls).await.map_err(DialError::Http2)?;
    let state = Arc::new(State::default());
    let pings = connection.ping_pong();
    let driven = state.clone();
    tasks.spawn(async move {
        let reason = tokio::select! {
            end = connection => end.err().map(|e| e.to_string()),
            reason = watch(pings, &driven) => Some(reason.to_owned()),
        };
        driven.closed.store(true, Ordering::Release);
        tracing::debug!(reason, "tunnel connection ended");
    });
    Ok(Tunnel { sender, state })
}

/// Ends when the connection should: no answer to a ping, idle too long, or told to close.
async fn watch(pings: Option<PingPong>, state: &State) -> &'static str {
    let Some(mut pings) = pings else { return std::future::pending().await };
    let mut idle = 0;
    let idle_limit = IDLE.as_secs() / PING_EVERY.as_secs();
    loop {
        tokio::select! {
            () = tokio::time::sleep(PING_EVERY) => {}
            () = state.close.notified() => return "closed",
        }
        match tokio::time::timeout(PING_LIMIT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return "the peer does not answer",
        }
        idle = if state.streams.load(Ordering::Acquire) == 0 { idle + 1 } else { 0 };
        if idle >= idle_limit {
            return "idle";
        }
    }
}

impl Tunnel {
    /// Whether new streams may be opened.
    pub fn is_open(&self) -> bool {
        !self.state.closed.load(Ordering::Acquire)
    }

    /// Takes no more streams.
    pub fn retire(&self) {
        self.state.closed.store(true, Ordering::Release);
    }

    /// Ends the connection with all its streams.
    pub fn close(&self) {
        self.retire();
        self.state.close.notify_one();
    }

    /// A place for a stream, if there is one left.
    pub fn slot(&self) -> Option<Slot> {
        if !self.is_open() {
            return None;
        }
        let taken = self.state.streams.fetch_add(1, Ordering::AcqRel);
        let slot = Slot(self.state.clone());
        (taken < CLIENT_STREAMS).then_some(slot)
    }

    /// Opens a stream to `authority`.
    pub async fn open(
        &self,
        authority: &Authority,
        headers: HeaderMap,
    ) -> Result<(TunnelRead, TunnelWrite), DialError> {
        let mut request = Request::builder()
            .method(Method::CONNECT)
            .uri(authority.to_string())
            .body(())
            .map_err(DialError::Address)?;
        *request.headers_mut() = headers;
        let mut sender = self.sender.clone().ready().await.map_err(DialError::Http2)?;
        let (response, write) = sender.send_request(request, false).map_err(DialError::Http2)?;
        let response = response.await.map_err(DialError::Http2)?;
        if response.status() != StatusCode::OK {
            return Err(DialError::Refused(response.status()));
        }
        Ok(stream::halves(response.into_body(), write))
    }
}
