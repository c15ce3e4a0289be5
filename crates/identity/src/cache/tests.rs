use super::*;
use crate::ca::{Authority, request};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

struct Fake {
    ca: Authority,
    life: Duration,
    broken: AtomicBool,
    calls: AtomicU32,
}

impl Fake {
    fn new(life: Duration, broken: bool) -> Arc<Self> {
        let ca = Authority::create("cluster.local").unwrap();
        Arc::new(Self { ca, life, broken: AtomicBool::new(broken), calls: AtomicU32::new(0) })
    }
}

impl Issuer for Fake {
    fn issue<'a>(
        &'a self,
        identity: &'a SpiffeId,
    ) -> Pin<Box<dyn Future<Output = Result<Svid, IssueError>> + Send + 'a>> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            if self.broken.load(Ordering::Relaxed) {
                return Err(IssueError("the CA is away".into()));
            }
            let (key, csr) = request(identity).unwrap();
            let chain = self.ca.sign(&csr, identity, self.life, SystemTime::now()).unwrap();
            Ok(Svid::from_pem(identity, &chain, &key).unwrap())
        })
    }
}

fn id() -> SpiffeId {
    SpiffeId::new("cluster.local", "ns", "sa")
}

#[tokio::test(start_paused = true)]
async fn one_request_serves_all_users_and_the_last_one_ends_it() {
    let fake = Fake::new(Duration::from_secs(3600), false);
    let svids = Svids::new(fake.clone(), &Tasks::default());
    svids.hold(&id());
    svids.hold(&id());
    let first = svids.get(&id(), Duration::from_secs(1)).await.unwrap();
    let again = svids.get(&id(), Duration::from_secs(1)).await.unwrap();
    assert!(Arc::ptr_eq(&first, &again) && fake.calls.load(Ordering::Relaxed) == 1);
    svids.release(&id());
    assert!(svids.get(&id(), Duration::ZERO).await.is_ok());
    svids.release(&id());
    assert!(matches!(svids.get(&id(), Duration::ZERO).await, Err(NoSvid::NotHeld(_))));
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_keeps_the_valid_certificate_and_recovers() {
    let fake = Fake::new(Duration::from_secs(3600), false);
    let svids = Svids::new(fake.clone(), &Tasks::default());
    svids.hold(&id());
    let first = svids.get(&id(), Duration::from_secs(1)).await.unwrap();
    fake.broken.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(2400)).await;
    assert!(fake.calls.load(Ordering::Relaxed) > 2, "renewal was tried at half-life and again after it failed");
    let kept = svids.get(&id(), Duration::ZERO).await.unwrap();
    assert!(Arc::ptr_eq(&first, &kept) && svids.states()[0].1.error.is_some());
    fake.broken.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let renewed = svids.get(&id(), Duration::ZERO).await.unwrap();
    assert!(!Arc::ptr_eq(&first, &renewed) && svids.states()[0].1.error.is_none());
}

#[tokio::test(start_paused = true)]
async fn without_a_certificate_the_reason_is_told() {
    let svids = Svids::new(Fake::new(Duration::from_secs(60), true), &Tasks::default());
    svids.hold(&id());
    let error = svids.get(&id(), Duration::from_secs(2)).await.map(drop).unwrap_err().to_string();
    assert_eq!(error, "no certificate for spiffe://cluster.local/ns/ns/sa/sa within 2s: the CA is away");
}
