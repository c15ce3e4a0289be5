//! What a pod's tasks share, and what they tell of it.

use crate::images::{Images, OWN, PATH};
use crate::rootfs::View;
use crate::spawn::{Output, Start};
use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use trysail_api::k8s_openapi::api::core::v1::{Container, EnvVar, Pod, Volume};
use trysail_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use trysail_identity::token::{Bound, Named, Signer, TokenError};
use trysail_netns::ns::NetNs;

/// Data of ConfigMaps or Secrets of the pod's namespace, by name.
pub type Data = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// Life of a pod, as Kubernetes names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are Kubernetes'")]
pub enum Phase {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// A container as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerView {
    /// Its process.
    pub pid: Option<u32>,
    /// Passes its readiness probe, or has none and runs.
    pub ready: bool,
    /// Times it was started again.
    pub restarts: u32,
    /// Exit code of the last end.
    pub exit: Option<i32>,
    /// Why it waits; empty when it does not.
    pub waiting: String,
}

/// A pod as it is now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    /// Phase.
    pub phase: Phase,
    /// Address.
    pub address: Option<Ipv4Addr>,
    /// Path of its network namespace.
    pub netns: PathBuf,
    /// Containers, in the order of the spec.
    pub containers: Vec<ContainerView>,
    /// Native sidecars, by name.
    pub sidecars: BTreeMap<String, ContainerView>,
    /// Why it does not get on; empty when it does.
    pub reason: String,
    /// All processes have ended; its network is still there.
    pub ended: bool,
    /// Nothing of it is left.
    pub gone: bool,
}

impl PodView {
    /// Whether every container is ready.
    pub fn ready(&self) -> bool {
        self.phase == Phase::Running && !self.containers.is_empty() && self.containers.iter().all(|c| c.ready)
    }
}

/// What all tasks of a pod use.
pub struct Context {
    /// The object.
    pub pod: Pod,
    /// Its uid.
    pub uid: String,
    /// Its network namespace.
    pub ns: NetNs,
    /// Its node's.
    pub node: NetNs,
    /// Its node's address on the fabric.
    pub node_address: Ipv4Addr,
    /// Its address.
    pub address: Ipv4Addr,
    /// Folder for its files on the scratch file system.
    pub dir: PathBuf,
    /// Images.
    pub images: Arc<Images>,
    /// ConfigMaps of its namespace.
    pub configs: Arc<Data>,
    /// Secrets of its namespace.
    pub secrets: Arc<Data>,
    /// Output of its containers, by name.
    pub outputs: BTreeMap<String, Output>,
    /// Signs service account tokens.
    pub signer: Arc<Signer>,
}

impl Context {
    fn meta(&self, get: fn(&Pod) -> Option<&String>) -> String {
        get(&self.pod).cloned().unwrap_or_default()
    }

    /// Name.
    pub fn name(&self) -> String {
        self.meta(|p| p.metadata.name.as_ref())
    }

    /// Namespace.
    pub fn namespace(&self) -> String {
        self.meta(|p| p.metadata.namespace.as_ref())
    }

    /// What a container starts with.
    pub fn start(&self, container: &Container) -> Result<Start, String> {
        let env = self.env(container)?;
        let expand = |words: &Option<Vec<String>>| {
            words
                .iter()
                .flatten()
                .map(|w| env.iter().fold(w.clone(), |w, (k, v)| w.replace(&format!("$({k})"), v)))
                .collect::<Vec<_>>()
        };
        let image = container.image.as_deref().unwrap_or_default();
        let program = self
            .images
            .program(image, &expand(&container.command), &expand(&container.args))
            .map_err(|e| e.to_string())?;
        Ok(Start { program, dir: container.working_dir.as_ref().map(PathBuf::from), env })
    }

    /// A further command in a container.
    pub fn start_command(&self, container: &Container, command: &[String]) -> Result<Start, String> {
        let env = self.env(container)?;
        let (first, rest) = command.split_first().ok_or("a command is needed")?;
        let program = self.images.resolve(first, rest.to_vec()).ok_or_else(|| format!("{first}: not found on PATH"))?;
        Ok(Start { program, dir: container.working_dir.as_ref().map(PathBuf::from), env })
    }

    fn env(&self, container: &Container) -> Result<BTreeMap<String, String>, String> {
        let mut env = BTreeMap::from([
            ("PATH".to_owned(), format!("/.trysail/bin:{PATH}")),
            ("HOSTNAME".to_owned(), self.name()),
            ("HOME".to_owned(), "/".to_owned()),
            ("KUBERNETES_SERVICE_HOST".to_owned(), "10.96.0.1".to_owned()),
        ]);
        for variable in container.env.iter().flatten() {
            let value = self.variable(variable)?;
            env.insert(variable.name.clone(), value);
        }
        Ok(env)
    }

