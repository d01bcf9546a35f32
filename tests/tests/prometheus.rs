//! Tests metrics, dashboards and alert rules with Debian's Prometheus: node_exporter reads the written files, Prometheus scrapes
//! it, and every query of every dashboard must return a result.

#![expect(clippy::unwrap_used, reason = "helpers of tests stand outside of test functions")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use railgate_metrics::{
    CONTROLLER_FILE, CheckCounts, CollectiveNow, FLEET_FILE, FleetNow, GpuNow, JobLabel, JobNow, NODE_FILE,
    NodeState, OpenFinding, RAILS_FILE, RailState, TextfileDir, WorkNow, controller_page, fleet_page,
    job_file, job_page, node_page, rail_page,
};
use railgate_model::{Class, Fitness, Part, Phase, Profile, Reading, Severity, Snapshot, Verdict};
use railgate_node_report::usage::{Field as _, GpuField, HostField};
use railgate_rails::rail_map;
use railgate_tests::poll;
use serde_json::Value;

const MINUTE: Duration = Duration::from_secs(60);
const PROGRAMS: [&str; 3] = ["prometheus", "promtool", "prometheus-node-exporter"];

fn installed() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |program: &&str| std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    let all = PROGRAMS.iter().all(found);
    if !all {
        println!("skipped: {} are not installed (cargo xtask test installs them)", PROGRAMS.join(", "));
    }
    all
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A faulty node, whose counters are `tick` higher than at the start.
fn node(tick: u64) -> (Snapshot, Profile, Verdict) {
    let (profile, faults) = railgate_simulate::parse("h100-sxm:gpu-lost@3,ib-port-down@2", &[]).unwrap();
    let mut snapshot = railgate_simulate::simulated(&profile, &faults);
    if let Part::Read { data, .. } = &mut snapshot.fabric {
        for port in data.hcas.iter_mut().flat_map(|hca| &mut hca.ports) {
            for counter in port.counters.values_mut() {
                *counter = Reading::Known(1_000 + 1_000 * tick);
            }
        }
    }
    let verdict = Verdict {
        phase: Phase::Periodic,
        fitness: Fitness::Unfit,
        action: railgate_model::Action::Drain,
        findings: Vec::new(),
        deciding: None,
        shadow: Vec::new(),
        strikes: Vec::new(),
        signs: Vec::new(),
    };
    (snapshot, profile, verdict)
}

fn pages(tick: u64) -> Vec<(String, String)> {
    let (snapshot, profile, verdict) = node(tick);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let open = OpenFinding {
        check: "gpu-lost".to_owned(),
        severity: Severity::Fail,
        class: Class::Node,
        shadow: false,
    };
    let counts = CheckCounts {
        check: "gpu-lost".to_owned(),
        seen: tick,
        would_drain: tick,
        drained: tick,
        strikes: 1,
    };
    let rails = Some(rail_map(&snapshot, Some(&profile)));
    let node = node_page(&NodeState {
        snapshot: snapshot.clone(),
        verdict,
        took_ms: 27.0,
        taken: u64::try_from(now.as_millis()).unwrap(),
        acting: true,
        held: Some(true),
        pending: false,
        open: vec![open],
        checks: vec![counts],
    });
    let mut job = JobNow {
        job: 48_213,
        user: "alice".to_owned(),
        partition: "gpu".to_owned(),
        running_s: 60.0,
        ..JobNow::default()
    };
    for index in 0..8 {
        let mut gpu = GpuNow { index, uuid: format!("GPU-{index}"), ..GpuNow::default() };
        GpuField::ALL.iter().for_each(|field| gpu.values.put(*field, Some(41.0)));
        gpu.tensor_fraction = Some(0.447);
        job.gpus.push(gpu);
    }
    HostField::ALL.iter().for_each(|field| job.host.put(*field, Some(12.0)));
    job.work = Some(WorkNow {
        model_flop_ratio: Some(0.41),
        goodput_ratio: Some(0.97),
        steps: Some(tick),
        step_s: Some(9.78),
        collectives: vec![CollectiveNow {
            op: "AllReduce".to_owned(),
            calls: tick,
            bytes: tick << 20,
            bus_bytes_s: Some(3.4e11),
        }],
    });
    let decisions = [(("requeued".to_owned(), "gpu-lost".to_owned()), tick)].into();
    let fleet = FleetNow {
        incidents: [("leaf-switch".to_owned(), 1)].into(),
        faults: [("gpu".to_owned(), (tick, 1))].into(),
        lost_gpu_s: [("node: GPU".to_owned(), (0.0, 7200.0))].into(),
        ettr: Some((0.5, 0.75)),
        goodput: Some((0.5, 0.75)),
        complete_s: Some(1_800_000_000.5),
        events: tick,
        ..FleetNow::default()
    };
    vec![
        (CONTROLLER_FILE.to_owned(), controller_page(&decisions)),
        (FLEET_FILE.to_owned(), fleet_page(&fleet)),
        (NODE_FILE.to_owned(), node),
        (RAILS_FILE.to_owned(), rail_page(&RailState { snapshot, rails })),
        (job_file(job.job), job_page(&job, &[JobLabel::Job, JobLabel::User, JobLabel::Partition])),
    ]
}

#[test]
fn promtool_accepts_the_metrics_without_warnings() -> Result<()> {
    if !installed() {
        return Ok(());
    }
    for (name, page) in pages(1) {
        let mut child = Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        child.stdin.take().context("no input")?.write_all(page.as_bytes())?;
        let output = child.wait_with_output()?;
        let said = [output.stdout, output.stderr].concat();
        ensure!(output.status.success() && said.is_empty(), "{name}: {}", String::from_utf8_lossy(&said));
    }
    Ok(())
}

