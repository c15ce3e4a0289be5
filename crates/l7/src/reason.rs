//! Why a request was refused or failed: a closed set, the same in the access log, in the metrics' `response_flags` and in the reply's
//! `x-trysail-reason`.

/// The reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Nothing is wrong: the application answered.
    None,
    /// The request is malformed or ambiguous (400, 405).
    BadRequest,
    /// The head is larger than the limit (431).
    HeadTooLarge,
    /// A token is missing its validity (401, 403).
    Jwt,
    /// An AuthorizationPolicy refuses (403).
    Authorization,
    /// PeerAuthentication or a required hop refuses.
    PeerAuthentication,
    /// No route matches (404).
    NoRoute,
    /// A NetworkPolicy refuses the endpoint that was chosen, for this caller (403).
    NetworkPolicy,
    /// The route's backend cannot be used (500).
    InvalidBackend,
    /// The service has no endpoint that can be used (503).
    NoEndpoint,
    /// No connection to an endpoint (503).
    ConnectFailure,
    /// The destination's proxy refuses (403).
    RefusedByDestination,
    /// The connection was lost before an answer (503).
    ConnectionLost,
    /// The answer is malformed or its head too large (502).
    BadResponse,
    /// The route's time is over (504).
    Timeout,
    /// A limit of a DestinationRule is reached (503).
    Overflow,
    /// The route's fault (as configured).
    Fault,
    /// The client went away.
    ClientGone,
    /// The proxy is ending (503).
    Draining,
    /// The state of the mesh is not known yet (503).
    NotReady,
}

impl Reason {
    /// All, for documents and tests.
    pub const ALL: [Reason; 20] = [
        Self::None,
        Self::BadRequest,
        Self::HeadTooLarge,
        Self::Jwt,
        Self::Authorization,
        Self::PeerAuthentication,
        Self::NoRoute,
        Self::NetworkPolicy,
        Self::InvalidBackend,
        Self::NoEndpoint,
        Self::ConnectFailure,
        Self::RefusedByDestination,
        Self::ConnectionLost,
        Self::BadResponse,
        Self::Timeout,
        Self::Overflow,
        Self::Fault,
        Self::ClientGone,
        Self::Draining,
        Self::NotReady,
    ];

    /// The stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::BadRequest => "bad_request",
            Self::HeadTooLarge => "head_too_large",
            Self::Jwt => "jwt",
            Self::Authorization => "authorization",
            Self::PeerAuthentication => "peer_authentication",
            Self::NoRoute => "no_route",
            Self::NetworkPolicy => "networkpolicy",
            Self::InvalidBackend => "invalid_backend",
            Self::NoEndpoint => "no_endpoint",
            Self::ConnectFailure => "connect_failure",
            Self::RefusedByDestination => "refused_by_destination",
            Self::ConnectionLost => "connection_lost",
            Self::BadResponse => "bad_response",
            Self::Timeout => "timeout",
            Self::Overflow => "overflow",
            Self::Fault => "fault",
            Self::ClientGone => "client_gone",
            Self::Draining => "draining",
            Self::NotReady => "not_ready",
        }
    }

    /// The status that goes with it.
    pub fn status(self) -> u16 {
        match self {
            Self::None => 200,
            Self::BadRequest => 400,
            Self::HeadTooLarge => 431,
            Self::Jwt => 401,
            Self::Authorization | Self::PeerAuthentication | Self::RefusedByDestination | Self::NetworkPolicy => 403,
            Self::NoRoute => 404,
            Self::InvalidBackend => 500,
            Self::BadResponse => 502,
            Self::Timeout => 504,
            Self::ClientGone => 499,
            Self::NoEndpoint
            | Self::ConnectFailure
            | Self::ConnectionLost
            | Self::Overflow
            | Self::Fault
            | Self::Draining
            | Self::NotReady => 503,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_documented() {
        let text = include_str!("../../../docs/http.md");
        for reason in Reason::ALL {
            assert!(text.contains(&format!("| `{}` |", reason.as_str())), "{}", reason.as_str());
        }
    }
}
