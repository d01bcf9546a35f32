use crate::testing::{job, merged, part};
use crate::{JobReport, Over, Sure, Transport, html, text};

fn one_line(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Two nodes with the same variables; NCCL used the rails of the first and fell back to sockets on the second.
fn half_fell_back() -> JobReport {
    let over = |name, over, why: &str| {
        let mut node = part(name, &job(0..8), "", vec![], 0);
        node.transport = Some(Transport { over, sure: Sure::Likely, why: why.to_owned(), cause: None });
        node
    };
    let nodes = vec![
        over("n1", Over::Rails, "8 of 8 processes held RDMA devices open"),
        over("n2", Over::Sockets, "no RDMA device was open"),
    ];
    merged(nodes, vec![], None)
}

#[test]
fn nodes_that_differ_in_transport_are_shown_apart_in_every_form() {
    let report = half_fell_back();
    let page = html(&report);
    let (_, of_html) = page.split_once("NCCL environment").unwrap();
    let whole = one_line(&text(&report, true));
    let (_, of_text) = whole.split_once("NCCL ENVIRONMENT").unwrap();
    for section in [of_html, of_text] {
        let (rails, sockets) = section.split_once("n2").expect(section);
        assert!(
            rails.contains("NCCL ran over the rails: 8 of 8 processes held RDMA devices open"),
            "{rails}"
        );
        assert!(sockets.contains("NCCL ran over sockets: no RDMA device was open"), "{sockets}");
    }
}

#[test]
fn a_node_with_other_rails_is_named_in_every_form() {
    let mut nodes: Vec<_> = ["n1", "n2"].map(|name| part(name, &job(0..8), "", vec![], 0)).into();
    nodes[1].rail_map.as_mut().unwrap().rails[0].hca = "mlx5_9".to_owned();
    let report = merged(nodes, vec![], None);
    for page in [html(&report), text(&report, true).to_string()] {
        assert!(page.contains("other device names or rails on n2"), "{page}");
    }
}
