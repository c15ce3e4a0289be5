use super::*;
use crate::ca::{Authority, request};
use std::time::{Duration, SystemTime};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const SERVER: &str = "spiffe://cluster.local/ns/shop/sa/server";
const CLIENT: &str = "spiffe://cluster.local/ns/shop/sa/client";

fn svid_at(ca: &Authority, id: &str, issued: SystemTime) -> Svid {
    let identity: SpiffeId = id.parse().unwrap();
    let (key, csr) = request(&identity).unwrap();
    let chain = ca.sign(&csr, &identity, Duration::from_secs(60), issued).unwrap();
    Svid::from_pem(&identity, &chain, &key).unwrap()
}

fn svid(ca: &Authority, id: &str) -> Svid {
    svid_at(ca, id, SystemTime::now())
}

/// Both ends' view of a handshake: (client accepted, server accepted).
async fn handshake(client: &Svid, server: &Svid, expected: &str) -> (bool, bool) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let connector = TlsConnector::from(client_config(client, vec![expected.parse().unwrap()]).unwrap());
    let name = std::net::IpAddr::from([127, 0, 0, 1]).into();
    let (near, far) = tokio::join!(async { connector.connect(name, near).await.map(drop).is_ok() }, async {
        TlsAcceptor::from(server.server.clone()).accept(far).await.map(drop).is_ok()
    });
    (near, far)
}

#[tokio::test]
async fn peers_of_one_authority_accept_the_expected_identity_alone() {
    let ca = Authority::create("cluster.local").unwrap();
    let (client, server) = (svid(&ca, CLIENT), svid(&ca, SERVER));
    assert_eq!(handshake(&client, &server, SERVER).await, (true, true));
    let other_namespace = svid(&ca, "spiffe://cluster.local/ns/other/sa/server");
    assert_eq!(handshake(&client, &other_namespace, SERVER).await, (false, false));
}

#[tokio::test]
async fn expired_foreign_root_and_foreign_trust_domain_are_refused() {
    let ca = Authority::create("cluster.local").unwrap();
    let (client, server) = (svid(&ca, CLIENT), svid(&ca, SERVER));
    let past = SystemTime::now() - Duration::from_secs(3600);
    assert!(!handshake(&client, &svid_at(&ca, SERVER, past), SERVER).await.0);
    assert!(!handshake(&svid_at(&ca, CLIENT, past), &server, SERVER).await.1);
    let foreign = Authority::create("cluster.local").unwrap();
    assert!(!handshake(&client, &svid(&foreign, SERVER), SERVER).await.0);
    assert!(!handshake(&svid(&foreign, CLIENT), &server, SERVER).await.1);
    let domain = svid(&ca, "spiffe://other.domain/ns/shop/sa/client");
    assert!(!handshake(&domain, &server, SERVER).await.1);
}
