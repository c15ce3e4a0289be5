use super::*;
use proptest::prelude::*;

fn facts(source: Option<&str>, port: u16) -> Facts {
    Facts {
        source: source.map(|id| format!("spiffe://{id}").parse().unwrap()),
        via: None,
        source_ip: "10.1.2.3".parse().unwrap(),
        destination_ip: "10.9.9.9".parse().unwrap(),
        destination_port: port,
    }
}

fn policy(action: Action, rules: Vec<Rule>) -> Policy {
    Policy { namespace: "m".into(), name: "p".into(), scope: Scope::Namespace, action, rules, dry_run: false }
}

fn principal(pattern: &str) -> Match {
    Match { principals: vec![StringMatch::parse(pattern)], ..Match::default() }
}

const WEB: Option<&str> = Some("cluster.local/ns/c/sa/web");

#[test]
fn deny_beats_allow_and_allow_isolates() {
    let all = policy(Action::Allow, vec![vec![]]);
    let nothing = policy(Action::Allow, vec![]);
    let deny_nothing = policy(Action::Deny, vec![]);
    let deny_9090 = policy(Action::Deny, vec![vec![vec![Match { destination_ports: vec![9090], ..Match::default() }]]]);
    assert_eq!(evaluate([], &facts(None, 80)), Verdict::Allow);
    assert_eq!(evaluate([&nothing], &facts(WEB, 80)), Verdict::NoAllowMatched);
    assert_eq!(evaluate([&deny_nothing], &facts(None, 80)), Verdict::Allow);
    assert_eq!(evaluate([&all, &deny_9090], &facts(WEB, 9090)), Verdict::DeniedBy("m/p".into()));
    assert_eq!(evaluate([&all, &deny_9090], &facts(WEB, 80)), Verdict::Allow);
    let dry = Policy { dry_run: true, ..nothing };
    assert_eq!(evaluate([&dry], &facts(None, 80)), Verdict::Allow);
}

#[test]
fn a_missing_identity_matches_no_value_and_every_negation() {
    let strict = policy(
        Action::Deny,
        vec![vec![vec![Match { not_principals: vec![StringMatch::Present], ..Match::default() }]]],
    );
    assert!(matches!(evaluate([&strict], &facts(None, 80)), Verdict::DeniedBy(_)));
    assert_eq!(evaluate([&strict], &facts(WEB, 80)), Verdict::Allow);
    assert!(!principal("*").holds(&facts(None, 80)));
}

#[test]
fn wildcards_and_empty_matches() {
    for (pattern, holds) in [
        ("cluster.local/ns/c/sa/web", true),
        ("cluster.local/ns/c/*", true),
        ("*/sa/web", true),
        ("*", true),
        ("cluster.local/ns/c/sa/we", false),
        ("cluster.local/*/sa/web", false),
    ] {
        assert_eq!(principal(pattern).holds(&facts(WEB, 80)), holds, "{pattern}");
    }
    assert!(!Match::default().holds(&facts(WEB, 80)));
    let empty_clause = policy(Action::Allow, vec![vec![vec![]]]);
    assert!(empty_clause.matches(&facts(None, 80)));
}

proptest! {
    #[test]
    fn a_block_contains_what_a_bitwise_comparison_says(a: u32, b: u32, prefix in 0u8..=32) {
        let slow = (0..prefix).all(|bit| (a >> (31 - bit)) & 1 == (b >> (31 - bit)) & 1);
        let block = Cidr { address: IpAddr::V4(a.into()), prefix };
        prop_assert_eq!(block.contains(IpAddr::V4(b.into())), slow);
        prop_assert!(!block.contains(IpAddr::V6(u128::from(b).into())));
    }
}
