use super::*;

#[test]
fn the_defaults_are_within_limits_and_have_no_receiver() {
    let config = AlertsConfig::default();
    assert_eq!(config.problems(), Vec::<String>::new());
    assert_eq!(toml::from_str::<AlertsConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
}

#[test]
fn problems_begin_with_their_key() {
    for (text, wanted) in [
        ("group_wait = '11m'", "alerts.group_wait: 11m is not within 0s to 10m"),
        ("repeat = []", "alerts.repeat: wants 1 to 20"),
        ("repeat = ['1h', '15m']", "alerts.repeat: wants 1 to 20"),
        ("site = \"a\\n\"", "alerts.site: wants at most 60"),
        ("proxy = 'socks5://u:hidden@x'", "alerts.proxy: the value does not begin"),
        ("[sinks.'a b']\nkind = 'wecom'\nurl_file = '/x'", "alerts.sinks.a b.kind: the name wants"),
        ("[sinks.a]\nkind = 'wecom'", "alerts.sinks.a.kind: wecom needs `url_file`"),
        (
            "[sinks.a]\nkind = 'slack'\nurl = 'https://x'",
            "alerts.sinks.a.url: the address of a slack robot is a secret",
        ),
        ("[sinks.a]\nkind = 'webhook'\nurl = 'ftp://x'", "alerts.sinks.a.url: does not begin with"),
        (
            "[sinks.a]\nkind = 'webhook'\nurl = 'https://x'\nurl_file = '/x'",
            "alerts.sinks.a.url: `url_file` is set",
        ),
        ("[sinks.a]\nkind = 'webhook'\nurl_file = 'x'", "alerts.sinks.a.url_file: is not an absolute path"),
        (
            "[sinks.a]\nkind = 'dingtalk'\nurl_file = '/x'\nper_minute = 21",
            "alerts.sinks.a.per_minute: 21 is not within 1 to 20",
        ),
        (
            "[sinks.a]\nkind = 'webhook'\nurl = 'https://x'\ntemplate = '{\"t\": {txt}}'",
            "alerts.sinks.a.template: `{txt}` is not a field",
        ),
        (
            "[sinks.a]\nkind = 'slack'\nurl_file = '/x'\ntemplate = 'x'",
            "alerts.sinks.a.template: only for webhook",
        ),
        (
            "[sinks.a]\nkind = 'webhook'\nurl = 'https://x'\nalerts = false",
            "alerts.sinks.a.alerts: a receiver without alerts",
        ),
        (
            "[sinks.a]\nkind = 'webhook'\nurl = 'https://x'\nheartbeat = '1s'",
            "alerts.sinks.a.heartbeat: 1s is not within",
        ),
        (
            "[sinks.a]\nkind = 'sendmail'\nto = ['ops@example.org']",
            "alerts.sinks.a.kind: sendmail needs `from`",
        ),
        (
            "[sinks.a]\nkind = 'sendmail'\nfrom = 'a@b'\nto = ['x\\ny']",
            "alerts.sinks.a.to: 'x\\ny' is not an address",
        ),
        (
            "[sinks.a]\nkind = 'sendmail'\nfrom = '-froot'\nto = ['x@y']",
            "alerts.sinks.a.from: '-froot' is not an address",
        ),
        (
            "[silences.s]\nuntil = '2026-01-05T13:00:00Z'\nreason = 'x'",
            "alerts.silences.s.until: a silence needs",
        ),
    ] {
        let problems = policy(&text.replace("'x\\ny'", "\"x\\ny\"").replace("['x\\n", "[\"x\\n")).problems();
        let wanted = wanted.replace("'x\\ny'", "'x\ny'");
        assert!(problems.iter().any(|problem| problem.starts_with(&wanted)), "{text}: {problems:?}");
    }
}

#[test]
fn a_silence_without_an_end_is_refused() {
    for text in [
        "[silences.s]\nnodes = ['a']\nreason = 'x'",
        "[silences.s]\nnodes = ['a']\nreason = 'x'\nuntil = 'never'",
        "[silences.s]\nnodes = ['a']\nuntil = '2026-01-05T13:00:00Z'",
        "quiet_hours = '22-7'",
        "utc_offset = '8'",
    ] {
        assert!(toml::from_str::<AlertsConfig>(text).is_err(), "{text}");
    }
}
