//! The accepting side of a tunnel.

use crate::authority::Authority;
use crate::stream::{self, TunnelRead, TunnelWrite};
use crate::{CONNECTION_WINDOW, FRAME, READ, SERVER_STREAMS, STREAM_WINDOW};
use bytes::Bytes;
use h2::RecvStream;
use h2::server::{Connection, SendResponse};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use rustls::ServerConfig;
use std::io;
use std::sync::Arc;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use trysail_api::ids::SpiffeId;
use trysail_identity::svid::spiffe_id;
use trysail_identity::tls::ALPN_H2;

/// Why a tunnel connection was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The handshake failed: no or a wrong certificate, or not TLS 1.3 at all.
    #[error("the TLS handshake failed")]
    Tls(#[source] io::Error),
    /// The handshake did not end in time.
    #[error("the handshake took too long")]
    Timeout,
    /// The peer does not speak HTTP/2 inside TLS.
    #[error("the peer did not agree to HTTP/2")]
    NoHttp2,
    /// The certificate names no SPIFFE id.
    #[error("the peer's certificate names no SPIFFE id")]
    NoIdentity,
    /// The HTTP/2 preface failed.
    #[error("the HTTP/2 handshake failed")]
    Http2(#[source] h2::Error),
}

/// A stream could not be opened: the connection is gone.
#[derive(Debug, thiserror::Error)]
#[error("the tunnel connection is gone")]
pub struct StreamError(#[source] h2::Error);

/// An accepted tunnel connection.
pub struct Tunnel {
    /// Who the peer is.
    pub peer: SpiffeId,
    connection: Connection<TlsStream<BufReader<TcpStream>>, Bytes>,
}

/// A CONNECT that waits for its answer.
pub struct Connect {
    /// Where it wants to go.
    pub authority: Authority,
    /// Its headers.
    pub headers: HeaderMap,
    body: RecvStream,
    respond: SendResponse<Bytes>,
}

/// Accepts TLS and HTTP/2 on `stream`, within [`crate::CONNECT_LIMIT`].
pub async fn accept(stream: TcpStream, config: Arc<ServerConfig>) -> Result<Tunnel, AcceptError> {
    let handshake = async {
        let tls =
            TlsAcceptor::from(config).accept(BufReader::with_capacity(READ, stream)).await.map_err(AcceptError::Tls)?;
        let (_, session) = tls.get_ref();
        if session.alpn_protocol() != Some(ALPN_H2) {
            return Err(AcceptError::NoHttp2);
        }
        let leaf = session.peer_certificates().and_then(|chain| chain.first());
        let peer = leaf.and_then(|leaf| spiffe_id(leaf)).ok_or(AcceptError::NoIdentity)?;
        let mut builder = h2::server::Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            .max_concurrent_streams(SERVER_STREAMS)
            .max_header_list_size(64 << 10)
            .max_send_buffer_size(400 << 10);
        let connection = builder.handshake(tls).await.map_err(AcceptError::Http2)?;
        Ok(Tunnel { peer, connection })
    };
    tokio::time::timeout(crate::CONNECT_LIMIT, handshake).await.map_err(|_| AcceptError::Timeout)?
}

impl Tunnel {
    /// The next CONNECT; `None` when the connection has ended. Other requests are answered 400. Must be polled for the streams
    /// that are open to make progress.
    pub async fn next(&mut self) -> Option<Connect> {
        loop {
            match self.connection.accept().await? {
                Ok((request, respond)) => {
                    if let Some(connect) = connect(request, respond) {
                        return Some(connect);
                    }
                }
                Err(error) => {
                    tracing::debug!(peer = %self.peer, %error, "tunnel connection failed");
                    return None;
                }
            }
        }
    }

    /// Announces the end (GOAWAY): open streams finish, new ones are not taken. [`Tunnel::next`] then ends with the last stream.
    pub fn drain(&mut self) {
        self.connection.graceful_shutdown();
    }
}

fn connect(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> Option<Connect> {
    let (parts, body) = request.into_parts();
    let authority = match (&parts.method, parts.uri.authority().map(|a| a.as_str().parse::<Authority>())) {
        (&Method::CONNECT, Some(Ok(authority))) => authority,
        _ => {
            answer(&mut respond, StatusCode::BAD_REQUEST);
            return None;
        }
    };
    Some(Connect { authority, headers: parts.headers, body, respond })
}

fn answer(respond: &mut SendResponse<Bytes>, status: StatusCode) {
    let mut response = Response::new(());
    *response.status_mut() = status;
    if let Err(error) = respond.send_response(response, true) {
        tracing::debug!(%error, "a refusal could not be sent");
    }
}

impl Connect {
    /// Answers 200 and opens the byte stream.
    pub fn accept(mut self, headers: HeaderMap) -> Result<(TunnelRead, TunnelWrite), StreamError> {
        let mut response = Response::new(());
        *response.headers_mut() = headers;
        let write = self.respond.send_response(response, false).map_err(StreamError)?;
        Ok(stream::halves(self.body, write))
    }

    /// Answers with an error status and no stream.
    pub fn refuse(mut self, status: StatusCode) {
        answer(&mut self.respond, status);
    }
}
