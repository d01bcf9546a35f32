//! Upgrade, downgrade, removal, purge and a second installation while jobs are submitted.

use anyhow::{Context as _, Result, anyhow, ensure};
use railgate_tests::poll;

use super::left::Machines;
use super::load::{Load, Long, Totals};
use super::site::{HEAD, MINUTE};
use super::{Hour, name};

const PAGE: &str = "install.md";
const REMOVAL: &str = "Removing it";
/// Number of jobs of the load that must end before a step passes.
const MORE: usize = 8;

/// What remains after a purge, with the sentence of the page that describes it.
const STAYS: [(&str, &str); 2] = [
    ("+ /shared/railgate", "reports in the report directory are never removed"),
    ("+ /etc/slurm/prolog.d/50-site-prolog", "links of yours in `/etc/slurm` stay"),
];
/// What additionally remains after a removal.
const UNTIL_PURGE: [(&str, &str); 7] = [
    ("+ /etc/railgate/", "Settings in `/etc/railgate`"),
    ("+ /etc/logrotate.d/railgate", "and `/etc/logrotate.d`"),
    ("+ /var/lib/railgate/", "the history in `/var/lib/railgate`"),
    ("+ /var/log/railgate.log", "the log, and in `/run/railgate`"),
    (
        "+ /run/railgate/",
        "in `/run/railgate` the state of jobs that ran when the hooks went, stay until `dpkg -P railgate`",
    ),
    (
        "mount /run/railgate/",
        "in `/run/railgate` the state of jobs that ran when the hooks went, stay until `dpkg -P railgate`",
    ),
    (
        "process /usr/libexec/railgate/railgate-sampler",
        "Their `railgate-sampler` ends about ten minutes after them, or with the purge",
    ),
];

