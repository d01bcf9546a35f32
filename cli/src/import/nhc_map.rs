//! NHC's checks, Azure's and DeepOps', and what they become.

use super::nhc_line::{kib, options};

/// What a line does to railgate's configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect {
    /// A key of the machine profile, with its table: `gpus.count = 8`.
    Profile(&'static str, toml::Value),
    /// A compute port, and its rate in Gb/s.
    Port(Option<String>, f64),
    /// A word for a list of the configuration: `gate.checks.mounts.required`.
    List(&'static str, String),
    /// A value of the configuration.
    Value(&'static str, toml::Value),
    /// A line of shell in `checks.d/nhc-<kind>.sh`.
    Script(&'static str, String),
    /// Goes on under NHC.
    Rest,
}

/// What becomes of a line, and how that is told.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Became {
    pub(super) effects: Vec<Effect>,
    pub(super) told: String,
}

fn became(effects: Vec<Effect>, told: impl Into<String>) -> Became {
    Became { effects, told: told.into() }
}

/// Judged by railgate without a word of configuration.
fn covered(told: &str) -> Became {
    became(Vec::new(), told)
}

/// Left to NHC, for a reason.
pub(super) fn rest(why: &str) -> Became {
    became(vec![Effect::Rest], format!("goes on under NHC: {why}"))
}

fn whole(text: &str) -> Option<toml::Value> {
    text.parse().ok().map(toml::Value::Integer)
}

fn profile(key: &'static str, text: Option<&String>, checks: &str) -> Option<Became> {
    let value = whole(text?)?;
    let told = format!("profile {key} = {value}: {checks}");
    Some(became(vec![Effect::Profile(key, value)], told))
}

/// For one word of shell.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn script(kind: &'static str, lines: Vec<String>) -> Became {
    became(
        lines.into_iter().map(|line| Effect::Script(kind, line)).collect(),
        format!("checks.d/nhc-{kind}.sh: site-nhc-{kind}"),
    )
}

/// The counterpart of a check.
///
/// # Errors
/// Arguments that the check cannot have.
pub(super) fn map(words: &[String]) -> Result<Became, String> {
    let (name, arguments) = words.split_first().ok_or("no check")?;
    known(name, arguments)
        .ok_or_else(|| format!("{name}: arguments that it cannot have: {}", arguments.join(" ")))
}

fn known(name: &str, arguments: &[String]) -> Option<Became> {
    let first = arguments.first();
    Some(match name {
        "check_hw_cpuinfo" => {
            profile("host.cpus", arguments.get(2), "cpu (sockets and cores are not counted)")?
        }
        "check_hw_physmem" => memory(arguments)?,
        "check_hw_mem" => between(arguments, &["MemTotal", "SwapTotal"])?,
        "check_hw_swap" => between(arguments, &["SwapTotal"])?,
        "check_hw_physmem_free" => between(arguments, &["MemAvailable"])?,
        "check_hw_swap_free" => between(arguments, &["SwapFree"])?,
        "check_hw_mem_free" => between(arguments, &["MemAvailable", "SwapFree"])?,
        "check_hw_ib" => port(arguments)?,
        "check_hw_eth" => {
            let device = first?;
            let test = format!(
                "[ -e {} ] || bad {}",
                quoted(&format!("/sys/class/net/{device}")),
                quoted(&format!("no interface {device}"))
            );
            script("network", vec![test])
        }
        "check_hw_mcelog" => covered("on by itself: dimm"),
        "check_hw_gm" => covered("dropped: Myrinet has no counterpart"),
        "check_fs_mount" | "check_fs_mount_rw" | "check_fs_mount_ro" => mount(name, arguments)?,
        "check_fs_size" => space(arguments, "k", "size", true)?,
        "check_fs_free" => space(arguments, "k", "free", false)?,
        "check_fs_used" => space(arguments, "k", "used", false)?,
        "check_fs_inodes" => space(arguments, "i", "size", true)?,
        "check_fs_ifree" => space(arguments, "i", "free", false)?,
        "check_fs_iused" => space(arguments, "i", "used", false)?,
        "check_file_test" => files(arguments)?,
        "check_cmd_status" | "check_cmd_output" => command(name, arguments)?,
        "check_ps_service" => service(arguments)?,
        "check_ps_daemon" => daemon(arguments)?,
        "check_ps_loadavg" => load(arguments)?,
        "check_cmd_dmesg" => rest(
            "patterns of its own (railgate's kmsg judges hung tasks, PCIe, HCAs, NFS, drives and memory)",
        ),
        "check_ps_unauth_users"
        | "check_ps_userproc_lineage"
        | "check_ps_blacklist"
        | "check_ps_kswapd"
        | "check_ps_cpu"
        | "check_ps_mem"
        | "check_ps_physmem"
        | "check_ps_time" => {
            rest("processes of users (railgate judges those on GPUs, and stuck ones: gpu-processes, tasks)")
        }
        "check_file_contents"
        | "check_file_stat"
        | "check_dmi_data_match"
        | "check_dmi_raw_data_match"
        | "check_net_ping"
        | "check_net_socket" => rest("railgate has no such check"),
        "check_moab_sched" | "check_moab_rm" | "check_moab_torque" => {
            covered("dropped: Moab and TORQUE are not Slurm's")
        }
        "check_nv_healthmon" | "check_nvsmi_healthmon" => covered(
            "on by itself: gpu-lost, gpu-ecc, gpu-recovery-action, gpu-versions and the other gpu- checks",
        ),
        // Azure's, and those of the same name in other collections.
        "check_gpu_count" | "check_nv_gpu_count" if arguments.get(1).is_none_or(|kind| kind != "rocm") => {
            profile("gpus.count", first, "gpu-count")?
        }
        "check_nvme_count" | "check_num_nvme_devices" | "check_num_nvme_devs" => {
            profile("host.nvmes", first, "nvme")?
        }
        "check_gpu_xid" | "check_xid_errors" => {
            covered("on by itself: gpu-xid (each code by its meaning, not any code)")
        }
        "check_gpu_ecc" => {
            covered("on by itself: gpu-ecc, gpu-remap (the card's own limits instead of numbers)")
        }
        "check_gpu_clock_throttling" => covered("on by itself: gpu-throttle"),
        "check_app_gpu_clocks" | "check_gpu_app_clocks" => {
            covered("on by itself: gpu-clocks (it reports, and sets nothing)")
        }
        "check_gpu_persistence" | "check_gpu_persistence_mode" => covered("on by itself: gpu-persistence"),
        "check_gpu_vbios" | "check_vbios_version" => covered("on by itself: gpu-versions"),
        "check_nvlink_status" => covered("on by itself: gpu-nvlink, gpu-fabric, gpu-peers"),
        "check_hw_topology" => covered("on by itself: ib-distance, topology-file, gpu-acs"),
        "check_ib_link_flapping" => covered("on by itself: ib-flap (three times in twelve hours)"),
        "check_gpu_bw"
        | "check_ib_bw_gdr"
        | "check_ib_bw_non_gdr"
        | "check_nccl_allreduce"
        | "check_nccl_allreduce_ib_loopback"
        | "check_cpu_stream"
        | "check_nv_dcgmi_diag" => covered(
            "dropped: a load is no check beside jobs; run it on purpose (templates soak and nccl-tests; rdma-self-test in a full gate)",
        ),
        "check_gpu_count" | "check_nv_gpu_count" | "check_gpu_xgmi" | "check_rccl_allreduce" => {
            covered("dropped: railgate knows NVIDIA's GPUs only")
        }
        // DeepOps'.
        "check_nv_drv_version" => {
            let value = toml::Value::Array(vec![first?.clone().into()]);
            became(vec![Effect::Profile("gpus.driver", value)], "profile gpus.driver: gpu-versions")
        }
        "check_nv_pcie_link_width" => profile("gpus.pcie_width", first, "gpu-pcie")?,
        "check_nv_retired_pages" => covered("on by itself: gpu-retired-pages, gpu-remap"),
        "check_ipoib_up" => became(
            vec![Effect::Profile("fabric.interfaces_up", true.into())],
            "profile fabric.interfaces_up = true: ib-interface (all compute ports)",
        ),
        "check_ib_link_ber" => covered("on by itself: ib-errors, optic"),
        _ => rest("not a check of NHC's own, Azure's or DeepOps'"),
    })
}

fn percent(text: Option<&String>) -> Option<f64> {
    text.and_then(|text| text.strip_suffix('%')).and_then(|text| text.parse().ok())
}

fn memory(arguments: &[String]) -> Option<Became> {
    let low = kib(arguments.first()?)?;
    let gib = low >> 20;
    if gib == 0 {
        return Some(covered("dropped: less than 1 GiB asks for nothing"));
    }
    let mut effects = vec![Effect::Profile("host.memory_gib", i64::try_from(gib).ok()?.into())];
    let mut told = format!("profile host.memory_gib = {gib}: memory (more than that is no fault)");
    if let Some(percent) = percent(arguments.get(2)) {
        effects.push(Effect::Value("gate.checks.memory.tolerance_percent", percent.into()));
        told.push_str(&format!("; tolerance_percent = {percent:?}"));
    }
    Some(became(effects, told))
}

/// The sum of these fields of /proc/meminfo.
fn between(arguments: &[String], fields: &[&str]) -> Option<Became> {
    let low = kib(arguments.first()?)?;
    let high = arguments.get(1).map_or(Some(u64::MAX), |text| kib(text))?;
    let give = percent(arguments.get(2)).unwrap_or(0.0) / 100.0;
    let limit = |kib: u64, factor: f64| {
        #[expect(clippy::cast_precision_loss, reason = "a limit in KiB that somebody wrote by hand")]
        let limit = kib as f64 * factor;
        format!("{limit:.0}")
    };
    let high = if high == u64::MAX { "-".to_owned() } else { limit(high, 1.0 + give) };
    let line = format!("between {} {high} {}", limit(low, 1.0 - give), fields.join(" "));
    Some(script("memory", vec![line]))
}

fn port(arguments: &[String]) -> Option<Became> {
    let device = arguments.get(1).map(|device| device.split(':').next().unwrap_or(device).to_owned());
    let Some(rate) = arguments.first().filter(|rate| !rate.is_empty()) else {
        return Some(covered("on by itself: ib-port"));
    };
    let told = match &device {
        Some(device) => {
            format!("profile fabric.hcas, fabric.rate_gbps: ib-count, ib-port, ib-rate ({device})")
        }
        None => "profile fabric.rate_gbps: ib-rate, once fabric.hcas says how many ports (NHC asked for one)"
            .to_owned(),
    };
    Some(became(vec![Effect::Port(device, rate.parse().ok()?)], told))
}

fn mount(name: &str, arguments: &[String]) -> Option<Became> {
    let (found, plain) = options(arguments, "EFOefost");
    let value =
        |letter: char| found.iter().find(|(key, _)| *key == letter).map(|(_, value)| (*value).to_owned());
    let path = value('f').or_else(|| plain.first().cloned()).filter(|path| path.starts_with('/'))?;
    let kind = value('t').or_else(|| plain.get(2).cloned());
    let left = if kind.is_some() || value('s').is_some() || plain.len() > 1 || value('o').is_some() {
        " (source, type and options are not compared)"
    } else {
        ""
    };
    if name == "check_fs_mount_ro" {
        let (path, what) = (quoted(&path), quoted(&format!("{path} is not mounted read-only")));
        return Some(script("mounts", vec![format!("read_only {path} || bad {what}")]));
    }
    if path == "/" {
        return Some(covered("on by itself: read-only, disk"));
    }
    let told = format!("gate.checks.mounts.required: mounts{left}");
    Some(became(vec![Effect::List("gate.checks.mounts.required", path)], told))
}

/// `both`: a least and a greatest, either of which may be empty; else the one that the name says.
fn space(arguments: &[String], unit: &str, what: &str, both: bool) -> Option<Became> {
    let path = arguments.first()?;
    let limit = |text: &String| match (text.strip_suffix('%'), unit) {
        (Some(percent), _) => percent.parse::<f64>().ok().map(|_| text.clone()),
        (None, "k") => kib(text).map(|kib| kib.to_string()),
        // A count: thousands, millions.
        (None, _) => {
            kib(&text.replace(['k', 'K'], "000").replace(['m', 'M'], "000000")).map(|count| count.to_string())
        }
    };
    let sides = if both { ["min", "max"] } else { [if what == "free" { "min" } else { "max" }; 2] };
    let mut lines = Vec::new();
    for (text, side) in arguments[1..].iter().take(if both { 2 } else { 1 }).zip(sides) {
        if !text.is_empty() {
            lines.push(format!("space {} {unit} {what} {side} {}", quoted(path), limit(text)?));
        }
    }
    if lines.is_empty() { None } else { Some(script("space", lines)) }
}

fn files(arguments: &[String]) -> Option<Became> {
    let (tests, files) = options(arguments, "");
    if files.is_empty() || tests.is_empty() {
        return None;
    }
    if tests.iter().any(|(test, _)| !"abcdefghkprsuwxLOGS".contains(*test)) {
        return Some(rest("a test that a plain shell does not have"));
    }
    let mut lines = Vec::new();
    for file in files {
        for (test, _) in &tests {
            let test = if *test == 'a' { 'e' } else { *test };
            lines.push(format!(
                "[ -{test} {} ] || bad {}",
                quoted(file),
                quoted(&format!("{file}: not -{test}"))
            ));
        }
    }
    Some(script("files", lines))
}

fn command(name: &str, arguments: &[String]) -> Option<Became> {
    let (found, plain) = options(arguments, "CMOTemrt");
    if found.iter().any(|(key, _)| !"etmr".contains(*key)) {
        return Some(rest("options that only NHC has"));
    }
    let value = |letter: char| found.iter().find(|(key, _)| *key == letter).map(|(_, value)| *value);
    let run = match value('e') {
        Some(line) => format!("sh -c {}", quoted(line)),
        None if plain.is_empty() => return None,
        None => plain.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    };
    let seconds: u32 = value('t').unwrap_or("5").parse().ok()?;
    let shown = value('e').map_or_else(|| plain.join(" "), str::to_owned);
    let patterns: Vec<&str> = found.iter().filter(|(key, _)| *key == 'm').map(|(_, value)| *value).collect();
    // lsmod and a word: a module.
    if let ([pattern], [program]) = (&patterns[..], plain)
        && program.ends_with("lsmod")
        && let Some(module) = pattern.strip_prefix('/').and_then(|rest| rest.strip_suffix('/'))
        && module.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    {
        let told = "gate.checks.module.required: module";
        return Some(became(vec![Effect::List("gate.checks.module.required", module.to_owned())], told));
    }
    let mut lines = vec![format!("run {seconds} {run}")];
    if name == "check_cmd_status" || value('r').is_some() {
        let code: u32 = value('r').unwrap_or("0").parse().ok()?;
        lines.push(format!(
            "[ \"$code\" = {code} ] || bad {}\"$code\"",
            quoted(&format!("{shown}: exit code "))
        ));
    }
    for pattern in patterns {
        let (not, regex) = pattern.strip_prefix('!').map_or((false, pattern), |rest| (true, rest));
        let Some(regex) = regex.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')) else {
            return Some(rest("a pattern that is no regular expression"));
        };
        let (join, says) = if not { ("&&", "has") } else { ("||", "lacks") };
        let told = quoted(&format!("{shown}: {says} {regex}"));
        lines.push(format!("printf '%s\\n' \"$said\" | grep -Eq -e {} {join} bad {told}", quoted(regex)));
    }
    Some(script("commands", lines))
}

