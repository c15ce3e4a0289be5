use super::*;
use crate::svid::Svid;

fn id(text: &str) -> SpiffeId {
    text.parse().unwrap()
}

#[test]
fn an_issued_chain_states_the_identity_that_was_authorised_not_the_one_asked_for() {
    let ca = Authority::create("cluster.local").unwrap();
    let (key, csr) = request(&id("spiffe://cluster.local/ns/evil/sa/evil")).unwrap();
    let wanted = id("spiffe://cluster.local/ns/shop/sa/cart");
    let now = SystemTime::now();
    let chain = ca.sign(&csr, &wanted, Duration::from_secs(600), now).unwrap();
    let svid = Svid::from_pem(&wanted, &chain, &key).unwrap();
    assert_eq!((svid.chain.len(), svid.roots.len()), (2, 1));
    assert!(!svid.expired(now) && svid.expired(now + Duration::from_secs(601)));
    let other = id("spiffe://cluster.local/ns/evil/sa/evil");
    assert!(matches!(Svid::from_pem(&other, &chain, &key), Err(crate::svid::SvidError::OtherIdentity { .. })));
}

#[test]
fn life_is_capped_and_requests_that_are_not_p256_or_not_valid_are_refused() {
    let ca = Authority::create("cluster.local").unwrap();
    let wanted = id("spiffe://cluster.local/ns/a/sa/b");
    let (key, csr) = request(&wanted).unwrap();
    let chain = ca.sign(&csr, &wanted, Duration::from_secs(900 * 86400), SystemTime::now()).unwrap();
    let svid = Svid::from_pem(&wanted, &chain, &key).unwrap();
    assert!(svid.lifetime() <= MAX_TTL + Duration::from_secs(120));
    let p384 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let csr384 = CertificateParams::default().serialize_request(&p384).unwrap().pem().unwrap();
    assert!(matches!(ca.sign(&csr384, &wanted, MAX_TTL, SystemTime::now()), Err(CaError::KeyKind)));
    assert!(matches!(ca.sign("hello", &wanted, MAX_TTL, SystemTime::now()), Err(CaError::Request(_))));
}

#[test]
fn an_authority_survives_a_restart() {
    let dir = std::env::temp_dir().join(format!("trysail-ca-{}", std::process::id()));
    let first = Authority::load_or_create(&dir, "cluster.local").unwrap();
    let again = Authority::load_or_create(&dir, "cluster.local").unwrap();
    assert_eq!(first.root_pem(), again.root_pem());
    let wanted = id("spiffe://cluster.local/ns/a/sa/b");
    let (key, csr) = request(&wanted).unwrap();
    let chain = again.sign(&csr, &wanted, MAX_TTL, SystemTime::now()).unwrap();
    assert!(Svid::from_pem(&wanted, &chain, &key).is_ok());
    fs::remove_dir_all(dir).unwrap();
}
