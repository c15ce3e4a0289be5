//! The network of the lab: a fabric bridge, nodes on it, pods on nodes. Everything is in namespaces that end with this process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use trysail_netns::link::{LinkError, Links};
use trysail_netns::nft::{self, NftError};
use trysail_netns::ns::{NetNs, NsError, sysctl};
use trysail_netns::socket::datagram_and_listener;

/// The fabric's bridge, in the lab's own namespace.
pub const FABRIC: &str = "fabric";
/// A node's link to the fabric.
pub const UPLINK: &str = "uplink";
/// A node's bridge for pods.
pub const BRIDGE: &str = "pods";
/// The control plane's address.
pub const CONTROL: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);
/// The cluster's resolver, on every node.
pub const RESOLVER: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// Nodes that fit the addressing plan.
pub const MAX_NODES: u8 = 100;

/// Why the network cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// A namespace.
    #[error(transparent)]
    Ns(#[from] NsError),
    /// A link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Rules.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// A setting or a socket.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// No address is left.
    #[error("node {0} has no address left for another pod")]
    Full(String),
}

/// A node.
pub struct Node {
    /// `node-1` and so on.
    pub name: String,
    /// Its namespace.
    pub ns: NetNs,
    /// Its address on the fabric.
    pub address: Ipv4Addr,
    /// Folder for its sockets.
    pub dir: PathBuf,
    number: u8,
    next_host: u8,
    free_hosts: Vec<u8>,
    next_link: u32,
}

/// A pod's place in the network.
pub struct PodNet {
    /// Its namespace.
    pub ns: NetNs,
    /// Its address.
    pub address: Ipv4Addr,
    /// Where its namespace can be opened.
    pub path: PathBuf,
    node: NetNs,
    link: String,
}

impl PodNet {
    /// Takes the pod's link, and with it its address, off the node. Whatever keeps the namespace alive is cut off.
    pub fn detach(&self) -> Result<(), WorldError> {
        let link = self.link.clone();
        self.node.run_async(move || async move { Links::open()?.remove(&link).await })??;
        Ok(nft::apply(
            &self.node,
            format!("delete element bridge guard pods {{ \"{}\" . {} }}\n", self.link, self.address),
        )?)
    }
}

/// What is needed to build a pod's network, taken from the node; used off the main task.
pub struct PodPlan {
    node: Option<NetNs>,
    gateway: Ipv4Addr,
    link: String,
    path: PathBuf,
    /// The pod's address.
    pub address: Ipv4Addr,
}

/// Builds the fabric in the calling process's namespace.
pub fn build_fabric() -> Result<(), WorldError> {
    NetNs::current()?.run_async(|| async {
        plain_bridges()?;
        let links = Links::open()?;
        links.up("lo").await?;
        links.add_bridge(FABRIC).await?;
        links.add_address(FABRIC, CONTROL, 24).await?;
        Ok::<_, WorldError>(())
    })??;
    Ok(())
}

/// Bridged frames are frames: where the kernel can pass them through the rules for routed packets as well, that is switched off.
fn plain_bridges() -> std::io::Result<()> {
    for setting in
        ["bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables", "bridge/bridge-nf-call-arptables"]
    {
        if Path::new("/proc/sys/net").join(setting).exists() {
            sysctl(setting, "0")?;
        }
    }
    Ok(())
}

fn fabric_address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 255, 0, 10 + number)
}

fn pod_address(number: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, number, host)
}

