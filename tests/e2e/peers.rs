//! A peer is who its certificate says, if the mesh says so too.

use crate::support::*;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use trysail_api::ids::SpiffeId;
use trysail_identity::ca::{Authority, request};

pub const TESTS: &[Test] = &[("peers_with_wrong_expired_or_foreign_certificates_are_refused", certificates)];

fn certificates(user: User) {
    let manifests = [
        namespace("m", AMBIENT),
        namespace("raw", ""),
        echo("m", "web", 1),
        client("raw", "caller"),
        peer_authentication("m", "default", "{mtls: {mode: STRICT}}"),
    ]
    .concat();
    let lab = up(user, &manifests);
    let ip = lab.pod("m", "web", "status.podIP");
    let scratch = PathBuf::from(format!("/proc/{}/root", lab.host_pid()));
    let places = ["mnt", "media", "srv", "opt"].map(|dir| scratch.join(dir).join("ca"));
    let dir = places.iter().find(|d| d.join("ca-key.pem").exists()).expect("the lab's authority");
    let own = Authority::load_or_create(dir, "cluster.local").unwrap();
    let foreign = Authority::create("cluster.local").unwrap();
    // Dials the web pod's tunnel port from the pod raw/client, with a certificate of `ca` for `id`, issued at `at` for a minute.
    let dial = |ca: &Authority, id: &str, at: SystemTime, authority: &str| {
        let identity: SpiffeId = id.parse().unwrap();
        let (key, csr) = request(&identity).unwrap();
        let chain = ca.sign(&csr, &identity, Duration::from_secs(60), at).unwrap().join("");
        let (code, said) = lab.exec(
            "raw",
            "client",
            &[tool(), "tool", "tunnel", &format!("{ip}:15008"), authority, id, &chain, &key, own.root_pem()],
        );
        assert_eq!(code, 0, "{said}");
        said.trim().to_owned()
    };
    let (now, app) = (SystemTime::now(), format!("{ip}:8080"));
    let caller = "spiffe://cluster.local/ns/raw/sa/caller";
    assert_eq!(dial(&own, caller, now, &app), "open", "the workload at this address has this identity");
    assert_eq!(
        dial(&own, "spiffe://cluster.local/ns/m/sa/default", now, &app),
        "refused 401 Unauthorized",
        "the certificate of another namespace"
    );
    assert_eq!(dial(&own, caller, now - Duration::from_secs(3600), &app), "tls", "expired");
    assert_eq!(dial(&foreign, caller, now, &app), "tls", "another root");
    assert_eq!(dial(&own, "spiffe://other.domain/ns/raw/sa/caller", now, &app), "tls", "another trust domain");
    // A tunnel leads to the application of the pod that was dialled, nowhere else.
    assert_eq!(dial(&own, caller, now, "10.244.1.99:8080"), "refused 400 Bad Request");
    for port in [15001, 15006, 15008] {
        assert_eq!(dial(&own, caller, now, &format!("{ip}:{port}")), "refused 503 Service Unavailable");
    }
    assert_eq!(dial(&own, caller, now, &format!("{ip}:1")), "refused 503 Service Unavailable", "nothing listens there");
    assert_eq!(lab.logs("m", "web", "second").matches("connection from").count(), 0);
}