impl Hour<'_> {
    /// Runs all package operations under load; `before` is the state of the machines before the first installation.
    pub(super) fn live(&self, rate: f64, before: &Machines) -> Result<()> {
        let mut load = Load::start(self.cluster, rate)?;
        let played = self.steps(&mut load, before);
        let totals = load.end();
        let reasons = self.cluster.root().run(&["sinfo", "-R", "-h", "-o", "%N"])?.ok()?;
        let totals = totals.inspect_err(|why| self.record.total(format!("jobs: not counted: {why:#}")))?;
        self.total(&totals, reasons.lines().count());
        self.record.step("each job of the load completes exactly once", || {
            ensure!(totals.wrong.is_empty(), "{}", totals.wrong.join("\n"));
            Ok(())
        });
        played
    }

    fn total(&self, totals: &Totals, drained: usize) {
        let Totals { submitted, completed, wrong, refused } = totals;
        self.record.total(format!(
            "jobs: {submitted} submitted, {completed} completed, {} lost; nodes drained: {drained}",
            wrong.len()
        ));
        if *refused > 0 {
            self.record.total(format!("sbatch refused {refused} jobs:"));
            for line in Load::refusals(self.cluster) {
                self.record.total(format!("  {line}"));
            }
        }
    }

    fn steps(&self, load: &mut Load<'_>, before: &Machines) -> Result<()> {
        let old = name(&self.packages.old)?;
        load.wait_for_more(MORE)?;
        let long = Long::start(self.cluster, "gn1")?;
        self.under("upgrade", load, || {
            self.put(&self.packages.new)?;
            let lines = self.typist.block(PAGE, "Quick start", 0)?;
            let first = lines.first().context("no line")?;
            self.everywhere(first)?;
            self.version(&self.packages.new)
        });
        self.ready();
        self.under("downgrade", load, || {
            let command = "dpkg -i railgate_OLDER_amd64.deb";
            for machine in self.machines() {
                let with = [("railgate_OLDER_amd64.deb", old.as_str())];
                self.typist.admin(machine, PAGE, command, &with)?.ok()?;
            }
            self.version(&self.packages.old)
        });
        self.ready();
        self.record.step("a job started before the upgrade completes and has a report", || {
            long.end()?;
            self.reported(long.id)
        });

        let long = Long::start(self.cluster, "gn1")?;
        self.under("removal is refused while Slurm's hooks use the package", load, || {
            for machine in self.machines() {
                for command in ["dpkg -r railgate", "dpkg -P railgate"] {
                    let said = self.typist.root(machine, command)?;
                    ensure!(said.code != 0, "removed while Slurm starts it: {said}");
                    ensure!(
                        said.both().contains("railgate: not removed, as Slurm still starts it"),
                        "{said}"
                    );
                }
            }
            self.version(&self.packages.old)
        });
        self.under("hooks are removed from slurm.conf and plugstack.conf, Slurm is restarted", load, || {
            for line in self.typist.block(PAGE, REMOVAL, 0)? {
                let said = self.typist.root(HEAD, &line)?;
                ensure!(said.code == i32::from(line.starts_with("railgate doctor")), "{said}");
            }
            self.restart_under_load()
        });
        self.under("remove", load, || {
            for line in self.typist.block(PAGE, REMOVAL, 1)? {
                self.everywhere(&line)?;
            }
            Ok(())
        });
        self.record.step("after the removal: only the files that the page lists remain", || {
            self.left("removal", before, &[&STAYS[..], &UNTIL_PURGE].concat())
        });
        self.under("purge", load, || {
            self.machines().try_for_each(|machine| {
                self.typist.admin(machine, PAGE, "dpkg -P railgate", &[])?.ok().map(drop)
            })
        });
        self.record.step("a job started before the removal completes", || long.end());
        self.record.step("after the purge: only the files that the page lists remain", || {
            self.left("purge", before, &STAYS)
        });
        self.record.step("the site's own Prolog and health check run again", || {
            let id = self.cluster.alice().sbatch(&["-o", "site"], "true")?;
            self.cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
            self.site_prolog_ran(id)?;
            self.site_health_runs()
        });

        let long = Long::start(self.cluster, "gn2")?;
        self.under("install again", load, || {
            self.quick_start()?;
            self.edit(&super::install::settings("enforce"))?;
            self.restart_under_load()?;
            self.follow_doctor()?;
            self.restart_under_load()
        });
        self.ready();
        self.record.step("a job started without railgate completes", || long.end());
        self.record.step("a GPU job is gated and reported again", || {
            let id = self
                .cluster
                .alice()
                .sbatch(&["--gres=gpu:8", "-w", "gn1", "-o", "again"], "srun hostname")?;
            self.cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
            self.reported(id)
        });
        Ok(())
    }

    /// A step under load: afterwards jobs still complete, none is lost, and no node is drained.
    fn under(&self, name: &str, load: &mut Load<'_>, work: impl FnOnce() -> Result<()>) {
        self.record.step(name, work);
        self.record.step(&format!("{name}: jobs keep running, no node is drained"), || {
            load.wait_for_more(MORE)?;
            load.none_lost()?;
            self.no_node_drained()
        });
    }

    fn everywhere(&self, line: &str) -> Result<()> {
        for machine in self.machines() {
            self.typist.root(machine, line)?.ok()?;
        }
        Ok(())
    }

    fn version(&self, deb: &std::path::Path) -> Result<()> {
        let wanted = name(deb)?;
        for machine in self.machines() {
            let words = [
                "dpkg-query",
                "-W",
                "-f",
                "${Package}_${Version}_${Architecture}.deb ${db:Status-Status}",
                "railgate",
            ];
            let have = self.cluster.root().on(machine).run(&words)?.ok()?;
            ensure!(have == format!("{wanted} installed"), "{machine} has {have}, not {wanted}");
        }
        Ok(())
    }

    fn reported(&self, id: u32) -> Result<()> {
        let mut text = String::new();
        poll::until(MINUTE, "its report", || {
            let said = self.cluster.alice().run(&["railgate", "report", &id.to_string()])?;
            text = said.both();
            let head = text.lines().next().unwrap_or_default();
            Ok((said.code == 0 && head.contains("completed")).then_some(()))
        })
        .with_context(|| text.clone())
    }

    /// Checks that the page lists everything that remains, and nothing else. A sampler checks for its directory every ten seconds.
    fn left(&self, when: &str, before: &Machines, stays: &[(&str, &str)]) -> Result<()> {
        for (_, words) in stays {
            self.typist.page_contains(PAGE, words)?;
        }
        let mut left = Vec::new();
        let told = |line: &String| stays.iter().any(|(what, _)| line.contains(what));
        let gone = poll::until(MINUTE / 4, "leftovers to be removed", || {
            left = Machines::read(self.cluster)?.since(before);
            left.retain(|line| !told(line));
            Ok(left.is_empty().then_some(()))
        });
        self.record.total(format!("left over after {when} and not listed in the page: {}", left.len()));
        gone.map_err(|why| anyhow!("{}\n{why:#}", left.join("\n")))
    }
}