fn service(arguments: &[String]) -> Option<Became> {
    let (found, plain) = options(arguments, "Edemu");
    let name = plain.first()?.clone();
    let mut told = "gate.checks.service.required: service (as systemd names it".to_owned();
    if found.iter().any(|(key, _)| "Scrsek".contains(*key)) {
        told.push_str("; railgate starts and stops nothing");
    }
    told.push(')');
    Some(became(vec![Effect::List("gate.checks.service.required", name)], told))
}

fn daemon(arguments: &[String]) -> Option<Became> {
    let name = arguments.first()?;
    let line: Vec<&str> =
        std::iter::once(name.as_str()).chain(arguments.get(2).map(String::as_str)).collect();
    let line = line.join(" ");
    let pattern: String = line
        .chars()
        .flat_map(|c| "\\.[]()*+?{}|^$".contains(c).then_some('\\').into_iter().chain([c]))
        .collect();
    let owner = arguments.get(1).filter(|owner| !owner.is_empty());
    let owner_word = owner.map(|owner| format!("-u {} ", quoted(owner))).unwrap_or_default();
    let told = quoted(&format!(
        "no process {line}{}",
        owner.map(|owner| format!(" of {owner}")).unwrap_or_default()
    ));
    let test = format!("pgrep {owner_word}-f -- {} >/dev/null || bad {told}", quoted(&pattern));
    Some(script("processes", vec![test]))
}

fn load(arguments: &[String]) -> Option<Became> {
    let mut lines = Vec::new();
    for (index, limit) in arguments.iter().enumerate().take(3).filter(|(_, limit)| !limit.is_empty()) {
        limit.parse::<f64>().ok()?;
        lines.push(format!("load {} {limit}", index + 1));
    }
    if lines.is_empty() { None } else { Some(script("processes", lines)) }
}
