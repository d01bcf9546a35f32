//! An admin installs railgate as docs/install.md describes: first mode report, then enforce.

use anyhow::{Context as _, Result, ensure};
use railgate_tests::poll;

use super::site::{HEAD, HEALTH, HEALTH_RAN, MINUTE, NODES, PROLOG, PROLOG_RAN, SCHEDULER};
use super::{Hour, name};

pub(super) const SETTINGS: &str = "/etc/railgate/railgate.toml";
const PAGE: &str = "install.md";
const QUICK_START: &str = "Quick start";

/// The page's railgate.toml with this site's names, the same on every machine. Section 2 uses `report`, the third step of section 6
/// `enforce`.
pub(super) fn settings(mode: &str) -> String {
    format!(
        "profile = \"h100-sxm\"\n\n[[node]]\nnames = \"cn[1-2]\"\nprofile = \"cpu\"\n\n[gate]\nmode = \"{mode}\"\n\n\
         [report]\ndir = \"/shared/railgate\"\n"
    )
}

/// Section 6, second step: a few nodes enforce.
const FEW: &str = "
[[node]]
names = \"gn[1-2]\"
[node.gate]
mode = \"enforce\"
";

impl Hour<'_> {
    /// From a plain Slurm to a cluster on which railgate enforces.
    pub(super) fn install(&self) -> Result<()> {
        self.record.need("before: a job, the site's Prolog and its health check run", || {
            let id = self.cluster.alice().sbatch(&["-N4", "-o", "before"], "srun hostname")?;
            self.cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
            self.site_prolog_ran(id)?;
            self.site_health_runs()
        })?;
        self.put(&self.packages.old)?;
        self.record.need("quick start: the package on every machine, the lines of /etc/slurm", || {
            self.quick_start()?;
            self.edit(&settings("report"))
        })?;
        self.record.need("restart slurmctld and slurmd", || self.restart_slurm())?;
        self.record.need("doctor names this site's steps, and the site's own programs are kept", || {
            self.follow_doctor()?;
            self.restart_slurm()
        })?;
        self.ready();
        self.record.step("the site's SchedulerParameters are in force, with railgate's", || {
            let value = self.in_force("SchedulerParameters")?;
            for word in SCHEDULER.iter().chain(&["nohold_on_prolog_fail"]) {
                ensure!(value.split(',').any(|one| one == *word), "{word} is lost: {value}");
            }
            Ok(())
        });
        self.record.step("--fix-hints=slurm.conf again changes nothing", || {
            let command = "railgate doctor --fix-hints=slurm.conf";
            let again = self.typist.root(HEAD, command)?.ok()?;
            let have = self.cluster.read(HEAD, "/etc/slurm/railgate.conf")?;
            let without = |text: &str| {
                text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
            };
            ensure!(
                without(&again) == without(&have),
                "it prints\n{again}and /etc/slurm/railgate.conf has\n{have}"
            );
            Ok(())
        });
        self.record.step("the site's health check still runs", || self.site_health_runs());
        self.record.step("report: nodes are checked, a faulty one is logged and stays in service", || {
            self.reports()
        });
        self.record.step("a few nodes are switched to enforce", || {
            self.edit(&(settings("report") + FEW))?;
            self.enforcing("gn1", "enforce")?;
            self.enforcing("cn1", "report")
        });
        self.record.step("all enforce", || {
            self.typist.page_contains(
                PAGE,
                "`[gate] mode = \"enforce\"` for everybody, without the `[[node]]` table",
            )?;
            self.edit(&settings("enforce"))?;
            NODES.iter().try_for_each(|node| self.enforcing(node, "enforce"))
        });
        Ok(())
    }

    /// Copies a package to the directory that this site uses for packages.
    pub(super) fn put(&self, deb: &std::path::Path) -> Result<()> {
        std::fs::copy(deb, self.cluster.path(HEAD, "/shared")?.join(name(deb)?))?;
        Ok(())
    }

    /// The commands of the page's quick start.
    pub(super) fn quick_start(&self) -> Result<()> {
        let lines = self.typist.block(PAGE, QUICK_START, 0)?;
        let (everywhere, once): (Vec<_>, Vec<_>) =
            lines.iter().partition(|line| line.ends_with("# on every machine"));
        for line in everywhere {
            for machine in self.machines() {
                self.typist.root(machine, line)?.ok()?;
            }
        }
        for line in once {
            let said = self.typist.root(HEAD, line)?;
            ensure!(said.stderr.is_empty(), "{line}: {}", said.stderr);
            said.ok()?;
        }
        Ok(())
    }

    /// Follows doctor's advice about the site's own Prolog and health check, so that both run beside railgate's.
    pub(super) fn follow_doctor(&self) -> Result<()> {
        let said = self.typist.admin("gn1", PAGE, "railgate doctor", &[])?;
        ensure!(said.code == 1, "doctor on gn1 exits with {}", said.code);
        let advice = |rule: &str| {
            let (_, finding) = said.stdout.split_once(&format!(" {rule}: "))?;
            finding.lines().find_map(|line| line.trim().strip_prefix("do: "))
        };
        let change = |from: &str, to: &str| {
            let line = format!("sed -i 's|^{from}$|{to}|' /etc/slurm/railgate.conf");
            self.typist.root(HEAD, &line)?.ok().map(drop)
        };
        // From 24.05 on Slurm runs the programs of both lines, so doctor has no advice.
        if let Some(prolog) = advice("prolog-hook") {
            for step in prolog.split("; ").filter(|step| step.starts_with("ln -s ")) {
                self.typist.root(HEAD, step)?.ok()?;
            }
            let line =
                prolog.split("; ").find(|step| step.starts_with("Prolog=")).context("no line for Prolog")?;
            change(&format!("Prolog={PROLOG}"), line)?;
            let links = self.typist.root(HEAD, "readlink /etc/slurm/prolog.d/*")?.ok()?;
            ensure!(
                links.lines().any(|link| link == PROLOG),
                "the site's Prolog is missing after '{prolog}': {links}"
            );
        }

        let health = advice("periodic-check").context("doctor on gn1 has no advice for the health check")?;
        let (line, rest) = health
            .split_once(", with ")
            .with_context(|| format!("the site's health check is missing: {health}"))?;
        let (then, place) = rest.split_once(" at the end of ").context("no place for --then")?;
        ensure!(then == format!("--then {HEALTH}") && place == "its last line", "{health}");
        change(&format!("HealthCheckProgram={HEALTH}"), line)?;
        for machine in self.machines() {
            self.typist.root(machine, &format!("sed -i '$s|$| {then}|' /etc/railgate/periodic.sh"))?.ok()?;
        }
        let said = self.typist.root(HEAD, "railgate doctor")?;
        for words in ["is not in force: slurmctld has", "do: restart slurmctld and slurmd"] {
            ensure!(
                said.stdout.contains(words),
                "doctor before the restart does not print: {words}\n{}",
                said.stdout
            );
        }
        Ok(())
    }

    /// Runs doctor on the head node, a GPU node and a CPU node.
    pub(super) fn ready(&self) {
        for machine in [HEAD, "gn1", "cn1"] {
            self.record.step(&format!("doctor on {machine} finds nothing wrong"), || {
                let said = self.typist.admin(machine, PAGE, "railgate doctor", &[])?;
                ensure!(said.code == 0 && said.stdout.contains("nothing is wrong"), "{said}");
                Ok(())
            });
        }
    }

    fn reports(&self) -> Result<()> {
        for node in NODES {
            let said = self.typist.admin(node, PAGE, "railgate check", &[])?;
            ensure!(said.code == 0 && said.stdout.contains(": fit"), "{said}");
        }
        self.cluster.hardware("gn2")?.inject("gpu-lost@3")?;
        let id =
            self.cluster.alice().sbatch(&["-w", "gn2", "--gres=gpu:8", "-o", "reported"], "srun hostname")?;
        let job = self.cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        ensure!(job.restarts() == 0, "the job was moved in report mode: {job:?}");
        self.site_prolog_ran(id)?;
        let said = self.typist.admin("gn2", PAGE, "railgate check", &[])?;
        ensure!(said.code == 1 && said.stdout.contains("gpu-lost@3"), "{said}");
        self.typist.admin("gn2", PAGE, "railgate check --history", &[])?.ok()?;
        let log =
            self.typist.admin("gn2", PAGE, "grep 'would drain' /var/log/railgate.log || true", &[])?.ok()?;
        ensure!(log.contains("gpu-lost@3"), "the log does not name the finding: {log}");
        self.no_node_drained()?;
        self.cluster.hardware("gn2")?.heal()
    }

    /// The commands of the page for a node on which `mode` has changed.
    fn enforcing(&self, node: &str, mode: &str) -> Result<()> {
        self.typist.admin(node, PAGE, "railgate config check", &[])?.ok()?;
        let said =
            self.typist.admin(node, PAGE, "railgate config show --origin | grep '^gate.mode'", &[])?.ok()?;
        ensure!(said.contains(&format!("\"{mode}\"")), "{node}: {said}");
        let said = self.typist.admin(node, PAGE, "railgate check", &[])?;
        ensure!(said.code == 0, "{said}");
        self.typist.admin(node, PAGE, "railgate nodes", &[])?.ok()?;
        Ok(())
    }

    /// Checks that the site's own Prolog ran for a job, once on each node.
    pub(super) fn site_prolog_ran(&self, id: u32) -> Result<()> {
        let log = self.cluster.output(PROLOG_RAN).unwrap_or_default();
        let mut nodes: Vec<&str> =
            log.lines().filter_map(|line| line.strip_prefix(&format!("{id} "))).collect();
        nodes.sort_unstable();
        let times = nodes.len();
        nodes.dedup();
        ensure!(
            times > 0 && nodes.len() == times,
            "the site's Prolog ran {times} times for job {id}: {}",
            nodes.join(" ")
        );
        Ok(())
    }

    /// Checks that the site's own health check runs on every node from now on.
    pub(super) fn site_health_runs(&self) -> Result<()> {
        let runs = |node: &str| {
            let log = self.cluster.output(HEALTH_RAN).unwrap_or_default();
            log.lines().filter(|line| *line == node).count()
        };
        let before = NODES.map(runs);
        poll::until(2 * MINUTE, "the site's health check on every node", || {
            Ok(NODES.iter().zip(before).all(|(node, before)| runs(node) > before).then_some(()))
        })
    }
}
