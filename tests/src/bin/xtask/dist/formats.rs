//! Makes .deb and .rpm packages from the same tree, with dpkg-deb and rpmbuild.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::super::steps;
use super::contents::CONFIGURATION;

/// Package format.
#[derive(Clone, Copy, Debug)]
pub(super) enum Format {
    /// Debian's .deb.
    Deb,
    /// Red Hat's .rpm.
    Rpm,
}

impl Format {
    /// Name of the format, which is also that of its tree.
    pub(super) fn name(self) -> &'static str {
        match self {
            Format::Deb => "deb",
            Format::Rpm => "rpm",
        }
    }

    /// Shell completions: the generated file and its path in the format's distributions.
    pub(super) fn completions(self) -> [(&'static str, &'static str); 3] {
        let zsh = match self {
            Format::Deb => "usr/share/zsh/vendor-completions/_railgate",
            Format::Rpm => "usr/share/zsh/site-functions/_railgate",
        };
        [
            ("bash/railgate.bash", "usr/share/bash-completion/completions/railgate"),
            ("zsh/_railgate", zsh),
            ("fish/railgate.fish", "usr/share/fish/vendor_completions.d/railgate.fish"),
        ]
    }
}

/// Compression level.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effort {
    /// For tests.
    Least,
    /// For releases: xz, which every rpm since RHEL 6 supports.
    Most,
}

/// A package.
pub(super) struct Package {
    name: &'static str,
    summary: &'static str,
    about: &'static str,
    /// Dependencies, as Debian's and as Red Hat's packages are named.
    needs: [String; 2],
    /// Additional lines of Debian's control file.
    beside: &'static str,
    /// Scripts after installation and before removal.
    scripts: Option<[&'static str; 2]>,
}

impl Package {
    /// The main package: everything except the RDMA self-test. The GPU self-test is in it, since it loads the driver's library
    /// only when it starts.
    pub(super) fn railgate((major, minor): (u32, u32)) -> Self {
        Package {
            name: "railgate",
            summary: "keeps GPU jobs off bad nodes in Slurm clusters",
            about: ABOUT,
            needs: [format!("libc6 (>= {major}.{minor})"), format!("glibc >= {major}.{minor}")],
            beside: "Suggests: slurmd | slurmctld | slurm-client, railgate-rdma-selftest\n",
            scripts: Some([AFTER, BEFORE_REMOVAL]),
        }
    }

