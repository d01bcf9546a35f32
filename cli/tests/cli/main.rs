//! The built `railgate`, as users and scripts call it: exit codes, standard output and error; whether the pages describe it
//! correctly; and what it records about cards.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]
#![expect(clippy::disallowed_macros, reason = "a skipped test prints the reason")]

mod cards;
mod pages;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// `railgate` with a configuration of the test's own, independent of /etc on this machine.
struct Cli {
    dir: tempfile::TempDir,
}

impl Cli {
    fn new(config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("railgate.toml"), config).unwrap();
        Cli { dir }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_railgate"));
        command.current_dir(self.dir.path()).args(["--config", "railgate.toml"]).args(words);
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn code(&self, words: &[&str]) -> Option<i32> {
        self.run(words).status.code()
    }

    /// Standard output; the run must succeed.
    fn said(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", err(&output));
        out(&output)
    }

    fn json(&self, words: &[&str]) -> Value {
        let words = [words, &["--format", "json"]].concat();
        let output = self.run(&words);
        let value: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{words:?}: {why}"));
        assert_eq!(value["schema"], 1, "{words:?}");
        value
    }
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn exit_codes_follow_the_verdict() {
    let cli = Cli::new("");
    for (words, code) in [
        (&["check", "--simulate", "h100-sxm"][..], 0),
        (&["check", "--simulate", "h100-sxm:gpu-remap-pending"], 0),
        (&["check", "--simulate", "h100-sxm:gpu-lost@3"], 1),
        (&["check", "--simulate", "h100-sxm:nvml-missing"], 3),
        (&["check", "--list"], 0),
        (&["check", "--simulate", "h100"], 2),
        (&["check", "--simulate", "h100-sxm:gpu-lots"], 2),
        (&["check", "--simulate", "h100-sxm:gpu-lost@9"], 2),
        (&["check", "--snapshot", "absent.json"], 2),
        (&["check", "--snapshot", "a", "--simulate", "b"], 2),
        (&["check", "--then", "/bin/true"], 2),
        (&["explain", "gpu-lots"], 2),
        (&["explain", "launch-bound"], 0),
        (&["report", "--rules"], 0),
        (&["report", "--rules", "--format", "html"], 2),
        (&["report", "7", "--rules"], 2),
        (&["explain", "../etc"], 2),
        (&["readmit", "no-such-node"], 2),
        (&["check", "--history", "--list"], 2),
        (&["rails", "--simulate", "h100-sxm", "--gpus", "0-8"], 2),
        (&["rails", "--simulate", "h100-sxm", "--profile", "fast"], 2),
        (&["report", "7_"], 2),
        (&["report", "7.x"], 2),
        (&["report", "7_[4-1]"], 2),
        (&["report", "--array"], 2),
        (&["report", "7", "--name", "x"], 2),
        (&["report", "7_[1-4]", "--format", "json"], 2),
        (&["nosuch"], 2),
    ] {
        assert_eq!(cli.code(words), Some(code), "{words:?}");
    }
}

#[test]
fn a_misspelled_word_gets_the_likely_one_as_a_hint() {
    let cli = Cli::new("[slurm]\nbin_dir = '/nonexistent'\n");
    for (words, meant) in [
        (&["explain", "gpu-xdi"][..], "did you mean 'gpu-xid'?"),
        (&["explain", "gpu-lots@3"], "did you mean 'gpu-lost'?"),
        (&["explain", "launch-bond"], "did you mean 'launch-bound'?"),
        (&["check", "--simulate", "h100-sxn"], "did you mean 'h100-sxm'?"),
        (&["template", "show", "jaxx"], "did you mean 'jax'?"),
    ] {
        let wrong = cli.run(words);
        assert_eq!(wrong.status.code(), Some(2), "{words:?}");
        assert!(err(&wrong).contains(meant) && err(&wrong).lines().count() == 1, "{}", err(&wrong));
    }
    assert!(!err(&cli.run(&["explain", "gn7"])).contains("did you mean"));
}

#[test]
fn an_existing_file_is_not_overwritten_by_a_template() {
    let cli = Cli::new("");
    cli.said(&["template", "show", "jax", "--out", "jax.sbatch"]);
    let again = cli.run(&["template", "show", "jax", "--out", "jax.sbatch"]);
    assert_eq!(again.status.code(), Some(2));
    let said = "railgate: jax.sbatch: exists already: remove it, or give another name to --out\n";
    assert_eq!(err(&again), said);
}

#[test]
fn shared_help_text_fits_all_commands() {
    let cli = Cli::new("");
    for command in ["doctor", "readmit", "report"] {
        let help = cli.said(&[command, "--help"]);
        let (_, about) = help.split_once("--config <FILE>").unwrap();
        let about: Vec<&str> =
            about.lines().take_while(|line| !line.trim_start().starts_with("--")).collect();
        assert!(!about.concat().contains("check"), "{command}: {about:?}");
    }
}

#[test]
fn examples_in_help_fit_a_terminal_of_80_columns() {
    let cli = Cli::new("");
    let commands: [&[&str]; 21] = [
        &[],
        &["calibrate"],
        &["check"],
        &["config"],
        &["doctor"],
        &["explain"],
        &["fabric"],
        &["import"],
        &["import", "nhc"],
        &["nodes"],
        &["pause"],
        &["profile", "record"],
        &["rails"],
        &["readmit"],
        &["report"],
        &["rma"],
        &["simulate"],
        &["snapshot"],
        &["template"],
        &["template", "show"],
        &["yield"],
    ];
    for words in commands {
        let output = cli.command(&[words, &["--help"]].concat()).env("COLUMNS", "80").output().unwrap();
        let help = out(&output);
        let (_, examples) = help.split_once("\nExample").unwrap();
        let mut before = "";
        for line in examples.lines().skip(1).take_while(|line| !line.is_empty()) {
            // A command may need two lines; a comment that does is in the place of a command then.
            let is_rest =
                line.starts_with("  ") && !line.starts_with("   ") && !line.starts_with("  railgate");
            let had_comment = before.trim().contains("  ");
            assert!(!is_rest || line.starts_with("  ssh") || !had_comment, "{words:?}: {before:?} {line:?}");
            before = line;
        }
    }
}

#[test]
fn findings_go_to_standard_output_and_errors_to_standard_error() {
    let cli = Cli::new("");
    let unfit = cli.run(&["check", "--simulate", "h100-sxm:gpu-lost@3"]);
    assert!(
        out(&unfit).starts_with("simulated (h100-sxm, simulated), periodic: unfit\nfail     gpu-lost@3: ")
    );
    assert!(out(&unfit).contains("fix: reboot (class node; railgate explain gpu-lost)\n"));
    assert_eq!(err(&unfit), "");
    for words in [["check", "--simulate", "h100"], ["check", "--snapshot", "absent.json"]] {
        let wrong = cli.run(&words);
        assert_eq!(out(&wrong), "", "{words:?}");
        assert!(err(&wrong).starts_with("railgate: ") && err(&wrong).lines().count() == 1, "{}", err(&wrong));
    }
    // The file's name and the reason, each once.
    let absent = err(&cli.run(&["check", "--snapshot", "absent.json"]));
    assert_eq!(absent, "railgate: absent.json: No such file or directory (os error 2)\n");
}

#[test]
fn a_closed_pipe_keeps_the_exit_code_of_the_verdict() {
    let cli = Cli::new("");
    let mut command = cli.command(&["check", "--simulate", "h100-sxm:gpu-lost@3"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((output.status.code(), err(&output).as_str()), (Some(1), ""));
    if Path::new("/dev/full").exists() {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = cli.command(&["check", "--simulate", "h100-sxm"]).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
    }
}

#[test]
fn a_recorded_node_gets_the_verdict_of_its_recording() {
    let cli = Cli::new("profile = \"h100-sxm\"\n");
    let node = "h100-sxm:gpu-lost@3,ib-port-down@mlx5_5,gpu-xid-63@1";
    let parts = cli.said(&["snapshot", "--simulate", node, "--out", "node.json"]);
    assert_eq!(parts.lines().count(), 5, "{parts}");
    let recorded = cli.json(&["check", "--snapshot", "node.json"]);
    let simulated = cli.json(&["check", "--simulate", node]);
    assert_eq!(recorded["verdict"], simulated["verdict"]);
    assert_eq!((&recorded["origin"], &simulated["origin"]), (&"recorded".into(), &"simulated".into()));
    assert_eq!(recorded["verdict"]["findings"][0]["check"], "gpu-lost");
    // The printed snapshot equals the written one.
    let printed: Value = serde_json::from_str(&cli.said(&["snapshot", "--snapshot", "node.json"])).unwrap();
    let written: Value =
        serde_json::from_slice(&std::fs::read(cli.dir.path().join("node.json")).unwrap()).unwrap();
    assert_eq!(printed["gpus"], written["gpus"]);
    let rails = |words: &[&str]| cli.json(&[&["rails"], words].concat());
    assert_eq!(rails(&["--snapshot", "node.json"])["settings"], rails(&["--simulate", node])["settings"]);
}

#[test]
fn recorded_and_simulated_nodes_are_never_drained() {
    let cli = Cli::new("[gate]\nmode = \"enforce\"\n");
    cli.said(&["snapshot", "--simulate", "h100-sxm:gpu-lost@3", "--out", "node.json"]);
    for stand_in in [["--simulate", "h100-sxm:gpu-lost@3"], ["--snapshot", "node.json"]] {
        let refused = cli.run(&[&["check", "--drain"][..], &stand_in].concat());
        assert_eq!((refused.status.code(), out(&refused).as_str()), (Some(2), ""));
        assert!(err(&refused).contains("refuses recorded and simulated"), "{}", err(&refused));
        let looked = cli.run(&[&["check"][..], &stand_in].concat());
        assert!(out(&looked).contains("simulated or recorded node: no action"), "{}", out(&looked));
    }
}

#[test]
fn all_problems_of_a_configuration_are_reported_with_positions() {
    let cli = Cli::new("profil = \"x\"\n[gate]\nmood = \"enforce\"\nmode = \"off\"\n");
    for words in [&["config", "check"][..], &["config", "show"], &["check", "--simulate", "h100-sxm"]] {
        let wrong = cli.run(words);
        assert_eq!((wrong.status.code(), out(&wrong).as_str()), (Some(2), ""), "{words:?}");
        let said = err(&wrong);
        let places: Vec<&str> = said.lines().filter(|line| line.starts_with("railgate.toml:")).collect();
        assert_eq!(places.len(), 3, "{said}");
        assert!(places[0].starts_with("railgate.toml:1:1: unknown field `profil`"), "{said}");
        assert!(said.contains("  3 | mood = \"enforce\"\n    | ^^^^\n"), "{said}");
        assert!(said.ends_with("railgate: 3 problems in the configuration\n"), "{said}");
    }
    let absent = Cli::new("profile = \"h100\"\n").run(&["config", "check"]);
    assert_eq!(absent.status.code(), Some(2));
    assert!(err(&absent).contains("railgate.toml:1: profile: no machine profile 'h100' (known: h100-sxm, "));
    assert!(Cli::new("").said(&["config", "check"]).contains(": ok"));
}

#[test]
fn problems_of_other_nodes_are_found_here() {
    let cli = Cli::new(
        "[[node]]\nnames = \"gn[1-8]\"\n[node.gate]\nmode = \"enforce\"\n\
         [[node]]\nnames = \"gn[7-9]\"\n[node.breaker]\nmax_percent = 200\n\
         [[node]]\nnames = \"gn9\"\nprofile = \"h100\"\n",
    );
    let wrong = cli.run(&["config", "check"]);
    assert_eq!((wrong.status.code(), out(&wrong).as_str()), (Some(2), ""));
    assert_eq!(
        err(&wrong).matches("railgate.toml:8:1: breaker.max_percent: 200").count(),
        1,
        "{}",
        err(&wrong)
    );
    assert!(cli.said(&["config", "check", "--node", "gn1"]).ends_with("railgate.toml: ok on gn1\n"));
    let profile = Cli::new("[[node]]\nnames = \"gn9\"\nprofile = \"h100\"\n").run(&["config", "check"]);
    assert_eq!(profile.status.code(), Some(2));
    assert!(err(&profile).contains("railgate.toml:3 [[node]] gn9: profile: no machine profile 'h100'"));
}

#[test]
fn the_effective_configuration_is_valid_and_shows_origins() {
    let cli = Cli::new("[[node]]\nnames = \"gn[1-2]\"\n[node.gate]\nmode = \"enforce\"\n");
    let of = |node: &str| cli.said(&["config", "show", "--origin", "--node", node]);
    let line = |text: &str| text.lines().find(|line| line.starts_with("gate.mode")).unwrap().to_owned();
    assert!(line(&of("gn2")).ends_with("# railgate.toml:4 [[node]] gn[1-2]"), "{}", of("gn2"));
    assert!(line(&of("gn3")).ends_with("# default"), "{}", of("gn3"));
    let again = Cli::new(&of("gn2"));
    let values = |cli: &Cli, node: &str| {
        let shown = cli.json(&["config", "show", "--node", node]);
        let values = shown["values"].as_object().unwrap().clone();
        values.into_iter().map(|(key, value)| (key, value["value"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(values(&again, "gn9"), values(&cli, "gn2"));
}

#[test]
fn an_unknown_job_is_reported_with_the_searched_directories() {
    let cli = Cli::new("[report]\ndir = \"/nonexistent/reports\"\nlocal_dir = \"/nonexistent/local\"\n");
    let unknown = cli.run(&["report", "4000000000"]);
    assert_eq!((unknown.status.code(), out(&unknown).as_str()), (Some(3), ""));
    let said = err(&unknown);
    assert!(said.contains("job 4000000000: no record, and Slurm does not answer: "), "{said}");
    assert!(said.contains("/nonexistent/reports or /nonexistent/local"), "{said}");
}

#[test]
fn a_swapped_cable_is_found_by_lldp_and_by_a_table() {
    let cli = Cli::new("");
    std::fs::create_dir(cli.dir.path().join("lldp")).unwrap();
    let mut table = String::new();
    let mut words = vec!["fabric".to_owned(), "--lldp".to_owned()];
    for node in 1..=3 {
        let interfaces: Vec<Value> = (0..4)
            .map(|rail| {
                let leaf = match (node, rail) {
                    (2, 1) => 3,
                    (2, 3) => 1,
                    _ => rail,
                };
                table.push_str(&format!("gn{node} rdma{rail} leaf{leaf} swp{node}\n"));
                let port = serde_json::json!({ "id": { "type": "ifname", "value": format!("swp{node}") } });
                let chassis = serde_json::json!({ format!("leaf{leaf}"): {} });
                serde_json::json!({ format!("rdma{rail}"): { "chassis": chassis, "port": port } })
            })
            .collect();
        let file = format!("lldp/gn{node}.json");
        let text = serde_json::json!({ "lldp": { "interface": interfaces } }).to_string();
        std::fs::write(cli.dir.path().join(&file), text).unwrap();
        words.push(file);
    }
    std::fs::write(cli.dir.path().join("cables"), table).unwrap();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for words in [&words[..], &["fabric", "--table", "cables"]] {
        let said = cli.run(words);
        assert_eq!(said.status.code(), Some(1), "{}", err(&said));
        let ends = "gn2 rdma1 port 1 is on leaf3 port swp2, should be on leaf1 (rail 1); gn2 rdma3 port 1 is in its place";
        assert!(out(&said).contains(ends), "{}", out(&said));
        assert!(out(&said).contains("2 on the wrong leaf, 0 without a link"), "{}", out(&said));
        assert_eq!(cli.code(&[words, &["--format", "topology-tree"]].concat()), Some(2));
    }
    assert_eq!(cli.json(&["fabric", "--table", "cables"])["faults"].as_array().unwrap().len(), 2);
    assert_eq!(cli.code(&["fabric", "--lldp", "cables/none"]), Some(2));
}

#[test]
fn prune_removes_old_reports_and_keeps_foreign_files() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(&format!("[report]\ndir = '{0}'\nlocal_dir = '{0}/local'\n", place.path().display()));
    let attempt = place.path().join("alpha/7/0");
    std::fs::create_dir_all(&attempt).unwrap();
    std::fs::create_dir_all(place.path().join("alpha/8/0")).unwrap();
    for name in ["n1.json", "n1.samples", "mine.txt"] {
        std::fs::write(attempt.join(name), "").unwrap();
    }
    assert!(
        cli.said(&["report", "--prune"])
            .contains("reports of 0 jobs and samples of 0 nodes removed, 2 jobs stay")
    );
    for words in [
        &["report", "7", "--prune"][..],
        &["report", "--name", "x", "--prune"],
        &["report", "7", "--days", "3"],
    ] {
        assert_eq!(cli.code(words), Some(2), "{words:?}");
    }
    let output = cli.run(&["report", "--prune", "--keep", "0", "--days", "0"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    // The older of two is removed, except for files that railgate did not write.
    filetime(&place.path().join("alpha/7"));
    let output = cli.run(&["report", "--prune"]);
    assert_eq!(output.status.code(), Some(3), "{}", out(&output));
    assert!(err(&output).contains("alpha/7: holds something that is not railgate's"), "{}", err(&output));
    let left: Vec<_> = std::fs::read_dir(&attempt).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["mine.txt"]);
}

/// A report directory with one node report, of job 7.
fn one_part() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let attempt = place.path().join("alpha/7/0");
    std::fs::create_dir_all(&attempt).unwrap();
    let job = railgate_model::Job {
        id: 7,
        uid: 0,
        gid: 0,
        user: "root".to_owned(),
        restarts: 0,
        nodelist: "n1".to_owned(),
        het_leader: None,
        allocation: railgate_model::Allocation::NoGpus,
        partition: "gpu".to_owned(),
    };
    let part = railgate_node_report::NodeReport::new("alpha", "n1", job, 0, 1_800_000_000_000);
    std::fs::write(attempt.join("n1.json"), serde_json::to_vec(&part).unwrap()).unwrap();
    place
}

#[test]
fn a_json_report_goes_to_the_given_file_or_the_error_is_printed() {
    let place = one_part();
    let cli = Cli::new("[slurm]\nbin_dir = '/nonexistent'\n");
    let words = ["report", "7", "--dir", place.path().to_str().unwrap(), "--format", "json"];
    let said = cli.said(&words);
    assert!(said.ends_with("\n}\n"), "{said}");
    cli.said(&[&words[..], &["--out", "file"]].concat());
    assert_eq!(std::fs::read_to_string(cli.dir.path().join("file")).unwrap(), said);
    let full = cli.run(&[&words[..], &["--out", "/dev/full"]].concat());
    assert!(!full.status.success() && err(&full).contains("/dev/full: "), "{}", err(&full));
    // The reader has closed the pipe early.
    let mut child = cli.command(&words).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn leaf_switches_have_the_names_of_the_cable_table() {
    let place = one_part();
    let cables = place.path().join("cables.txt");
    std::fs::write(&cables, "n1 mlx5_0 leaf-a0 swp1\nn1,mlx5_1:2,leaf-a1\nn9 mlx5_0 leaf-z9\n").unwrap();
    let with = |table: &Path| {
        let table = table.display();
        Cli::new(&format!("[report]\ncables = '{table}'\n[slurm]\nbin_dir = '/nonexistent'\n"))
    };
    let words = ["report", "7", "--dir", place.path().to_str().unwrap()];
    let told = with(&cables).json(&words);
    assert_eq!(told["leafs"], serde_json::json!({"n1": {"mlx5_0:1": "leaf-a0", "mlx5_1:2": "leaf-a1"}}));
    // The report is printed nevertheless.
    let said = with(&place.path().join("none")).json(&words);
    let problem = said["problems"][0].as_str().unwrap();
    assert!(problem.starts_with("report.cables: ") && said.get("leafs").is_none(), "{said}");
}

/// Sets the modification time half a year back.
fn filetime(path: &std::path::Path) {
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(180 * 86_400);
    std::fs::File::open(path).unwrap().set_modified(old).unwrap();
}

/// Slurm signals only a task's first process, and a launcher may have started its workers in sessions of their own.
/// SIGTERM is for the program itself, which ends its workers.
#[test]
fn a_signal_to_a_task_of_a_template_reaches_its_descendants() {
    let waits = |on: &str| {
        format!(
            "setsid python3 -c 'import signal, sys, time\n\
             signal.signal(signal.{on}, lambda *_: sys.exit(\"told\"))\n\
             print(\"ready\", flush=True)\n\
             time.sleep(60)'"
        )
    };
    // USR1 is for a worker under a launcher that ignores it, TERM for the launcher.
    let cases = [
        ("-USR1", "bash -c \"$WORKER\"; exit $?".to_owned(), waits("SIGUSR1")),
        ("-TERM", "eval \"$WORKER\"".to_owned(), waits("SIGTERM")),
    ];
    let task = Cli::new("").said(&["template", "task"]);
    for (signal, launcher, worker) in &cases {
        let mut command = Command::new("bash");
        command
            .args(["-c", &task, "task", launcher])
            .env("WORKER", worker)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut first = command.spawn().unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(first.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let told = Command::new("kill").args([signal, first.id().to_string().as_str()]).status().unwrap();
        let output = first.wait_with_output().unwrap();
        assert!(told.success() && output.status.code() == Some(1), "{signal}: {output:?}");
        assert_eq!(err(&output), "told\n", "{signal}");
    }
}

/// Each shell reports the completion function of the command, without the user's own settings.
#[test]
fn completions_load_in_bash_and_zsh() {
    let cli = Cli::new("");
    cli.said(&["generate", "made"]);
    let made = cli.dir.path().join("made");
    let bash = ". made/bash/railgate.bash && complete -p railgate";
    let zsh = "fpath=($PWD/made/zsh $fpath); autoload -Uz compinit && compinit -D -u && \
               autoload +X _railgate && whence -w _railgate && print $_comps[railgate]";
    for (words, said) in [
        (["bash", "--norc", "-c", bash], "-F _railgate "),
        (["zsh", "-f", "-c", zsh], "_railgate: function\n_railgate\n"),
    ] {
        let output = Command::new(words[0]).args(&words[1..]).current_dir(cli.dir.path()).output();
        match output {
            Ok(output) => {
                let text = out(&output) + &err(&output);
                assert!(output.status.success() && text.contains(said), "{}: {text}", words[0]);
            }
            Err(why) if words[0] == "zsh" => eprintln!("skipped: zsh: {why}"),
            Err(why) => panic!("{}: {why}", words[0]),
        }
    }
    assert!(made.join("fish/railgate.fish").exists());
}

#[test]
fn rma_has_serial_numbers_and_xids_but_no_processes() {
    let cli = Cli::new("");
    let node = "h100-sxm:gpu-xid-48@3,gpu-process-leftover@1";
    let page = cli.said(&["rma", "gn7", "--simulate", node]);
    assert!(
        page.starts_with("gn7 (simulated), ") && page.contains("NVRM: Xid (PCI:0000:61:00): 48"),
        "{page}"
    );
    let packed = cli.json(&["rma", "gn7", "--simulate", node]);
    assert_eq!(packed["xids"][0]["code"], 48);
    assert_eq!(packed["gpus"]["read"]["data"]["gpus"][1]["processes"], "unsupported");
    // A node that is not simulated must be this one.
    let elsewhere = cli.run(&["rma", "gn7"]);
    assert_eq!(elsewhere.status.code(), Some(2));
    assert!(err(&elsewhere).contains("ssh gn7 railgate rma gn7"), "{}", err(&elsewhere));
    assert!(err(&cli.run(&["readmit", "gn7"])).contains("ssh gn7 railgate readmit gn7"));
}
