//! Links, addresses, routes and rules over rtnetlink. Each function works in the calling thread's namespace and is meant to run
//! inside [`crate::ns::NetNs::run_async`].

use crate::ns::NetNs;
use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::InfoBridgePort;
use rtnetlink::packet_route::route::{RouteScope, RouteType};
use rtnetlink::packet_route::rule::RuleAction;
use rtnetlink::{Handle, LinkBridge, LinkBridgePort, LinkUnspec, LinkVeth, RouteMessageBuilder, new_connection};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};

/// Why a link could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No netlink socket.
    #[error("netlink cannot be used: {0}")]
    Socket(#[from] io::Error),
    /// The kernel refused.
    #[error("{what}: {source}")]
    Refused {
        /// What was asked.
        what: String,
        /// What it answered.
        source: rtnetlink::Error,
    },
    /// There is no such link.
    #[error("there is no link {0}")]
    NoLink(String),
}

fn refused(what: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> LinkError {
    let what = what.into();
    move |source| LinkError::Refused { what, source }
}

/// A netlink conversation with one namespace.
pub struct Links(Handle);

impl Links {
    /// Opens it for the calling thread's namespace; the connection lives as long as the surrounding runtime.
    pub fn open() -> Result<Self, LinkError> {
        let (connection, handle, _) = new_connection()?;
        #[expect(clippy::disallowed_methods, reason = "the short-lived runtime of one namespace call owns it")]
        drop(tokio::spawn(connection));
        Ok(Self(handle))
    }

    async fn index(&self, name: &str) -> Result<u32, LinkError> {
        let found = self.0.link().get().match_name(name.to_owned()).execute().try_next().await;
        found.ok().flatten().map(|link| link.header.index).ok_or_else(|| LinkError::NoLink(name.to_owned()))
    }

    /// Brings a link up.
    pub async fn up(&self, name: &str) -> Result<(), LinkError> {
        let message = LinkUnspec::new_with_index(self.index(name).await?).up().build();
        self.0.link().set(message).execute().await.map_err(refused(format!("bringing {name} up")))
    }

    /// Adds a bridge and brings it up.
    pub async fn add_bridge(&self, name: &str) -> Result<(), LinkError> {
        let message = LinkBridge::new(name).build();
        self.0.link().add(message).execute().await.map_err(refused(format!("adding bridge {name}")))
    }

    /// Adds a veth pair: `name` here, the other end as the first of `peer` in `other`, with the second as its hardware address if given.
    pub async fn add_veth(
        &self,
        name: &str,
        (peer_name, hardware): (&str, Option<[u8; 6]>),
        other: &NetNs,
    ) -> Result<(), LinkError> {
        let temporary = format!("{name}p");
        let what = format!("adding veth {name}");
        self.0.link().add(LinkVeth::new(name, &temporary).build()).execute().await.map_err(refused(&*what))?;
        let index = self.index(&temporary).await?;
        let mut message = LinkUnspec::new_with_index(index).name(peer_name).setns_by_fd(other.as_fd().as_raw_fd());
        if let Some(hardware) = hardware {
            message = message.address(hardware.to_vec());
        }
        self.0.link().set(message.build()).execute().await.map_err(refused(what))
    }

    /// Makes `name` a port of `bridge` and brings it up. An isolated port reaches the bridge itself, not other isolated ports.
    pub async fn enslave(&self, name: &str, bridge: &str, isolated: bool) -> Result<(), LinkError> {
        let (port, controller) = (self.index(name).await?, self.index(bridge).await?);
        let message = LinkUnspec::new_with_index(port).controller(controller).up().build();
        self.0.link().set(message).execute().await.map_err(refused(format!("adding {name} to {bridge}")))?;
        if isolated {
            let message = LinkBridgePort::new(port).append_info_data(InfoBridgePort::Isolated(true)).build();
            self.0.link().set(message).execute().await.map_err(refused(format!("isolating {name}")))?;
        }
        Ok(())
    }

    /// Removes a link, and a veth's other end with it.
    pub async fn remove(&self, name: &str) -> Result<(), LinkError> {
        self.0.link().del(self.index(name).await?).execute().await.map_err(refused(format!("removing {name}")))
    }

    /// Gives a link an address.
    pub async fn add_address(&self, name: &str, address: Ipv4Addr, prefix: u8) -> Result<(), LinkError> {
        let index = self.index(name).await?;
        let add = self.0.address().add(index, IpAddr::V4(address), prefix);
        add.execute().await.map_err(refused(format!("giving {name} the address {address}/{prefix}")))
    }

    /// Routes `destination/prefix` through `gateway`, which need not be in a connected subnet.
    pub async fn add_route(
        &self,
        link: &str,
        (destination, prefix): (Ipv4Addr, u8),
        gateway: Ipv4Addr,
    ) -> Result<(), LinkError> {
        let route = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(destination, prefix)
            .gateway(gateway)
            .output_interface(self.index(link).await?)
            .onlink()
            .build();
        let add = self.0.route().add(route);
        add.execute().await.map_err(refused(format!("adding the route to {destination}/{prefix}")))
    }

    /// Policy routing: packets with `mark` (under `mask`) are delivered locally whatever their address, by table `table`.
    pub async fn deliver_marked(&self, mark: u32, mask: u32, table: u32) -> Result<(), LinkError> {
        use rtnetlink::packet_route::rule::RuleAttribute;
        let lo = self.index("lo").await?;
        let what = "adding the rule for marked packets";
        for v6 in [false, true] {
            let rule = self.0.rule().add().action(RuleAction::ToTable).fw_mark(mark).table_id(table).priority(32764);
            let result = if v6 {
                let mut rule = rule.v6();
                rule.message_mut().attributes.push(RuleAttribute::FwMask(mask));
                rule.execute().await
            } else {
                let mut rule = rule.v4();
                rule.message_mut().attributes.push(RuleAttribute::FwMask(mask));
                rule.execute().await
            };
            let route = if v6 {
                RouteMessageBuilder::<Ipv6Addr>::new()
                    .destination_prefix(Ipv6Addr::UNSPECIFIED, 0)
                    .output_interface(lo)
                    .table_id(table)
                    .kind(RouteType::Local)
                    .scope(RouteScope::Host)
                    .build()
            } else {
                RouteMessageBuilder::<Ipv4Addr>::new()
                    .destination_prefix(Ipv4Addr::UNSPECIFIED, 0)
                    .output_interface(lo)
                    .table_id(table)
                    .kind(RouteType::Local)
                    .scope(RouteScope::Host)
                    .build()
            };
            let routed = self.0.route().add(route).execute().await;
            for outcome in [result, routed] {
                match outcome {
                    Err(error) if !exists(&error) && !v6 => return Err(refused(what)(error)),
                    // A namespace without IPv6 has nothing to route there.
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn exists(error: &rtnetlink::Error) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(message) if message.raw_code() == -nix::libc::EEXIST)
}
