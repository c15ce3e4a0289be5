//! The snapshot cell: one immutable value, published whole, with a generation that others can await.

use arc_swap::ArcSwap;
use std::sync::Arc;
use tokio::sync::watch;

/// Holds the current `T`. Readers take one `Arc` a decision; there is one writer.
pub struct SnapshotCell<T> {
    current: ArcSwap<T>,
    generation: watch::Sender<u64>,
}

impl<T> SnapshotCell<T> {
    /// A cell at generation 0.
    pub fn new(initial: T) -> Self {
        Self { current: ArcSwap::from_pointee(initial), generation: watch::channel(0).0 }
    }

    /// The current value.
    pub fn load(&self) -> Arc<T> {
        self.current.load_full()
    }

    /// Replaces the value, then wakes those who await a later generation.
    pub fn publish(&self, next: T) {
        self.current.store(Arc::new(next));
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// A receiver that resolves `changed()` at each later generation.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Waits until `ready` holds of the current value, at most `limit`; then the value, or `None`.
    pub async fn wait_for<R>(&self, limit: std::time::Duration, ready: impl Fn(&T) -> Option<R>) -> Option<R> {
        let mut generations = self.watch();
        let found = async {
            loop {
                if let Some(result) = ready(&self.load()) {
                    return Some(result);
                }
                if generations.changed().await.is_err() {
                    return None;
                }
            }
        };
        tokio::time::timeout(limit, found).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_waiter_sees_the_generation_it_waits_for_or_gives_up() {
        let cell = Arc::new(SnapshotCell::new(0));
        let wait = |least: i32| {
            let cell = cell.clone();
            async move { cell.wait_for(Duration::from_secs(5), |v| (*v >= least).then_some(*v)).await }
        };
        let (found, ()) = tokio::join!(wait(2), async {
            for value in 1..=2 {
                tokio::task::yield_now().await;
                cell.publish(value);
            }
        });
        assert_eq!(found, Some(2));
        assert_eq!(wait(3).await, None);
    }
}
