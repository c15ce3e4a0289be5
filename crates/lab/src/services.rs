//! Services for pods outside the mesh: what kube-proxy does, as nftables rules of a node. Pure.

use std::fmt::Write;
use std::net::Ipv4Addr;

/// A port of a service with its usable endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Virtual address.
    pub vip: Ipv4Addr,
    /// The service's port.
    pub port: u16,
    /// Address and port of each endpoint.
    pub endpoints: Vec<(Ipv4Addr, u16)>,
}

/// The rules for all services, replacing what was there.
pub fn ruleset(forwards: &[Forward]) -> String {
    let mut out = String::from(
        "add table ip services\n\
         add chain ip services nat { type nat hook prerouting priority dstnat; policy accept; }\n\
         add chain ip services own { type nat hook output priority -100; policy accept; }\n\
         add chain ip services empty { type filter hook prerouting priority raw; policy accept; }\n\
         add chain ip services hairpin { type nat hook postrouting priority srcnat; policy accept; }\n\
         flush chain ip services nat\n\
         flush chain ip services own\n\
         flush chain ip services empty\n\
         flush chain ip services hairpin\n",
    );
    let mut selves: Vec<Ipv4Addr> = Vec::new();
    for Forward { vip, port, endpoints } in forwards {
        if endpoints.is_empty() {
            writeln!(out, "add rule ip services empty ip daddr {vip} tcp dport {port} reject with tcp reset")
                .unwrap_or_default();
            continue;
        }
        let choices: Vec<String> =
            endpoints.iter().enumerate().map(|(i, (ip, p))| format!("{i} : {ip} . {p}")).collect();
        let choices = choices.join(", ");
        for chain in ["nat", "own"] {
            writeln!(
                out,
                "add rule ip services {chain} ip daddr {vip} tcp dport {port} dnat ip to numgen random mod {} map {{ {choices} }}",
                endpoints.len()
            )
            .unwrap_or_default();
        }
        selves.extend(endpoints.iter().map(|(ip, _)| *ip));
    }
    selves.sort_unstable();
    selves.dedup();
    if !selves.is_empty() {
        // A pod that a service sends back to itself must see the answer come from elsewhere.
        let pairs: Vec<String> = selves.iter().map(|ip| format!("{ip} . {ip}")).collect();
        writeln!(out, "add rule ip services hairpin ip saddr . ip daddr {{ {} }} masquerade", pairs.join(", "))
            .unwrap_or_default();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules() {
        let forward = |last, endpoints: &[u8]| Forward {
            vip: Ipv4Addr::new(10, 96, 0, last),
            port: 80,
            endpoints: endpoints.iter().map(|e| (Ipv4Addr::new(10, 244, 1, *e), 8080)).collect(),
        };
        insta::assert_snapshot!(ruleset(&[forward(20, &[2, 3]), forward(21, &[])]));
    }
}
