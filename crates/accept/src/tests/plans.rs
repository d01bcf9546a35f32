use super::expand;
use crate::{Plan, Program, STAGES};

fn bad(text: &str) -> (usize, String) {
    let bad = Plan::parse(text, &expand).unwrap_err();
    (bad.line, bad.why)
}

#[test]
fn an_error_has_its_line_and_its_key() {
    for (text, line, part) in [
        ("title = 't'\nnodes = 'n[1-2]'\n", 1, "no stage: add one of [inventory], [node], [pairs]"),
        ("title = 't'\nnodes = 'n1'\n[nodes_]\n", 3, "unknown field `nodes_`"),
        (
            "title = 't'\nnodes = 'n1'\n[node]\nrepetition = 2\n",
            4,
            "unknown field `repetition`, expected `repetitions`",
        ),
        ("title = 't'\nnodes = 'n1'\n[node]\nrepetitions = 0\n", 4, "0 is not between 1 and 10000"),
        ("title = 't'\nnodes = 'n1,n1'\n[node]\n", 2, "nodes: n1 is named twice"),
        ("title = 't'\n\nnodes = 'n[x]'\n[node]\n", 3, "nodes: "),
        ("title = 't'\nnodes = 'n1,../x'\n[node]\n", 2, "'../x' is not a name of a node"),
        (
            "title = 't'\nnodes = 'n1'\n[node]\n[[leaf]]\nname = 'a'\nnodes = 'n2'\n",
            6,
            "leaf.nodes: n2 is not in nodes",
        ),
        ("title = 't'\nnodes = 'n1'\n[node]\n[[machine]]\nname = 'a b'\nnodes = 'n1'\n", 5, "machine.name"),
        (
            "title = 't'\nnodes = 'n1'\n[node]\n[[expect]]\nfigure = 'x'\nmin = 1\nsource = ' '\n",
            4,
            "expect 'x': source is empty",
        ),
        (
            "title = 't'\nnodes = 'n1'\n[node]\n[[expect]]\nfigure = 'x'\nsource = 's'\n",
            4,
            "neither min nor max",
        ),
        (
            "title = 't'\nnodes = 'n1'\n[storage]\ndirs = ['a']\nmib_per_node = 1\n",
            4,
            "'a' is not an absolute path",
        ),
        (
            "title = 't'\nnodes = 'n1'\n[storage]\ndirs = []\nmib_per_node = 1\n",
            3,
            "storage.dirs: no directory",
        ),
        ("title = 't'\nnodes = 'n[1-9]'\n[pairs]\nexpected_gbps = 0.0\n", 4, "0 is not above 0"),
        ("title = 't'\nnodes = 'n[1-4000]'\n[node]\nrepetitions = 6\n", 1, "24000 jobs; at most 20000"),
        (
            "title = 't'\nnodes = 'n1'\n[soak]\n[[soak.fault]]\nnode = 'n2'\nrepetition = 1\ninject = ['/a']\nundo = ['/b']\ncheck = 'c'\n",
            4,
            "n2 is not in nodes",
        ),
        (
            "title = 't'\nnodes = 'n1'\n[soak]\n[[soak.fault]]\nnode = 'n1'\nrepetition = 2\ninject = ['/a']\nundo = ['/b']\ncheck = 'c'\n",
            4,
            "2 is above soak.repetitions",
        ),
        (
            "title = 't'\nnodes = 'n1'\n[soak]\n[[soak.fault]]\nnode = 'n1'\nrepetition = 1\ninject = ['a']\nundo = ['/b']\ncheck = 'c'\n",
            4,
            "absolute path of a program",
        ),
        (
            "title = 't'\nnodes = 'n1'\n[node]\n[[expect]]\nfigure = 'x'\nmin = 1\nsource = 's'\n[[expect]]\nfigure = 'x@a'\nmax = 1\nsource = 's'\n",
            8,
            "expect 'x@a': has a limit already",
        ),
        ("title = \n", 1, ""),
    ] {
        let (at, why) = bad(text);
        assert!(at == line && why.contains(part), "{text}\n{at}: {why}");
    }
}

#[test]
fn units_follow_from_the_plan_in_the_order_of_the_stages() {
    let plan = super::plan(
        "[pairs]\nall_to_all = true\n[soak]\nrepetitions = 2\n[inventory]\n[[leaf]]\nname = 'a'\nnodes = 'n[1-2]'\n",
    );
    let units = plan.units();
    let ids: Vec<&str> = units.iter().map(|unit| unit.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "inventory.n1.r1",
            "inventory.n2.r1",
            "inventory.n3.r1",
            "inventory.n4.r1",
            "pairs.all.r1",
            "pairs.leaf-a.r1",
            "pairs.n1.n2.r1",
            "pairs.n1.n3.r1",
            "pairs.n1.n4.r1",
            "pairs.n2.n3.r1",
            "pairs.n2.n4.r1",
            "pairs.n3.n4.r1",
            "soak.n1.r1",
            "soak.n2.r1",
            "soak.n3.r1",
            "soak.n4.r1",
            "soak.n1.r2",
            "soak.n2.r2",
            "soak.n3.r2",
            "soak.n4.r2",
        ]
    );
    // A pair needs both of its nodes.
    assert!(units.iter().filter(|unit| unit.stage == "pairs").all(|unit| unit.fewest == 2));
}

#[test]
fn every_stage_can_be_planned_and_has_commands() {
    let plan = super::plan(
        "[inventory]\n[node]\n[pairs]\ntcp_beside = true\n[soak]\n\
         [storage]\ndirs = ['/a']\nmib_per_node = 1\nfio_s = 5\n\
         [collectives]\nprogram = '/opt/all_reduce_perf'\nargs = ['-b', '8']\ntasks_per_node = 8\nsrun = ['--mpi=pmix']\n",
    );
    let units = plan.units();
    for stage in STAGES {
        let unit = units.iter().find(|unit| unit.stage == stage.id).unwrap();
        let commands = (stage.commands)(&plan, unit, &unit.nodes);
        assert!(!commands.is_empty() && commands.iter().all(|command| command.limit_s > 0), "{}", stage.id);
    }
    let unit = units.iter().find(|unit| unit.stage == "collectives").unwrap();
    let command = &(STAGES[4].commands)(&plan, unit, &unit.nodes)[0];
    assert_eq!(
        command.program,
        Program::Srun(vec!["--ntasks=32".into(), "--ntasks-per-node=8".into(), "--mpi=pmix".into()])
    );
    assert_eq!(command.args, ["/opt/all_reduce_perf", "-b", "8"]);
}

#[test]
fn the_plan_of_the_page_is_valid_and_its_figures_exist() {
    let page = include_str!("../../../../docs/accept.md");
    let text = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let plan = Plan::parse(text, &expand).unwrap();
    // 64 nodes: inventory, 3 times node, all nodes and a leaf, 3 times storage, 200 times soak.
    assert_eq!(plan.units().len(), 64 + 3 * 64 + 2 + 3 + 200 * 64);
    for stage in STAGES {
        assert!(page.contains(&format!("| `{}` |", stage.id)), "{}", stage.id);
    }
}
