//! Connections to endpoints: plain, in a tunnel, or with a sidecar's mutual TLS on the application's own port.

use http::HeaderMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use trysail_api::ids::{SpiffeId, WorkloadUid};
use trysail_base::tasks::Tasks;
use trysail_hbone::authority::Authority;
use trysail_hbone::caller::Caller;
use trysail_hbone::client::{DialError as TunnelError, Slot, handshake};
use trysail_hbone::pool::{Key as TunnelKey, Pool as Tunnels};
use trysail_hbone::stream::TunnelIo;
use trysail_identity::cache::{NoSvid, Svids};
use trysail_identity::svid::SvidError;
use trysail_identity::tls::{client_config, sidecar_client_config};
use trysail_netns::socket::Sockets;

/// How long a connection waits for a certificate.
const SVID_LIMIT: Duration = Duration::from_secs(5);

/// Where a connection leads, and how.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Plain TCP.
    Plain {
        /// Where to.
        address: SocketAddr,
        /// From this address, which need not be one's own.
        source: Option<IpAddr>,
    },
    /// Through a tunnel.
    Tunnel {
        /// The workload at its end.
        uid: WorkloadUid,
        /// The identities that it may have.
        expected: Vec<SpiffeId>,
        /// Where the tunnel ends.
        address: SocketAddr,
        /// Where the inner connection leads.
        inner: SocketAddr,
        /// The original caller, stated by a hop that may.
        caller: Option<Caller>,
    },
    /// A sidecar's mutual TLS.
    Sidecar {
        /// The workload.
        uid: WorkloadUid,
        /// The identities that it may have.
        expected: Vec<SpiffeId>,
        /// Its application's port.
        address: SocketAddr,
    },
}

impl Target {
    /// The workload that it leads to.
    pub fn uid(&self) -> Option<&WorkloadUid> {
        match self {
            Self::Plain { .. } => None,
            Self::Tunnel { uid, .. } | Self::Sidecar { uid, .. } => Some(uid),
        }
    }

    /// The address that is dialled.
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Plain { address, .. } | Self::Tunnel { address, .. } | Self::Sidecar { address, .. } => *address,
        }
    }

    /// Whether the far end proves its identity.
    pub fn mutual(&self) -> bool {
        !matches!(self, Self::Plain { .. })
    }
}

/// Why there is no connection. No byte of a request was sent.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// TCP or TLS.
    #[error("connecting to {0} failed")]
    Connect(SocketAddr, #[source] io::Error),
    /// Took too long.
    #[error("connecting to {0} took too long")]
    Timeout(SocketAddr),
    /// No certificate of one's own.
    #[error(transparent)]
    NoSvid(#[from] NoSvid),
    /// The certificate cannot be used.
    #[error(transparent)]
    Svid(#[from] SvidError),
    /// The tunnel.
    #[error("no tunnel to {0}")]
    Tunnel(SocketAddr, #[source] TunnelError),
    /// HTTP on the connection.
    #[error("no HTTP connection to {0}")]
    Http(SocketAddr, #[source] hyper::Error),
}

impl DialError {
    /// Whether the destination's proxy has judged: another endpoint would say the same.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Tunnel(_, TunnelError::Refused(status)) if matches!(status.as_u16(), 401 | 403))
    }
}

/// An open connection.
pub enum Stream {
    /// Plain.
    Tcp(TcpStream),
    /// A sidecar's.
    Tls(Box<TlsStream<TcpStream>>),
    /// In a tunnel, with its place in the tunnel's connection.
    Tunnel(Box<TunnelIo>, Slot),
}

macro_rules! each {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Tcp($stream) => $call,
            Stream::Tls($stream) => $call,
            Stream::Tunnel($stream, _) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self, s => Pin::new(s).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, s => Pin::new(s).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, s => Pin::new(s).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, s => Pin::new(s).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, s => Pin::new(s).poll_shutdown(cx))
    }
}

/// Makes connections.
pub struct Dialler {
    /// Sockets of the own namespace.
    pub sockets: Sockets,
    /// The own certificate.
    pub svids: Arc<Svids>,
    /// The own identity.
    pub identity: SpiffeId,
    /// The own workload.
    pub uid: WorkloadUid,
    /// Tunnels.
    pub tunnels: Tunnels,
    /// Headers that describe this workload on a tunnel.
    pub baggage: HeaderMap,
    /// Owner of connections' tasks.
    pub tasks: Tasks,
}

impl Dialler {
    /// Opens a connection; `alpn` is what a sidecar is told of it.
    pub async fn dial(&self, target: &Target, alpn: &[u8], limit: Option<Duration>) -> Result<Stream, DialError> {
        let limit = limit.unwrap_or(trysail_hbone::CONNECT_LIMIT);
        let opened = tokio::time::timeout(limit, self.open(target, alpn)).await;
        opened.unwrap_or(Err(DialError::Timeout(target.address())))
    }

    async fn open(&self, target: &Target, alpn: &[u8]) -> Result<Stream, DialError> {
        let connect = |address, source| async move {
            self.sockets.connect(address, source).await.map_err(|e| DialError::Connect(address, e))
        };
        match target {
            Target::Plain { address, source } => connect(*address, *source).await.map(Stream::Tcp),
            Target::Sidecar { expected, address, .. } => {
                let svid = self.svids.get(&self.identity, SVID_LIMIT).await?;
                let config = sidecar_client_config(&svid, expected.clone(), alpn)?;
                let stream = connect(*address, None).await?;
                let tls = TlsConnector::from(config).connect(address.ip().into(), stream).await;
                tls.map(|tls| Stream::Tls(Box::new(tls))).map_err(|e| DialError::Connect(*address, e))
            }
            Target::Tunnel { uid, expected, address, inner, caller } => {
                let svid = self.svids.get(&self.identity, SVID_LIMIT).await?;
                let config = client_config(&svid, expected.clone())?;
                let key = TunnelKey {
                    source: self.uid.clone(),
                    source_identity: self.identity.clone(),
                    destination: uid.clone(),
                    expected: expected.clone(),
                    address: *address,
                };
                let dial = || {
                    let config = config.clone();
                    async move {
                        let stream = self.sockets.connect(*address, None).await.map_err(TunnelError::Connect)?;
                        handshake(stream, config, &self.tasks).await
                    }
                };
                let mut headers = self.baggage.clone();
                if let Some(caller) = caller {
                    caller.state(&mut headers);
                }
                let opened = self.tunnels.open(&key, &Authority::Address(*inner), &headers, dial).await;
                let pooled = opened.map_err(|e| DialError::Tunnel(*address, e))?;
                Ok(Stream::Tunnel(Box::new(TunnelIo::new(pooled.read, pooled.write)), pooled.slot))
            }
        }
    }
}
