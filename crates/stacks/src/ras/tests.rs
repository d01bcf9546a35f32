use std::net::TcpListener;
use std::thread::JoinHandle;

use nix::unistd::{getgid, getuid};

use super::*;

/// What NCCL of one release answered about two ranks (`tests/gpu/ras.py`).
struct Recorded {
    different_order: &'static str,
    rank_behind: &'static str,
    rank_gone: &'static str,
    rank_stopped: &'static str,
}

macro_rules! recorded {
    ($release:literal) => {
        Recorded {
            different_order: include_str!(concat!("answers/", $release, "-different-order.json")),
            rank_behind: include_str!(concat!("answers/", $release, "-rank-behind.json")),
            rank_gone: include_str!(concat!("answers/", $release, "-rank-gone.json")),
            rank_stopped: include_str!(concat!("answers/", $release, "-rank-stopped.json")),
        }
    };
}

const NCCL_2_28_9: Recorded = recorded!("2.28.9");
/// Whole conversations: NCCL 2.27.7 refuses JSON and answers as text, in which ranks that do not exist follow those that are missing.
const NCCL_2_27_7: [&str; 4] = [
    include_str!("answers/2.27.7-different-order.txt"),
    include_str!("answers/2.27.7-rank-behind.txt"),
    include_str!("answers/2.27.7-rank-gone.txt"),
    include_str!("answers/2.27.7-rank-stopped.txt"),
];
const RELEASES: [Recorded; 3] = [NCCL_2_28_9, recorded!("2.29.7"), recorded!("2.30.7")];

/// Number of calls of the rank that is named, and of the others.
fn calls(sentence: &str) -> (u64, u64) {
    let after = |word: &str| {
        let (_, rest) = sentence.split_once(word).unwrap();
        rest.split_once(' ').unwrap().0.parse().unwrap()
    };
    (after("has called AllReduce "), after("others "))
}

#[test]
fn ranks_that_differ_are_named_with_their_process() {
    assert_eq!(
        sentences(NCCL_2_28_9.different_order).unwrap(),
        [
            "rank 0 of the 2 in communicator 735c6b6c68a918e9 (process 3020 on 192.0.2.2) has called AllReduce 1 time, others 2 times",
            "rank 1 of the 2 in communicator 7c45c45baf259ef9 (process 3021 on 192.0.2.2) has called AllReduce 1 time, others 2 times",
        ]
    );
    for recorded in RELEASES {
        let mut order = sentences(recorded.different_order).unwrap();
        // Communicators are listed by their hashes.
        order.sort_unstable();
        assert_eq!(order.len(), 2, "{order:?}");
        for (sentence, rank) in order.iter().zip(["rank 0 of the 2", "rank 1 of the 2"]) {
            assert!(sentence.starts_with(rank), "{sentence}");
            assert_eq!(calls(sentence), (1, 2));
        }
        let behind = sentences(recorded.rank_behind).unwrap();
        assert_eq!(behind.len(), 1, "{behind:?}");
        assert!(behind[0].starts_with("rank 1 of the 2 in communicator "), "{behind:?}");
        let (calls, of_others) = calls(&behind[0]);
        assert_eq!(calls + 1, of_others);
    }
}

#[test]
fn a_missing_rank_is_named_in_each_communicator() {
    assert!(
        serde_json::from_str::<serde_json::Value>(NCCL_2_28_9.rank_gone).is_err(),
        "NCCL 2.28.9 omits a comma"
    );
    for recorded in RELEASES {
        for text in [recorded.rank_gone, recorded.rank_stopped] {
            let found = sentences(text).unwrap();
            assert_eq!(found.len(), 3, "{found:?}");
            for sentence in &found {
                assert!(
                    sentence.starts_with("rank 1 of the 2 in communicator ")
                        && sentence.ends_with(" on 192.0.2.2) does not answer"),
                    "{sentence}"
                );
            }
        }
    }
}

#[test]
fn equal_counts_errors_and_dead_ranks_are_told() {
    let healthy = NCCL_2_28_9.different_order.replace("\"AllReduce\": 1\n", "\"AllReduce\": 2\n");
    assert_eq!(
        sentences(&healthy).unwrap(),
        ["in each of 3 communicators all ranks have called the same collectives as often (2 processes)"]
    );
    let dead = NCCL_2_28_9.rank_gone.replace("\"considered_dead\": false", "\"considered_dead\": true");
    assert!(sentences(&dead).unwrap()[0].ends_with("is dead"));
    let error = healthy.replacen("\"async_error\": 0", "\"async_error\": 6", 1);
    assert!(sentences(&error).unwrap()[0].ends_with("(process 3020 on 192.0.2.2) reported NCCL error 6"));
    assert_eq!(sentences("{}").unwrap(), ["there is no communicator"]);
}

