//! Capture rules as values: what nftables is given inside a pod, and on the node. Marks, ports and addresses are Istio's.

use std::fmt::Write;
use std::net::IpAddr;

/// Mark, under [`MASK`], that connections of the proxy carry, so that their replies find it.
pub const REPLY_MARK: u32 = 0x111;
/// The bits of a mark that are used.
pub const MASK: u32 = 0xfff;
/// Routing table that delivers marked packets locally.
pub const TABLE: u32 = 100;
/// Source of the node's own connections to captured pods (probes), which the rules let through. The node drops packets of pods that
/// claim it.
pub const PROBE_SOURCE: &str = "169.254.7.127";
const PROBE_SOURCE_V6: &str = "fd16:9254:7127:1337:ffff:ffff:ffff:ffff";

/// The chains stay in place when capture ends: connections that are translated already go on through them.
fn chains() -> String {
    let mut out = String::from("add table inet trysail\n");
    for (name, spec) in [
        ("mark_in", "type filter hook prerouting priority mangle"),
        ("mark_out", "type route hook output priority mangle"),
        ("capture_in", "type nat hook prerouting priority dstnat"),
        ("capture_out", "type nat hook output priority -100"),
    ] {
        writeln!(out, "add chain inet trysail {name} {{ {spec}; policy accept; }}\nflush chain inet trysail {name}")
            .unwrap_or_default();
    }
    out.push_str(
        "add rule inet trysail mark_in meta mark & 0xfff == 0x539 ct mark set 0x111\n\
         add rule inet trysail mark_out ct mark & 0xfff == 0x111 meta mark set ct mark\n",
    );
    out
}

/// Rules inside a captured pod. Only the first packet of a connection is looked at, so that one which was open before goes on as it was.
pub fn capture() -> String {
    let mut out = chains();
    let new = "tcp flags & (syn | ack) == syn meta mark & 0xfff != 0x539";
    for (ip, loopback, probes) in [("ip", "127.0.0.0/8", PROBE_SOURCE), ("ip6", "::1", PROBE_SOURCE_V6)] {
        write!(
            out,
            "add rule inet trysail capture_in {ip} saddr {probes} accept\n\
             add rule inet trysail capture_in {ip} daddr != {loopback} tcp dport != 15008 {new} redirect to :15006\n\
             add rule inet trysail capture_out {ip} daddr {probes} accept\n\
             add rule inet trysail capture_out {ip} daddr != {loopback} oifname \"lo\" accept\n\
             add rule inet trysail capture_out meta mark & 0xfff == 0x111 accept\n\
             add rule inet trysail capture_out {ip} daddr != {loopback} {new} redirect to :15001\n"
        )
        .unwrap_or_default();
    }
    out
}

/// Rules inside a pod with a sidecar (Istio's order): the proxy's own packets carry its mark, what comes from the node's probes or
/// goes to the proxy's own ports passes, everything else is redirected.
pub fn sidecar() -> String {
    let mut out = chains();
    let new = "tcp flags & (syn | ack) == syn";
    for (ip, loopback, probes) in [("ip", "127.0.0.0/8", PROBE_SOURCE), ("ip6", "::1", PROBE_SOURCE_V6)] {
        write!(
            out,
            "add rule inet trysail capture_in {ip} saddr {probes} accept\n\
             add rule inet trysail capture_in {ip} daddr != {loopback} tcp dport {{ 15008, 15020, 15021, 15090 }} accept\n\
             add rule inet trysail capture_in {ip} daddr != {loopback} {new} redirect to :15006\n\
             add rule inet trysail capture_out meta mark & 0xfff == 0x539 accept\n\
             add rule inet trysail capture_out {ip} daddr {probes} accept\n\
             add rule inet trysail capture_out {ip} daddr != {loopback} oifname != \"lo\" {new} redirect to :15001\n"
        )
        .unwrap_or_default();
    }
    out
}

/// Rules inside a pod that is no longer captured.
pub fn release() -> String {
    chains()
}

/// Rules on the node: its own connections to captured pods come from the probes' source.
pub fn node(captured: &[IpAddr]) -> String {
    let mut out = String::from(
        "add table inet trysail_node\n\
         add set inet trysail_node captured { type ipv4_addr; }\n\
         flush set inet trysail_node captured\n\
         add chain inet trysail_node own { type filter hook output priority mangle; policy accept; }\n\
         add chain inet trysail_node source { type nat hook postrouting priority srcnat; policy accept; }\n\
         flush chain inet trysail_node own\n\
         flush chain inet trysail_node source\n",
    );
    let v4: Vec<String> = captured.iter().filter(|ip| ip.is_ipv4()).map(ToString::to_string).collect();
    if !v4.is_empty() {
        writeln!(out, "add element inet trysail_node captured {{ {} }}", v4.join(", ")).unwrap_or_default();
    }
    write!(
        out,
        "add rule inet trysail_node own ip daddr @captured meta l4proto tcp meta mark set 0x7f1\n\
         add rule inet trysail_node source meta mark 0x7f1 snat ip to {PROBE_SOURCE}\n"
    )
    .unwrap_or_default();
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn rules() {
        insta::assert_snapshot!("capture", super::capture());
        insta::assert_snapshot!("sidecar", super::sidecar());
        insta::assert_snapshot!("release", super::release());
        insta::assert_snapshot!("node", super::node(&["10.244.1.2".parse().unwrap(), "10.244.1.3".parse().unwrap()]));
    }
}
