//! The original caller, as an L7 hop states it on the tunnel to the destination. Whoever reads it must know that the hop may speak for it.

use http::HeaderMap;
use http::header::HeaderValue;
use std::net::IpAddr;
use trysail_api::ids::SpiffeId;

/// The header of a CONNECT that states the caller.
pub const HEADER: &str = "x-trysail-caller";

/// Who called the hop, as the hop proved it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// Identity, from the certificate that the hop saw; none for a plaintext caller.
    pub identity: Option<SpiffeId>,
    /// Address from which it called the hop.
    pub address: IpAddr,
}

impl Caller {
    /// Puts the statement into the headers of a CONNECT.
    pub fn state(&self, headers: &mut HeaderMap) {
        let identity = self.identity.as_ref().map(ToString::to_string).unwrap_or_default();
        if let Ok(value) = HeaderValue::from_str(&format!("{};{identity}", self.address)) {
            headers.insert(HEADER, value);
        }
    }

    /// Reads the statement. `Err`: there is one that cannot be read, which must not be taken for none.
    pub fn stated(headers: &HeaderMap) -> Result<Option<Self>, Unreadable> {
        let mut values = headers.get_all(HEADER).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return if headers.contains_key(HEADER) { Err(Unreadable) } else { Ok(None) };
        };
        let text = value.to_str().map_err(|_| Unreadable)?;
        let (address, identity) = text.split_once(';').ok_or(Unreadable)?;
        let identity = if identity.is_empty() { None } else { Some(identity.parse().map_err(|_| Unreadable)?) };
        Ok(Some(Self { identity, address: address.parse().map_err(|_| Unreadable)? }))
    }
}

/// A statement of a caller that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the statement of the original caller cannot be read")]
pub struct Unreadable;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_read_as_it_is_stated_and_anything_else_is_an_error() {
        for identity in [Some(SpiffeId::new("td", "c", "web")), None] {
            let caller = Caller { identity, address: "10.1.0.5".parse().unwrap() };
            let mut headers = HeaderMap::new();
            assert_eq!(Caller::stated(&headers), Ok(None));
            caller.state(&mut headers);
            assert_eq!(Caller::stated(&headers), Ok(Some(caller)));
            headers.append(HEADER, HeaderValue::from_static("10.1.0.6;"));
            assert_eq!(Caller::stated(&headers), Err(Unreadable));
        }
        for bad in ["", "10.1.0.5", "host;spiffe://td/ns/a/sa/b", "10.1.0.5;web"] {
            let headers = HeaderMap::from_iter([(HEADER.parse().unwrap(), HeaderValue::from_str(bad).unwrap())]);
            assert_eq!(Caller::stated(&headers), Err(Unreadable), "{bad}");
        }
    }
}
