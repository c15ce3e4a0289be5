//! The inner address of a tunnel: what `:authority` of a CONNECT names.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// Where a tunnel's inner connection goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Authority {
    /// An address and port.
    Address(SocketAddr),
    /// A host name and port, resolved by the far end.
    Host(String, u16),
}

/// Not an authority with a port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address or host name with a port")]
pub struct AuthorityError(pub String);

impl FromStr for Authority {
    type Err = AuthorityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self::Address(address));
        }
        let error = || AuthorityError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let name = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-' || c == '_';
        if host.is_empty() || !host.chars().all(name) {
            return Err(error());
        }
        Ok(Self::Host(host.to_owned(), port.parse().map_err(|_| error())?))
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Host(host, port) => write!(f, "{host}:{port}"),
        }
    }
}
