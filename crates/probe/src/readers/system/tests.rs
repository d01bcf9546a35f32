use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;

struct Tree(tempfile::TempDir);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Self {
        let tree = Tree(tempfile::tempdir().unwrap());
        for (path, text) in files {
            let path = tree.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        tree
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

#[test]
fn each_local_file_system_is_listed_once() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path().display();
    let table = format!(
        "27 1 254:0 / {home} rw,relatime shared:1 - ext4 /dev/vda rw,discard\n\
         28 1 254:0 /srv /srv rw,relatime - ext4 /dev/vda rw,discard\n\
         29 1 8:1 / /data/old ro,relatime - xfs /dev/sda1 ro\n\
         30 1 8:2 / /data/bad rw,relatime - ext4 /dev/sda2 ro,errors=remount-ro\n\
         31 1 7:1 / /snap/core/1 ro,nodev - squashfs /dev/loop1 ro\n\
         32 1 0:40 / /home rw - nfs4 srv:/home rw\n\
         33 1 8:3 / /hidden rw - ext4 /dev/sda3 rw\n\
         34 1 0:41 / /hidden rw - nfs4 srv:/x rw\n\
         35 1 0:42 / /dev/shm rw,nosuid - tmpfs tmpfs rw\n\
         36 1 0:43 / /run/railgate/jobs/7/0-1/user rw - tmpfs tmpfs rw\n\
         garbage\n"
    );
    let found = file_systems(&table);
    let seen: Vec<_> = found
        .iter()
        .map(|one| (one.path.to_str().unwrap().to_owned(), one.fs_type.as_str(), one.read_only, one.given_up))
        .collect();
    assert_eq!(
        seen,
        [
            (home.to_string(), "ext4", false, false),
            ("/data/old".to_owned(), "xfs", true, false),
            ("/data/bad".to_owned(), "ext4", false, true),
            ("/dev/shm".to_owned(), "tmpfs", false, false),
        ]
    );
    assert!(
        found[0].space.known().is_some_and(|space| space.size_mib > 0 && space.free_mib <= space.size_mib)
    );
    assert!(matches!(&found[1].space, Reading::Failed(why) if why.starts_with("/data/old: statvfs: ")));
}

#[test]
fn nvme_sensors_are_found_in_old_and_new_locations() {
    let tree = Tree::new(&[
        ("class/nvme/nvme0/model", "SAMSUNG MZQL2\n"),
        ("class/nvme/nvme0/state", "live\n"),
        ("class/nvme/nvme0/hwmon3/temp1_input", "38850\n"),
        ("class/nvme/nvme0/hwmon3/temp1_crit", "84850\n"),
        ("class/nvme/nvme0/hwmon3/temp1_alarm", "0\n"),
        ("class/nvme/nvme10/state", "dead\n"),
        ("class/nvme/nvme10/device/hwmon/hwmon1/temp1_input", "hot\n"),
        ("class/nvme/nvme-subsystem/x", ""),
    ]);
    let nvmes = each(&tree.path().join("class/nvme"), "nvme", nvme);
    let [first, second] = nvmes.known().unwrap().as_slice() else { panic!("{nvmes:?}") };
    assert_eq!((first.name.as_str(), &first.temperature_c), ("nvme0", &Reading::Known(38.85)));
    assert_eq!((&first.critical_c, &first.alarm), (&Reading::Known(84.85), &Reading::Known(false)));
    assert_eq!((&first.state, &first.serial), (&Reading::Known("live".to_owned()), &Reading::Unsupported));
    assert_eq!((second.name.as_str(), &second.critical_c), ("nvme10", &Reading::Unsupported));
    assert!(matches!(&second.temperature_c, Reading::Failed(why) if why.contains("'hot'")));
}

#[test]
fn memory_controllers_are_read_with_their_modules() {
    let tree = Tree::new(&[
        ("mc0/ce_count", "3\n"),
        ("mc0/ue_count", "0\n"),
        ("mc0/dimm0/dimm_label", "CPU_SrcID#0_MC#0_Chan#0_DIMM#0\n"),
        ("mc0/dimm0/size", "65536\n"),
        ("mc0/dimm0/dimm_ce_count", "3\n"),
        ("mc0/rank7/dimm_label", "\n"),
        ("mc0/csrow0/size_mb", "1\n"),
        ("power/control", "auto\n"),
    ]);
    let memory = each(tree.path(), "mc", controller);
    let [mc] = memory.known().unwrap().as_slice() else { panic!("{memory:?}") };
    assert_eq!((&mc.corrected, &mc.uncorrected), (&Reading::Known(3), &Reading::Known(0)));
    let labels: Vec<&str> = mc.dimms.iter().map(|dimm| dimm.label.as_str()).collect();
    assert_eq!(labels, ["CPU_SrcID#0_MC#0_Chan#0_DIMM#0", "rank7"]);
    assert_eq!(
        (&mc.dimms[0].size_mib, &mc.dimms[1].corrected),
        (&Reading::Known(65_536), &Reading::Unsupported)
    );
    assert_eq!(each(&tree.path().join("absent"), "mc", controller), Reading::Unsupported);
}

#[test]
fn machine_checks_are_summed_over_all_processors() {
    let table = "           CPU0       CPU1\n NMI:          1          2   Non-maskable interrupts\n \
                 MCE:          1          2   Machine check exceptions\n MCP:         75         75   polls\n";
    assert_eq!(machine_checks(table), Some(3));
    assert_eq!(machine_checks("  0:  1  2 timer\n"), None);
}

#[test]
fn online_processors_and_governors_are_counted() {
    for (list, count) in
        [("0-3,8", Some(5)), ("0", Some(1)), ("3-1", None), ("", None), ("0-4294967295", None)]
    {
        assert_eq!(count_of_list(list), count, "{list}");
    }
    let tree = Tree::new(&[
        ("policy0/scaling_governor", "performance\n"),
        ("policy1/scaling_governor", "powersave\n"),
        ("policy10/scaling_governor", "performance\n"),
        ("boost", "1\n"),
    ]);
    let counts = BTreeMap::from([("performance".to_owned(), 2), ("powersave".to_owned(), 1)]);
    assert_eq!(governors(tree.path()), Reading::Known(counts));
    assert_eq!(governors(&tree.path().join("policy0")), Reading::Unsupported);
}

#[test]
fn only_services_with_a_process_are_listed() {
    let v2 = Tree::new(&[
        ("fs/cgroup/system.slice/slurmd.service/cgroup.events", "populated 1\nfrozen 0\n"),
        ("fs/cgroup/system.slice/chronyd.service/cgroup.events", "populated 0\nfrozen 0\n"),
        ("fs/cgroup/system.slice/system-getty.slice/getty@tty1.service/cgroup.events", "populated 1\n"),
        ("fs/cgroup/system.slice/dbus.socket/cgroup.events", "populated 1\n"),
    ]);
    assert_eq!(services(v2.path()), Reading::Known(vec!["getty@tty1".to_owned(), "slurmd".to_owned()]));
    let v1 = Tree::new(&[
        ("fs/cgroup/systemd/system.slice/munge.service/cgroup.procs", "712\n"),
        ("fs/cgroup/systemd/system.slice/sshd.service/cgroup.procs", ""),
    ]);
    assert_eq!(services(v1.path()), Reading::Known(vec!["munge".to_owned()]));
    assert_eq!(services(&v1.path().join("absent")), Reading::Unsupported);
}

#[test]
fn a_loop_of_links_ends() {
    let tree = Tree::new(&[("fs/cgroup/system.slice/a.service/cgroup.events", "populated 1\n")]);
    let slice = tree.path().join("fs/cgroup/system.slice");
    symlink(&slice, slice.join("again.slice")).unwrap();
    // The kernel does not create such links, but a hand-made tree can contain them.
    assert!(matches!(services(tree.path()), Reading::Failed(_) | Reading::Known(_)));
}

#[test]
fn the_state_of_this_machine_is_read() {
    let system = system(Path::new("/proc"), Path::new("/sys"));
    assert!(system.cpus.known().is_some_and(|count| *count > 0));
    assert!(system.file_systems.known().is_some());
    assert!(system.clock.known().is_some());
    assert!(system.boot_args.known().is_some());
    assert!(system.modules.known().is_some_and(|modules| !modules.is_empty()));
}

#[test]
fn missing_trees_give_failed_readings() {
    let system = system(Path::new("/no/such"), Path::new("/no/such"));
    assert_eq!(system.file_systems, Reading::Unsupported);
    assert!(matches!(system.processes, Reading::Failed(_)));
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_rejected(text in "[ -~\n]{0,300}") {
        let _ = file_systems(&text);
        let _ = machine_checks(&text);
        let _ = count_of_list(&text);
    }
}