/// Builds node `number` (1-based) of `count` and attaches it to the fabric.
pub fn build_node(number: u8, count: u8, scratch: &Path) -> Result<Node, WorldError> {
    let name = format!("node-{number}");
    let ns = NetNs::create()?;
    let (port, inner) = (name.clone(), ns.clone());
    NetNs::current()?.run_async(move || async move {
        let links = Links::open()?;
        links.add_veth(&port, (UPLINK, None), &inner).await?;
        links.enslave(&port, FABRIC, false).await?;
        // Proxies in pods talk to the control plane, which is here.
        links.add_route(FABRIC, (pod_address(number, 0), 24), fabric_address(number)).await
    })??;
    ns.run_async(move || async move {
        for (setting, value) in [
            ("ipv4/ip_forward", "1"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/default/send_redirects", "0"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
        ] {
            sysctl(setting, value)?;
        }
        plain_bridges()?;
        let links = Links::open()?;
        links.up("lo").await?;
        links.add_address("lo", RESOLVER, 32).await?;
        links.up(UPLINK).await?;
        links.add_address(UPLINK, fabric_address(number), 24).await?;
        links.add_bridge(BRIDGE).await?;
        links.add_address(BRIDGE, pod_address(number, 1), 24).await?;
        for other in (1..=count).filter(|n| *n != number) {
            links.add_route(UPLINK, (pod_address(other, 0), 24), fabric_address(other)).await?;
        }
        Ok::<_, WorldError>(())
    })??;
    nft::apply(&ns, guard())?;
    let dir = scratch.join(&name);
    std::fs::create_dir_all(&dir)?;
    let address = fabric_address(number);
    Ok(Node { name, ns, address, dir, number, next_host: 2, free_hosts: Vec::new(), next_link: 1 })
}

/// A packet that leaves a pod with an address not its own is dropped, and link-local sources stay on their node: the source of the node's
/// own probes cannot be borrowed.
fn guard() -> String {
    format!(
        "add table bridge guard\n\
         add set bridge guard pods {{ type ifname . ipv4_addr; }}\n\
         add chain bridge guard ports {{ type filter hook prerouting priority -300; policy drop; }}\n\
         add rule bridge guard ports ether type ip iifname . ip saddr @pods accept\n\
         add rule bridge guard ports ether type arp iifname . arp saddr ip @pods accept\n\
         add table inet guard\n\
         add chain inet guard fabric {{ type filter hook prerouting priority raw; policy accept; }}\n\
         add rule inet guard fabric iifname \"{UPLINK}\" ip saddr 169.254.0.0/16 drop\n"
    )
}

impl Node {
    /// Takes an address and a link for a new pod. An address that was given back is reused first.
    pub fn plan(&mut self, uid: &str, scratch: &Path) -> Result<PodPlan, WorldError> {
        let host = match self.free_hosts.pop() {
            Some(host) => host,
            None if self.next_host < 255 => {
                self.next_host += 1;
                self.next_host - 1
            }
            None => return Err(WorldError::Full(self.name.clone())),
        };
        self.next_link += 1;
        Ok(PodPlan {
            node: Some(self.ns.clone()),
            gateway: pod_address(self.number, 1),
            link: format!("p{}", self.next_link),
            path: scratch.join("netns").join(uid),
            address: pod_address(self.number, host),
        })
    }

    /// Gives a pod's address back.
    pub fn free(&mut self, address: Ipv4Addr) {
        self.free_hosts.push(address.octets()[3]);
    }

    /// The sockets of the node's resolver.
    pub fn resolver_sockets(&self) -> std::io::Result<(UdpSocket, TcpListener)> {
        datagram_and_listener(&self.ns, SocketAddr::new(IpAddr::V4(RESOLVER), 53))
    }
}

impl PodPlan {
    /// What is left of a plan that was built.
    pub fn used() -> Self {
        let nowhere = Ipv4Addr::UNSPECIFIED;
        Self { node: None, gateway: nowhere, link: String::new(), path: PathBuf::new(), address: nowhere }
    }

    /// Builds the pod's network. Blocks.
    pub fn build(self) -> Result<PodNet, WorldError> {
        let node = self.node.ok_or_else(|| std::io::Error::other("the pod's network was built before"))?;
        let ns = NetNs::create()?;
        let (address, gateway) = (self.address, self.gateway);
        nft::apply(&node, format!("add element bridge guard pods {{ \"{}\" . {address} }}\n", self.link))?;
        let (link, pod) = (self.link.clone(), ns.clone());
        node.run_async(move || async move {
            let links = Links::open()?;
            // Made from the address, so that what the node's neighbour table remembers holds for the next pod of the same address.
            let [a, b, c, d] = address.octets();
            links.add_veth(&link, ("eth0", Some([0x0a, 0x58, a, b, c, d])), &pod).await?;
            links.enslave(&link, BRIDGE, true).await
        })??;
        ns.run_async(move || async move {
            // Without IPv6, no link-local address is a way around capture and policy.
            if Path::new("/proc/sys/net/ipv6").exists() {
                sysctl("ipv6/conf/all/disable_ipv6", "1")?;
            }
            let links = Links::open()?;
            links.up("lo").await?;
            links.up("eth0").await?;
            links.add_address("eth0", address, 32).await?;
            links.add_route("eth0", (Ipv4Addr::UNSPECIFIED, 0), gateway).await?;
            Ok::<_, WorldError>(())
        })??;
        if let Some(parent) = self.path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        ns.bind(&self.path)?;
        Ok(PodNet { ns, address, path: self.path, node, link: self.link })
    }
}
