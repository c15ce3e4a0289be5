//! The lab's objects, in memory and, for the control plane, as files in a folder.

use jiff::Timestamp;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use trysail_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use trysail_api::object::{Kind, Object, ObjectKey};
use trysail_control::translate::objects::Objects;

/// The objects.
pub struct Store {
    objects: Objects,
    dir: PathBuf,
    version: u64,
    /// The version of the last change of each kind.
    changes: BTreeMap<Kind, u64>,
}

/// Kinds that the control plane reads.
const PUBLISHED: [Kind; 15] = [
    Kind::Namespace,
    Kind::Pod,
    Kind::Service,
    Kind::Secret,
    Kind::PeerAuthentication,
    Kind::AuthorizationPolicy,
    Kind::RequestAuthentication,
    Kind::VirtualService,
    Kind::DestinationRule,
    Kind::GatewayClass,
    Kind::Gateway,
    Kind::HTTPRoute,
    Kind::GRPCRoute,
    Kind::ReferenceGrant,
    Kind::NetworkPolicy,
];

impl Store {
    /// An empty store that writes to `dir`.
    pub fn new(dir: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&dir)?;
        Ok(Self { objects: Objects::default(), dir, version: 0, changes: BTreeMap::new() })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// One object.
    pub fn get(&self, key: &ObjectKey) -> Option<&Object> {
        self.objects.get(key)
    }

    /// All objects of a kind; of one namespace if given.
    pub fn list(&self, kind: Kind, namespace: Option<&str>) -> Vec<&Object> {
        let inside = |object: &&Object| {
            namespace.is_none_or(|n| !kind.namespaced() || object.meta().namespace.as_deref() == Some(n))
        };
        self.objects.of(kind).filter(inside).collect()
    }

    /// All objects.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Changes with every change of an object of these kinds.
    pub fn changed(&self, kinds: &[Kind]) -> u64 {
        kinds.iter().filter_map(|kind| self.changes.get(kind)).max().copied().unwrap_or(0)
    }

    /// Puts an object in, with a new resource version; uid and creation time are kept or made. Returns its key.
    pub fn put(&mut self, mut object: Object) -> io::Result<ObjectKey> {
        let key = object.key();
        self.version += 1;
        let version = self.version;
        let old = self.objects.get(&key).map(|o| o.meta().clone());
        let meta = object.meta_mut();
        meta.resource_version = Some(version.to_string());
        let (old_uid, old_created) = old.map(|m| (m.uid, m.creation_timestamp)).unwrap_or_default();
        meta.uid = meta.uid.take().or(old_uid).or_else(|| Some(new_uid()));
        meta.creation_timestamp = old_created.or(meta.creation_timestamp.take()).or_else(|| Some(now()));
        if key.kind.namespaced() {
            meta.namespace = Some(key.namespace.clone());
        }
        self.write(&key, &object)?;
        self.changes.insert(key.kind, version);
        self.objects.set(key.clone(), Some(object));
        Ok(key)
    }

    /// Takes an object out.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<Object> {
        let removed = self.objects.remove(key)?;
        self.version += 1;
        self.changes.insert(key.kind, self.version);
        if PUBLISHED.contains(&key.kind)
            && let Err(error) = std::fs::remove_file(self.file(key))
        {
            tracing::error!(%key, %error, "an object's file could not be removed");
        }
        Some(removed)
    }

    fn file(&self, key: &ObjectKey) -> PathBuf {
        self.dir.join(format!("{}_{}_{}.json", key.kind.plural(), key.namespace, key.name))
    }

    fn write(&self, key: &ObjectKey, object: &Object) -> io::Result<()> {
        if !PUBLISHED.contains(&key.kind) {
            return Ok(());
        }
        let mut value = object.to_json();
        // The typed form knows its kind; the file must say it.
        if let Some(map) = value.as_object_mut() {
            map.insert("kind".into(), key.kind.as_str().into());
            map.insert("apiVersion".into(), key.kind.versions().first().copied().unwrap_or_default().into());
        }
        let temporary = self.dir.join(format!(".{}_{}_{}.tmp", key.kind.plural(), key.namespace, key.name));
        std::fs::write(&temporary, serde_json::to_vec(&value)?)?;
        std::fs::rename(temporary, self.file(key))
    }
}

/// Now, to the second, as Kubernetes writes it.
pub fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// A random uid (RFC 4122, version 4).
pub fn new_uid() -> String {
    let bits: u128 = rand::random();
    let hex = format!("{:032x}", (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62));
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default().to_owned();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

/// Five letters for a pod's name.
pub fn suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let letter = |_| LETTERS.get(rand::random_range(0..LETTERS.len())).copied().map(char::from).unwrap_or('x');
    (0..5).map(letter).collect()
}
