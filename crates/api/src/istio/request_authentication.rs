//! RequestAuthentication: which tokens are believed.

use super::authorization_policy::TargetRef;
use super::{Istio, WorkloadSelector};
use serde::{Deserialize, Serialize};

/// The object.
pub type RequestAuthentication = Istio<Spec>;

/// Where it applies, and the issuers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The pods; absent = the whole namespace, or the mesh in the root namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<WorkloadSelector>,
    /// Waypoints, gateways or services that enforce it instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target_refs: Vec<TargetRef>,
    /// The issuers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jwt_rules: Vec<JwtRule>,
}

/// An issuer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JwtRule {
    /// Claim `iss`.
    pub issuer: String,
    /// Claim `aud`: one of these, if any is given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audiences: Vec<String>,
    /// Where its keys are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_uri: Option<String>,
    /// Its keys (RFC 7517).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks: Option<String>,
    /// Headers that hold the token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from_headers: Vec<FromHeader>,
    /// Query parameters that hold the token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from_params: Vec<String>,
    /// Cookies that hold the token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from_cookies: Vec<String>,
    /// The token is passed on.
    #[serde(default)]
    pub forward_original_token: bool,
    /// Header that gets the claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_payload_to_header: Option<String>,
    /// Headers that get single claims.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_claim_to_headers: Vec<ClaimToHeader>,
    /// Limit of fetching keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

/// A header that holds a token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FromHeader {
    /// Name.
    pub name: String,
    /// What stands before the token.
    #[serde(default)]
    pub prefix: String,
}

/// A claim to a header.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClaimToHeader {
    /// Header.
    pub header: String,
    /// Claim.
    pub claim: String,
}