    /// The program that links libibverbs. It is a separate package because hosts without RDMA devices need neither.
    pub(super) fn rdma_selftest((major, minor): (u32, u32), verbs: u32) -> Self {
        Package {
            name: "railgate-rdma-selftest",
            summary: "sends data through each RDMA device to itself, for railgate",
            about: ABOUT_SELFTEST,
            needs: [
                format!("libc6 (>= {major}.{minor}), libgcc-s1, libibverbs1 (>= {verbs}), ibverbs-providers"),
                format!("glibc >= {major}.{minor}, libgcc, libibverbs >= {verbs}"),
            ],
            beside: "Enhances: railgate\n",
            scripts: None,
        }
    }
}

const ABOUT: &str = "\
Health gates for GPUs, InfiniBand and RoCE before and after each Slurm job, drains with a reason
that a person can act on, NCCL pinned to the node's rails, and a report of what each job got out
of the hardware. A fresh installation judges and reports, and changes nothing.";
const ABOUT_SELFTEST: &str = "\
A full gate (--railgate-gate=full, railgate check --full, railgate readmit) starts it where a node
has RDMA devices. Without it that one check is reported as unknown.";
/// After installation and after an upgrade. Nothing is started, stopped or restarted. On a controller the ledger belongs to
/// SlurmUser, by default `slurm`.
const AFTER: &str = "/usr/libexec/railgate/railgate-link-plugin || :
if id slurm >/dev/null 2>&1; then install -d -o slurm -g slurm /var/lib/railgate/controller; fi";
/// Removal is refused while Slurm still starts the package: a dangling link in prolog.d would drain the node at its next job. If
/// Slurm does not answer (3), removal continues, since the machine may no longer be part of a cluster.
const BEFORE_REMOVAL: &str = "
    if [ \"${RAILGATE_REMOVE:-}\" != force ]; then
        left=0
        /usr/bin/railgate doctor --uninstall >&2 || left=$?
        if [ \"$left\" = 1 ]; then
            echo 'railgate: not removed, as Slurm still starts it (above); RAILGATE_REMOVE=force removes it all the same' >&2
            exit 1
        fi
    fi
    rm -f /usr/lib/railgate/spank_railgate.so";

/// A /var/lib/railgate that is a mount point remains as an empty directory. Jobs that ran when the hooks were removed from
/// slurm.conf had no epilog: their directories and the mounts in them still exist, and their samplers, which end once their
/// directory is gone.
const PURGE: &str = "    if [ -d /var/lib/railgate ]; then
        find /var/lib/railgate -xdev -mindepth 1 -delete
        rmdir /var/lib/railgate 2>/dev/null || :
    fi
    while read -r _ _ _ _ place _; do
        case $place in /run/railgate/*) umount -l \"$place\" || : ;; esac
    done < /proc/self/mountinfo
    rm -rf --one-file-system /run/railgate
    rm -f /var/log/railgate.log*";

/// A package and where its files go.
pub(super) struct Packing<'a> {
    pub(super) package: &'a Package,
    /// Output directory.
    pub(super) dist: &'a Path,
    /// `VERSION-REVISION`
    pub(super) version: &'a str,
    pub(super) effort: Effort,
}

impl Packing<'_> {
    /// Makes `NAME_VERSION_amd64.deb` from a tree.
    pub(super) fn deb(&self, tree: &Path) -> Result<PathBuf> {
        let Packing { package, dist, version, effort } = self;
        let control = tree.join("DEBIAN");
        fs::create_dir_all(&control)?;
        let mut kib = 0;
        let mut settings = String::new();
        for file in files(tree, &control)? {
            kib += fs::metadata(tree.join(&file))?.len().div_ceil(1024);
            if file.starts_with("etc") {
                settings.push_str(&format!("/{}\n", file.display()));
            }
        }
        let about: String = package.about.lines().map(|line| format!(" {line}\n")).collect();
        let Package { name, summary, needs: [depends, _], beside, scripts, .. } = package;
        fs::write(
            control.join("control"),
            format!(
                "Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: railgate <railgate@localhost>\n\
             Section: admin\nPriority: optional\nInstalled-Size: {kib}\nDepends: {depends}\n\
             {beside}Description: {summary}\n{about}"
            ),
        )?;
        if !settings.is_empty() {
            fs::write(control.join("conffiles"), settings)?;
        }
        let scripts = scripts.iter().flat_map(|[after, before]| {
            [
                ("postinst", format!("#!/bin/sh\nset -e\n[ \"$1\" = configure ] || exit 0\n{after}\n")),
                ("prerm", format!("#!/bin/sh\nset -e\nif [ \"$1\" = remove ]; then {before}; fi\n")),
                ("postrm", format!("#!/bin/sh\nset -e\nif [ \"$1\" = purge ]; then\n{PURGE}\nfi\n")),
            ]
        });
        for (name, text) in scripts {
            let file = control.join(name);
            fs::write(&file, text)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        }
        let file = dist.join(format!("{name}_{version}_amd64.deb"));
        let compress = match effort {
            Effort::Least => ["-Zgzip", "-z1"],
            Effort::Most => ["-Zxz", "-z6"],
        };
        let mut command = Command::new("dpkg-deb");
        steps::run(command.args(compress).args(["--root-owner-group", "--build"]).arg(tree).arg(&file))?;
        Ok(file)
    }

    /// Makes `NAME-VERSION.x86_64.rpm` from a tree.
    pub(super) fn rpm(&self, tree: &Path) -> Result<PathBuf> {
        let Packing { package, dist, version, effort } = self;
        let (number, revision) = version.split_once('-').context("no revision")?;
        let mut list = String::new();
        for file in files(tree, Path::new(""))? {
            let setting = if file.starts_with("etc") { "%config(noreplace) " } else { "" };
            list.push_str(&format!("{setting}/{}\n", file.display()));
        }
        let Package { name, summary, about, needs: [_, requires], scripts, .. } = package;
        let settings =
            if list.contains("%config") { format!("%dir /{CONFIGURATION}\n") } else { String::new() };
        let scripts = scripts.map_or_else(String::new, |[after, before]| {
            format!("%post\n{after}\n\n%preun\nif [ \"$1\" = 0 ]; then {before}; fi\n\n")
        });
        // The built files are packaged unchanged: no stripping, no debug packages, no generated dependencies.
        let spec = format!(
            "%global debug_package %{{nil}}\n%global __os_install_post %{{nil}}\n\
         Name: {name}\nVersion: {number}\nRelease: {revision}\nSummary: {summary}\nLicense: Apache-2.0\n\
         AutoReqProv: no\nRequires: {requires}\n\n%description\n{about}\n\n\
         %install\ncp -a {tree}/. %{{buildroot}}\n\n{scripts}\
         %files\n%defattr(-,root,root,-)\n{settings}{list}",
            tree = tree.display(),
        );
        let work = dist.join("rpmbuild");
        fs::create_dir_all(&work)?;
        let spec_file = work.join("package.spec");
        fs::write(&spec_file, spec)?;
        let mut command = Command::new("rpmbuild");
        let payload = match effort {
            Effort::Least => "w1.gzdio",
            Effort::Most => "w6.xzdio",
        };
        for setting in [
            format!("_topdir {}", work.display()),
            format!("_binary_payload {payload}"),
            "_build_id_links none".to_owned(),
        ] {
            command.args(["--define", &setting]);
        }
        command.args(["-bb", "--quiet", "--target", "x86_64"]).arg(&spec_file);
        steps::run(&mut command)?;
        let name = format!("{name}-{version}.x86_64.rpm");
        let file = dist.join(&name);
        fs::rename(work.join("RPMS/x86_64").join(&name), &file).with_context(|| name.clone())?;
        fs::remove_dir_all(&work)?;
        Ok(file)
    }
}

/// Paths of all files below a tree, relative to it, except those below `without`.
fn files(tree: &Path, without: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut dirs = vec![tree.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if path == without {
                continue;
            }
            if path.is_dir() {
                dirs.push(path);
            } else {
                found.push(path.strip_prefix(tree)?.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}
