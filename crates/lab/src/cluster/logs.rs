//! Output of containers: of pods that are there, and for a while of pods that are gone, so that what happened at their end can be read.

use super::{Cluster, Running};
use crate::api::{Answer, Target};
use crate::spawn::Output;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use trysail_api::object::{Object, ObjectKey};

/// Output of pods that are gone that is kept in all, bytes; the oldest goes first.
const KEPT: u64 = 32 << 20;

/// Output of pods that are gone, the oldest first.
#[derive(Default)]
pub(super) struct Past {
    pods: VecDeque<(ObjectKey, BTreeMap<String, Output>)>,
    bytes: u64,
    /// Pods that are gone so far; each has its number.
    next: u64,
}

impl Past {
    /// Keeps the output of a pod that is gone.
    pub(super) fn keep(&mut self, running: Running) {
        self.push(running.key, running.outputs);
    }

    fn push(&mut self, key: ObjectKey, outputs: BTreeMap<String, Output>) {
        self.bytes += held(&outputs);
        self.next += 1;
        self.pods.push_back((key, outputs));
        while self.bytes > KEPT
            && let Some((_, oldest)) = self.pods.pop_front()
        {
            self.bytes = self.bytes.saturating_sub(held(&oldest));
        }
    }

    /// The number of the first pod that is still kept.
    fn kept_from(&self) -> u64 {
        self.next - self.pods.len() as u64
    }

    /// What is kept of the pods that are gone, from number `since` on.
    fn since(&self, since: u64) -> impl Iterator<Item = (&ObjectKey, &BTreeMap<String, Output>)> {
        let numbered = (self.kept_from()..).zip(&self.pods);
        numbered.filter(move |(number, _)| *number >= since).map(|(_, (key, outputs))| (key, outputs))
    }
}

fn held(outputs: &BTreeMap<String, Output>) -> u64 {
    outputs.values().map(Output::held).sum()
}

impl Cluster {
    pub(super) fn logs(&self, target: &Target, offset: u64) -> Answer {
        let running = match self.find_pod(target) {
            Ok(running) => running,
            Err(error) => return Answer::error(error),
        };
        let first = || {
            self.store.get(&running.key).and_then(|o| match o {
                Object::Pod(p) => p.spec.as_ref()?.containers.first().map(|c| c.name.clone()),
                _ => None,
            })
        };
        let name = target.container.clone().or_else(first).unwrap_or_default();
        let Some(output) = running.outputs.get(&name) else {
            return Answer::error(format!("error: container {name} is not valid for pod {}", running.key.name));
        };
        let (bytes, end) = output.since(offset);
        Answer::ok(json!({"text": String::from_utf8_lossy(&bytes), "offset": end}))
    }

    /// Output of every container of a namespace: of its pods, and of those that are gone and have number `since` or a later one.
    /// `kept_from` is the first number that is still kept, `next` the one that the next pod will have when it is gone.
    pub(super) fn all_logs(&self, namespace: &str, since: u64) -> Answer {
        let now = self.pods.values().map(|running| (&running.key, &running.outputs));
        let own = self.past.since(since).chain(now).filter(|(key, _)| key.namespace == namespace);
        let one = |(key, outputs): (&ObjectKey, &BTreeMap<String, Output>)| -> Vec<Value> {
            let container = |(name, output): (&String, &Output)| {
                let (bytes, end) = output.since(0);
                let text = String::from_utf8_lossy(&bytes);
                json!({"pod": key.name, "container": name, "text": text, "dropped": end - bytes.len() as u64})
            };
            outputs.iter().map(container).collect()
        };
        let logs: Vec<Value> = own.flat_map(one).collect();
        Answer::ok(json!({"logs": logs, "kept_from": self.past.kept_from(), "next": self.past.next}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trysail_api::object::Kind;

    #[test]
    fn the_oldest_output_is_forgotten_and_that_is_known() {
        let mut past = Past::default();
        let mut gone = |name: u64, bytes: usize| {
            let output = Output::default();
            output.push(&vec![b'x'; bytes]);
            let key = ObjectKey::new(Kind::Pod, "a", &name.to_string());
            past.push(key, BTreeMap::from([("main".to_owned(), output)]));
        };
        let fit = KEPT >> 20;
        (0..fit + 2).for_each(|name| gone(name, 1 << 20));
        gone(fit + 2, 10);
        assert_eq!((past.kept_from(), past.next), (3, fit + 3));
        assert!(past.bytes <= KEPT);
        let names = |since: u64| past.since(since).map(|(key, _)| key.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(0).first().map(String::as_str), Some("3"));
        assert_eq!(names(fit + 2), [(fit + 2).to_string()]);
        assert_eq!(names(u64::MAX), Vec::<String>::new());
    }
}
