//! Foreign bytes never reach a terminal unescaped: hostile text goes through every argument, file, answer, name and
//! variable that a command of `railgate` reads. None of it may act on a terminal or start a line of output.
//!
//! The hooks and the sampler, which print only their log, have similar tests in their own packages (`hooks.rs` here).
//! The cluster's hostile cases check the logs, drain reasons and reports of a real run.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]
#![expect(clippy::disallowed_macros, reason = "a skipped test prints the reason")]

mod accept;
mod arguments;
mod files;
mod fleet;
mod jobs;
mod machines;
mod stage;
mod state;

use std::collections::BTreeSet;

use stage::Stage;

const RAILGATE: &str = env!("CARGO_BIN_EXE_railgate");

/// A command of `railgate`, its required arguments, and hostile input for everything that it reads.
struct Case {
    command: &'static str,
    needs: &'static [&'static str],
    inputs: fn(&mut Stage),
}

const fn case(command: &'static str, needs: &'static [&'static str], inputs: fn(&mut Stage)) -> Case {
    Case { command, needs, inputs }
}

/// All commands: a new command without a row fails [`every_command_has_a_case`].
const CASES: &[Case] = &[
    case("accept report", &["absent"], accept::accept),
    case("accept waive", &["absent", "item", "--by", "a", "--why", "b"], accept::accept),
    case("calibrate", &["--", "/bin/false"], jobs::calibrate),
    case("check", &["--simulate", "h100-sxm"], machines::check),
    case("config check", &[], files::config),
    case("config show", &[], files::config),
    case("doctor", &[], state::doctor),
    case("explain", &["gn1"], state::explain),
    case("fabric", &["--file", "absent"], files::fabric),
    case("fleet card", &["GPU-1"], fleet::fleet),
    case("fleet checks", &[], fleet::fleet),
    case("fleet cost", &[], fleet::fleet),
    case("fleet export", &[], fleet::fleet),
    case("fleet incident", &["1-1"], fleet::fleet),
    case("fleet incidents", &[], fleet::fleet),
    case("fleet lemons", &[], fleet::fleet),
    case("fleet maintained", &["gn1", "--why", "firmware"], fleet::fleet),
    case("fleet node", &["gn1"], fleet::fleet),
    case("fleet accepted", &["accepted.json"], fleet::fleet),
    case("fleet rma", &["gn1"], fleet::fleet),
    case("fleet repaired", &["gn1", "--why", "fans"], fleet::fleet),
    case("fleet silence", &["gn1", "--for", "4h", "--why", "fans"], fleet::silences),
    case("fleet silences", &[], fleet::silences),
    case("fleet tested", &["gn1", "tested.jsonl"], fleet::fleet),
    case("fleet unsilence", &["1-1"], fleet::silences),
    case("generate", &["made"], nothing_but_arguments),
    case("import nhc", &["absent"], files::import),
    case("nodes", &[], state::nodes),
    case("pause", &[], state::pause),
    case("launch", &[], jobs::launch),
    case("preflight", &[], jobs::preflight),
    case("profile record", &["--id", "mine", "--simulate", "h100-sxm"], machines::snapshots),
    case("rails", &["--simulate", "h100-sxm"], files::topology),
    case("readmit", &["gn1"], state::readmit),
    case("report", &["7"], jobs::report),
    case("resume", &[], state::pause),
    case("rma", &["gn1", "--simulate", "h100-sxm"], machines::snapshots),
    case("simulate", &["--list"], machines::profiles),
    case("snapshot", &["--simulate", "h100-sxm"], machines::live),
    case("template list", &[], files::templates),
    case("template show", &["jax"], files::templates),
    case("template task", &[], nothing_but_arguments),
    case("template batch", &[], nothing_but_arguments),
    case("why", &["7"], jobs::why),
    case("yield", &["--", "/bin/true"], jobs::stand_aside),
];

fn nothing_but_arguments(_: &mut Stage) {}

/// All commands of clap: each one that is not hidden has a man page.
fn commands(stage: &mut Stage) -> BTreeSet<String> {
    stage.run(&["generate", "made"]);
    let names: Vec<String> = std::fs::read_dir(stage.path("made/man1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| name.trim_end_matches(".1").to_owned())
        .collect();
    let is_leaf = |name: &&String| !names.iter().any(|other| other.starts_with(&format!("{name}-")));
    let leafs = names.iter().filter(is_leaf).filter_map(|name| name.strip_prefix("railgate-"));
    leafs.map(|name| name.replace('-', " ")).chain(["generate".to_owned()]).collect()
}

#[test]
fn every_command_has_a_case() {
    let Some(mut stage) = Stage::new(RAILGATE) else { return };
    let cases: BTreeSet<String> = CASES.iter().map(|case| case.command.to_owned()).collect();
    assert_eq!(commands(&mut stage), cases);
    stage.end();
}

#[test]
fn no_argument_reaches_the_terminal_unescaped() {
    let Some(mut stage) = Stage::new(RAILGATE) else { return };
    arguments::of_the_program(&mut stage);
    for case in CASES {
        arguments::of(&mut stage, case);
    }
    stage.end();
}

/// One test for each input of `CASES`, so that they run in parallel.
macro_rules! inputs {
    ($($name:ident: $inputs:expr;)+) => {
        $(#[test]
        fn $name() {
            let Some(mut stage) = Stage::new(RAILGATE) else { return };
            $inputs(&mut stage);
            stage.end();
        })+

        #[test]
        fn every_input_has_a_test() {
            let tried: &[fn(&mut Stage)] = &[$($inputs),+];
            for case in CASES {
                let of_case = case.inputs as usize;
                let known = tried.iter().any(|one| *one as usize == of_case);
                assert!(known || of_case == nothing_but_arguments as fn(&mut Stage) as usize, "{}", case.command);
            }
        }
    };
}

inputs! {
    an_acceptance_of_which_every_text_is_hostile: accept::accept;
    a_snapshot_of_which_every_text_is_hostile: machines::snapshots;
    a_check_of_hostile_machines: machines::check;
    a_machine_whose_names_are_hostile: machines::live;
    profiles_of_hostile_text: machines::profiles;
    a_hostile_configuration: files::config;
    a_hostile_fabric: files::fabric;
    a_history_of_which_every_text_is_hostile: fleet::fleet;
    silences_of_which_every_text_is_hostile: fleet::silences;
    a_hostile_nhc_configuration: files::import;
    a_hostile_topology_file: files::topology;
    hostile_job_templates: files::templates;
    a_report_of_which_every_text_is_hostile: jobs::report;
    the_answer_about_a_job_of_which_every_text_is_hostile: jobs::why;
    a_load_that_prints_hostile_text: jobs::calibrate;
    a_job_with_a_hostile_environment: jobs::stand_aside;
    nodes_of_a_launch_that_print_hostile_text: jobs::launch;
    tasks_of_a_preflight_that_print_hostile_text: jobs::preflight;
    hostile_answers_of_slurm_to_doctor: state::doctor;
    hostile_answers_of_slurm_and_a_hostile_ledger: state::explain;
    hostile_reasons_of_held_nodes: state::nodes;
    a_pause_for_hostile_reasons: state::pause;
    a_node_that_is_held_for_hostile_reasons: state::readmit;
}