#[test]
fn the_alert_rules_pass_their_tests() -> Result<()> {
    if !installed() {
        return Ok(());
    }
    for words in [
        ["check", "rules", "contrib/prometheus/railgate.rules.yml"],
        ["test", "rules", "tests/prometheus/rules_test.yml"],
    ] {
        let output = Command::new("promtool").args(words).current_dir(workspace()).output()?;
        let said = [output.stdout, output.stderr].concat();
        ensure!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&said));
    }
    let rules = fs::read_to_string(workspace().join("contrib/prometheus/railgate.rules.yml"))?;
    let tests = fs::read_to_string(workspace().join("tests/prometheus/rules_test.yml"))?;
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    for alert in alerts {
        let tried = tests.matches(alert).count();
        ensure!(
            tried >= 2,
            "{alert} has {tried} tests: it needs one in which it fires and one in which it does not"
        );
    }
    Ok(())
}

/// A program that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn get(port: u16, path: &str) -> Result<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
    serde_json::from_str(body).with_context(|| body.to_owned())
}

fn encoded(query: &str) -> String {
    query.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Number of series that a query returns; waits for the first.
fn series(port: u16, query: &str) -> Result<usize> {
    poll::until(MINUTE, query, || {
        let said = get(port, &format!("/api/v1/query?query={}", encoded(query)))?;
        if said["status"] != "success" {
            bail!("{query}: {}", said["error"]);
        }
        Ok(said["data"]["result"].as_array().map(Vec::len).filter(|count| *count > 0))
    })
}

/// Replaces `$name` and `${name}` by a selected value.
fn chosen(expr: &str) -> String {
    expr.replace("$__rate_interval", "10s").replace("$instance", ".*").replace("$job_id", "48213|.*")
}

#[test]
fn every_dashboard_query_returns_a_result() -> Result<()> {
    if !installed() {
        return Ok(());
    }
    let place = tempfile::tempdir()?;
    let textfiles = place.path().join("textfiles");
    fs::create_dir(&textfiles)?;
    let (exporter, server) = (free_port()?, free_port()?);
    let quiet = |command: &mut Command, log: &str| -> Result<Running> {
        let log = fs::File::create(place.path().join(log))?;
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        Ok(Running(child))
    };
    let mut command = Command::new("prometheus-node-exporter");
    command.args(["--collector.disable-defaults", "--collector.textfile", "--web.disable-exporter-metrics"]);
    command.arg(format!("--collector.textfile.directory={}", textfiles.display()));
    let _exporter = quiet(command.arg(format!("--web.listen-address=127.0.0.1:{exporter}")), "exporter.log")?;
    let config = place.path().join("prometheus.yml");
    let rules = workspace().join("contrib/prometheus/railgate.rules.yml").canonicalize()?;
    fs::write(
        &config,
        format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\n\
             rule_files: ['{}']\n\
             scrape_configs: [{{job_name: node, static_configs: [{{targets: ['127.0.0.1:{exporter}']}}]}}]\n",
            rules.display()
        ),
    )?;
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", place.path().join("data").display()));
    let _server = quiet(command.arg(format!("--web.listen-address=127.0.0.1:{server}")), "server.log")?;

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<()> {
            let dir = TextfileDir::open(&textfiles)?;
            let mut tick = 0;
            while !stop.load(Ordering::Relaxed) {
                tick += 1;
                for (name, page) in pages(tick) {
                    dir.put(&name, &page)?;
                }
                std::thread::sleep(Duration::from_millis(300));
            }
            Ok(())
        });
        let asked = ask_everything(server);
        stop.store(true, Ordering::Relaxed);
        writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        asked.with_context(|| fs::read_to_string(place.path().join("server.log")).unwrap_or_default())
    })
}

fn ask_everything(server: u16) -> Result<()> {
    poll::until(MINUTE, "Prometheus to answer", || {
        Ok(get(server, "/api/v1/status/buildinfo").ok().filter(|said| said["status"] == "success"))
    })?;
    // node_exporter exports here the files that it could not parse.
    series(server, "railgate_build_info")?;
    series(server, "node_textfile_scrape_error == 0")?;
    let mut asked = BTreeSet::new();
    for name in ["cluster", "node", "job", "fleet"] {
        let path = workspace().join(format!("contrib/grafana/{name}.json"));
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        let panels = dashboard["panels"].as_array().context("no panels")?;
        for panel in panels {
            for target in panel["targets"].as_array().context("no targets")? {
                let expr = target["expr"].as_str().context("no query")?;
                let query = chosen(expr);
                ensure!(!query.contains('$'), "{name}: {}: {expr}: an undefined variable", panel["title"]);
                series(server, &query).with_context(|| format!("{name}: {}", panel["title"]))?;
                asked.insert(query);
            }
        }
        for variable in dashboard["templating"]["list"].as_array().context("no variables")? {
            let Some(query) = variable["query"]["query"].as_str() else { continue };
            let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
            let (metric, label) = inner.and_then(|inner| inner.split_once(", ")).context(query.to_owned())?;
            let said = get(server, &format!("/api/v1/label/{label}/values?match%5B%5D={metric}"))?;
            ensure!(
                said["data"].as_array().is_some_and(|values| !values.is_empty()),
                "{name}: {query}: {said}"
            );
        }
    }
    ensure!(asked.len() > 50, "{}", asked.len());
    let said = get(server, "/api/v1/rules")?;
    let groups = said["data"]["groups"].as_array().context("no groups")?;
    let rules = groups.iter().filter_map(|group| group["rules"].as_array()).flatten();
    let bad: Vec<_> = rules.filter(|rule| rule["health"] == "err").collect();
    ensure!(groups.len() == 5 && bad.is_empty(), "{bad:?}");
    Ok(())
}