    fn variable(&self, variable: &EnvVar) -> Result<String, String> {
        let Some(source) = &variable.value_from else { return Ok(variable.value.clone().unwrap_or_default()) };
        if let Some(field) = &source.field_ref {
            return match field.field_path.as_str() {
                "metadata.name" => Ok(self.name()),
                "metadata.namespace" => Ok(self.namespace()),
                "metadata.uid" => Ok(self.uid.clone()),
                "status.podIP" | "status.podIPs" => Ok(self.address.to_string()),
                "status.hostIP" => Ok(self.node_address.to_string()),
                "spec.nodeName" => Ok(self.pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default()),
                "spec.serviceAccountName" => {
                    Ok(self.pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).unwrap_or_default())
                }
                other => Err(format!("env {}: field {other} is not supported here", variable.name)),
            };
        }
        let (data, name, key, kind) = match (&source.config_map_key_ref, &source.secret_key_ref) {
            (Some(r), _) => (&self.configs, &r.name, &r.key, "ConfigMap"),
            (_, Some(r)) => (&self.secrets, &r.name, &r.key, "Secret"),
            _ => return Err(format!("env {}: this source is not supported here", variable.name)),
        };
        let bytes = data
            .get(name)
            .and_then(|m| m.get(key))
            .ok_or_else(|| format!("env {}: {kind} {name} has no key {key}", variable.name))?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    /// Files that every container of the pod sees.
    pub fn write_files(&self) -> io::Result<()> {
        std::fs::create_dir_all(self.dir.join("bin"))?;
        // This binary is mounted over an empty file: wherever it lies, pods find it here, also under the name it stands in for.
        std::fs::write(self.dir.join("bin/trysail"), "")?;
        std::os::unix::fs::symlink("trysail", self.dir.join("bin/fortio"))?;
        let namespace = self.namespace();
        let search = format!("{namespace}.svc.cluster.local svc.cluster.local cluster.local");
        std::fs::write(
            self.dir.join("resolv.conf"),
            format!("nameserver {}\nsearch {search}\noptions ndots:5\n", crate::world::RESOLVER),
        )?;
        std::fs::write(self.dir.join("hosts"), format!("127.0.0.1 localhost\n{} {}\n", self.address, self.name()))?;
        for volume in self.pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            self.volume(volume)?;
        }
        Ok(())
    }

    fn volume(&self, volume: &Volume) -> io::Result<()> {
        let dir = self.volume_dir(&volume.name);
        std::fs::create_dir_all(&dir)?;
        for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            if let Some(map) = &source.config_map {
                for (key, bytes) in self.configs.get(&map.name).into_iter().flatten() {
                    std::fs::write(dir.join(key), bytes)?;
                }
            }
            if let Some(token) = &source.service_account_token {
                let path = Path::new(&token.path).file_name().unwrap_or_default();
                std::fs::write(dir.join(path), self.token().map_err(io::Error::other)?)?;
            }
        }
        let (data, name, items) = match (&volume.config_map, &volume.secret) {
            (Some(c), _) => (&self.configs, c.name.clone(), c.items.clone()),
            (_, Some(s)) => (&self.secrets, s.secret_name.clone().unwrap_or_default(), s.items.clone()),
            _ => return Ok(()),
        };
        for (key, bytes) in data.get(&name).into_iter().flatten() {
            let path = match &items {
                Some(items) => items.iter().find(|i| i.key == *key).map(|i| i.path.clone()),
                None => Some(key.clone()),
            };
            let Some(path) = path.filter(|p| !Path::new(p).is_absolute() && !p.contains("..")) else { continue };
            let file = dir.join(path);
            std::fs::create_dir_all(file.parent().unwrap_or(&dir))?;
            std::fs::write(file, bytes)?;
        }
        Ok(())
    }

    /// A token of the pod's service account, for the control plane.
    fn token(&self) -> Result<String, TokenError> {
        let spec = self.pod.spec.as_ref();
        let text = |get: fn(&trysail_api::k8s_openapi::api::core::v1::PodSpec) -> Option<&String>| {
            spec.and_then(get).cloned().unwrap_or_default()
        };
        let named = |name: String| Named { uid: name.clone(), name };
        let bound = Bound {
            namespace: self.namespace(),
            service_account: named(text(|s| s.service_account_name.as_ref())),
            pod: Named { name: self.name(), uid: self.uid.clone() },
            node: named(text(|s| s.node_name.as_ref())),
        };
        self.signer.sign(&bound, crate::system::TOKEN_TTL)
    }

    fn volume_dir(&self, name: &str) -> PathBuf {
        self.dir.join("volumes").join(name)
    }

    /// A container's view of the file system, with `program` in it even where pods have folders of their own.
    pub fn view(&self, container: &Container, program: &Path) -> io::Result<View> {
        let root = self.dir.join("root").join(&container.name);
        std::fs::create_dir_all(&root)?;
        let mut mounts = vec![
            (PathBuf::from("/etc/hosts"), self.dir.join("hosts"), true),
            (PathBuf::from("/etc/resolv.conf"), self.dir.join("resolv.conf"), true),
            (PathBuf::from("/.trysail/bin"), self.dir.join("bin"), false),
            (PathBuf::from(OWN), self.images.own().to_owned(), false),
        ];
        if ["/tmp", "/run"].iter().any(|own| program.starts_with(own)) {
            mounts.push((program.to_owned(), program.to_owned(), false));
        }
        for mount in container.volume_mounts.iter().flatten() {
            let mut source = self.volume_dir(&mount.name);
            if let Some(sub) = mount.sub_path.as_ref().filter(|s| !s.contains("..")) {
                source.push(sub);
            }
            let is_data = self
                .pod
                .spec
                .iter()
                .flat_map(|s| s.volumes.iter().flatten())
                .any(|v| v.name == mount.name && v.empty_dir.is_none());
            mounts.push((PathBuf::from(&mount.mount_path), source, !is_data && mount.read_only != Some(true)));
        }
        Ok(View { root, mounts, hidden: vec![crate::system::scratch()] })
    }
}

/// A port by number, or by a container port's name.
pub fn port(container: &Container, port: &IntOrString) -> Option<u16> {
    let number = |n: i32| u16::try_from(n).ok();
    match port {
        IntOrString::Int(n) => number(*n),
        IntOrString::String(name) => {
            let mut declared = container.ports.iter().flatten();
            declared
                .find(|p| p.name.as_deref() == Some(name))
                .and_then(|p| number(p.container_port))
                .or_else(|| name.parse().ok())
        }
    }
}