#[test]
fn hostile_answers_are_refused_or_bounded() {
    for text in ["", "[", "{\"communicators\": 7}", "{\"communicators\": [{\"ranks\": [{}]}]}", "\u{0}\u{1}"]
    {
        assert!(sentences(text).is_err(), "{text:?}");
    }
    let rank = |rank: usize, count: usize| {
        format!(
            "{{\"rank\": {rank}, \"host\": \"{}\", \"collective_counts\": {{\"x\": {count}}}}}",
            "h".repeat(100)
        )
    };
    let one = format!("{{\"size\": 9, \"ranks\": [{}, {}]}}", rank(0, 1), rank(1, 2));
    let many = format!("{{\"communicators\": [{}]}}", vec![one; 100].join(","));
    let found = sentences(&many).unwrap();
    assert_eq!((found.len(), found[MOST_RAS - 1].as_str()), (MOST_RAS, "and 85 more sentences"));
}

use railgate_node_report::stacks::MOST_RAS;

/// A server that answers each command in turn, and ends after the last one.
fn server(replies: Vec<String>) -> (u16, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = move || {
        let (stream, _) = listener.accept().unwrap();
        let mut commands = BufReader::new(stream.try_clone().unwrap());
        let mut heard = Vec::new();
        for reply in replies {
            let mut line = String::new();
            if commands.read_line(&mut line).unwrap_or(0) == 0 {
                break;
            }
            heard.push(line.trim().to_owned());
            if (&stream).write_all(reply.as_bytes()).is_err() {
                break;
            }
        }
        heard
    };
    (port, std::thread::spawn(serve))
}

fn order(port: u16) -> RasOrder {
    RasOrder { proc: "/proc".into(), port, uid: getuid().as_raw(), gid: getgid().as_raw() }
}

fn asked(order: &RasOrder) -> Result<Vec<String>, String> {
    ask(order, Instant::now() + ANSWER_BY).and_then(|text| sentences(&text))
}

fn replies(format: &str, answer: &str) -> Vec<String> {
    let line = |text: &str| format!("{text}\n");
    vec![line("SERVER PROTOCOL 2"), line(format), line("OK"), answer.to_owned()]
}

#[test]
fn a_release_with_json_is_asked_once() {
    let (port, server) = server(replies("OK", NCCL_2_28_9.rank_behind));
    assert!(asked(&order(port)).unwrap()[0].contains("AllReduce 662 times"));
    assert_eq!(
        server.join().unwrap(),
        ["CLIENT PROTOCOL 2", "SET FORMAT json", "TIMEOUT 5", "VERBOSE STATUS"]
    );
}

#[test]
fn a_release_without_json_is_not_asked_for_its_status() {
    for recorded in NCCL_2_27_7 {
        let (port, server) = server(recorded.splitn(4, '\n').map(|reply| format!("{reply}\n")).collect());
        assert!(asked(&order(port)).unwrap_err().contains("has no JSON"));
        assert_eq!(server.join().unwrap(), ["CLIENT PROTOCOL 2", "SET FORMAT json"]);
        assert!(sentences(recorded).is_err());
    }
}

#[test]
fn a_program_of_another_user_is_not_believed() {
    let (port, server) = server(replies("OK", NCCL_2_28_9.rank_behind));
    let other = RasOrder { uid: getuid().as_raw() + 1, ..order(port) };
    let why = asked(&other).unwrap_err();
    assert!(why.contains(&format!("is of user {}, not of the job's owner", getuid())), "{why}");
    assert_eq!(server.join().unwrap(), ["CLIENT PROTOCOL 2"]);
}

#[test]
fn a_server_that_never_answers_costs_only_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let why = ask(&order(port), Instant::now() + Duration::from_millis(300)).unwrap_err();
    assert!(why.starts_with("no reply to CLIENT PROTOCOL 2"), "{why}");
    drop(listener);
    assert!(ask(&order(port), Instant::now() + ANSWER_BY).unwrap_err().contains("refused"));
}
