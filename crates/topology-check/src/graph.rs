//! NCCL's interpretation of a file that it could read: attributes that it requires, parts that it never finds, and
//! values that it believes.
//!
//! NCCL keeps branches that lead to a GPU of the communicator or to an HCA, and drops the rest unread. So rules only
//! apply to elements on the path to a device.

use std::collections::BTreeSet;

use railgate_rails::nccl_devices::room_wanted;

use super::grammar::{Element, Era, Kind, MAX_ATTRIBUTES, Tree, number, printable};
use super::{Effect, Found};

/// A device that has a place in the file.
#[derive(Debug)]
pub(super) struct Placed {
    /// For example `GPU 3` or `mlx5_3`.
    pub(super) name: String,
    /// Its `<pci>` element, or the `<cpu>` of an HCA without one.
    pub(super) at: usize,
    pub(super) gpu: bool,
}

/// What is known about the machine that the file is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Asked {
    /// No machine is given: devices are assumed to exist, bridges to be virtual.
    #[default]
    Nothing,
    /// GPUs, HCAs or the PCI tree could not be read, so a bridge of the file may be real.
    Partly,
    Whole,
}

/// The devices of the machine that the file is for.
#[derive(Debug, Default)]
pub(super) struct Devices {
    pub(super) asked: Asked,
    pub(super) placed: Vec<Placed>,
    /// Bridges under which NCCL puts a device that the file lacks, and whether it is a GPU.
    pub(super) hung: Vec<(usize, bool)>,
    /// Bus ids of existing devices. NCCL reads their class and link from the kernel. Empty if no machine is given.
    pub(super) real: BTreeSet<String>,
    /// CPU vendor of the machine.
    pub(super) vendor: Option<String>,
}

impl Devices {
    /// Without a machine, every leaf of the tree may be a device.
    pub(super) fn assumed(tree: &Tree) -> Devices {
        let leaf = |(at, element): (usize, &Element)| {
            let pci = element.kind == Kind::Pci && below(tree, element, Kind::Pci).next().is_none();
            let name = format!("the device {}", printable(element.get("busid").unwrap_or("?").as_bytes()));
            pci.then(|| Placed { name, at, gpu: !looks_like_hca(tree, element) })
        };
        let placed = tree.elements.iter().enumerate().filter_map(leaf).collect();
        Devices { placed, ..Devices::default() }
    }
}

pub(super) fn below<'t>(
    tree: &'t Tree,
    element: &'t Element,
    kind: Kind,
) -> impl Iterator<Item = &'t Element> {
    element.children.iter().map(|child| &tree.elements[*child]).filter(move |child| child.kind == kind)
}

pub(super) fn looks_like_hca(tree: &Tree, element: &Element) -> bool {
    element.get("class").is_some_and(|class| class.starts_with("0x02"))
        || below(tree, element, Kind::Nic).next().is_some()
}

pub(super) fn looks_like_gpu(tree: &Tree, element: &Element) -> bool {
    element.get("class").is_some_and(|class| class.starts_with("0x03"))
        || below(tree, element, Kind::Gpu).next().is_some()
}

/// The elements from one up to its `<system>`.
pub(super) fn upwards(tree: &Tree, from: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(from), |at| tree.elements[*at].parent)
}

/// Whether it is a bus id in NCCL's format, such as `0000:9b:00.0`; NCCL compares the text.
pub(super) fn is_busid(text: &str) -> bool {
    let hex = |part: &str, least: usize, most: usize| {
        (least..=most).contains(&part.len())
            && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let mut parts = text.split([':', '.']);
    let fits = [(4, 8), (2, 2), (2, 2), (1, 1)]
        .iter()
        .all(|(least, most)| parts.next().is_some_and(|part| hex(part, *least, *most)));
    // The separators are identified by their positions, counted from the end.
    let places = text.len() >= 12
        && text.is_ascii()
        && [(2, b'.'), (5, b':'), (8, b':')].iter().all(|(back, c)| text.as_bytes()[text.len() - back] == *c);
    fits && parts.next().is_none() && places
}

/// Adds problems to `found`, and to `untold` values that NCCL reads from the machine but that could not be read here.
pub(super) fn judge(
    tree: &Tree,
    era: &Era,
    devices: &Devices,
    found: &mut Vec<Found>,
    untold: &mut BTreeSet<String>,
) {
    let mut judge = Judge { tree, devices, found, untold };
    if tree.elements.is_empty() {
        judge.say(Effect::Ignored, None, "no <system>: NCCL ignores the file", "");
        return;
    }
    // Elements on the path to any device, and to a GPU.
    let (mut used, mut leads_to_gpu) = (vec![false; tree.elements.len()], vec![false; tree.elements.len()]);
    for device in &devices.placed {
        for at in upwards(tree, device.at) {
            used[at] = true;
            leads_to_gpu[at] |= device.gpu;
        }
    }
    for (bridge, gpu) in &devices.hung {
        for at in upwards(tree, *bridge) {
            used[at] = true;
            leads_to_gpu[at] |= gpu;
        }
    }
    judge.systems();
    for (at, element) in tree.elements.iter().enumerate() {
        judge.marks(element);
        judge.busid(element);
        if !used[at] {
            continue;
        }
        match element.kind {
            Kind::Cpu => judge.cpu(at, &used),
            Kind::Pci => judge.pci(at, &used, &leads_to_gpu),
            _ => {}
        }
    }
    judge.twice();
    if tree.elements.iter().any(|element| matches!(element.kind, Kind::Gpu | Kind::Net)) {
        let what = "made from a dump: values of <gpu> and <net> are from that moment, and NCCL keeps them";
        judge.say(Effect::Note, None, what, "leave them out: NCCL finds them by itself");
    }
    // Each rank adds its devices, and the merged tree has the same limit.
    let (gpus, hcas) =
        (devices.placed.iter().filter(|d| d.gpu).count(), devices.placed.iter().filter(|d| !d.gpu).count());
    let there: usize = devices.placed.iter().map(|device| already_there(tree, device)).sum();
    let wanted = tree.elements.len() + room_wanted(gpus, hcas) - there;
    if devices.asked == Asked::Whole && !devices.real.is_empty() && wanted > era.max_elements {
        let what = format!(
            "{} elements leave too little room for what NCCL adds (of {} in all)",
            tree.elements.len(),
            era.max_elements
        );
        judge.say(Effect::Misled, None, &what, "leave out what NCCL finds by itself");
    }
}

/// Number of a device's elements, of those in [`room_wanted`], that the file already has.
fn already_there(tree: &Tree, device: &Placed) -> usize {
    let own = &tree.elements[device.at];
    let (kind, inside, most) =
        if device.gpu { (Kind::Gpu, Kind::NvLink, 8) } else { (Kind::Nic, Kind::Net, 1) };
    below(tree, own, kind).next().map_or(0, |first| 1 + below(tree, first, inside).count().min(most))
}

struct Judge<'a> {
    tree: &'a Tree,
    devices: &'a Devices,
    found: &'a mut Vec<Found>,
    untold: &'a mut BTreeSet<String>,
}

impl Judge<'_> {
    fn say(&mut self, effect: Effect, at: impl Into<Option<usize>>, what: &str, fix: &str) {
        let at = at.into();
        self.found.push(Found { effect, at, what: what.to_owned(), fix: fix.to_owned() });
    }

    fn untold(&mut self, what: String) {
        self.untold.insert(what);
    }

    fn systems(&mut self) {
        let tree = self.tree;
        for (at, element) in tree.elements.iter().enumerate().skip(1).filter(|(_, e)| e.kind == Kind::System)
        {
            let inside = |device: &&Placed| upwards(tree, device.at).any(|up| up == at);
            match self.devices.placed.iter().filter(inside).find(|device| device.gpu) {
                Some(gpu) => {
                    let what = format!("a second <system> contains {}: NCCL never reads it", gpu.name);
                    self.say(Effect::Refused, element.at, &what, "one <system> for all");
                }
                None => self.say(Effect::Ignored, element.at, "a second <system>", "one <system> for all"),
            }
        }
    }

    /// `keep` is NCCL's own mark: an element that has it is never dropped.
    fn marks(&mut self, element: &Element) {
        if element.get("keep").is_some() {
            let what = format!("attribute keep of <{}> is NCCL's own mark", element.kind.name());
            self.say(Effect::Misled, element.at, &what, "take it out");
        }
    }

    fn busid(&mut self, element: &Element) {
        let (Kind::Pci, Some(busid)) = (element.kind, element.get("busid")) else { return };
        if is_busid(busid) {
            return;
        }
        let leaf = below(self.tree, element, Kind::Pci).next().is_none();
        let what = format!("busid '{}' is not like 0000:9b:00.0, lower case", printable(busid.as_bytes()));
        match leaf {
            true => {
                self.say(Effect::Ignored, element.at, &format!("{what}: NCCL finds no device with it"), "")
            }
            false => self.say(Effect::Note, element.at, &what, ""),
        }
    }

    fn cpu(&mut self, at: usize, used: &[bool]) {
        let element = &self.tree.elements[at];
        let name = element.get("numaid").map(|id| printable(id.as_bytes()));
        match &name {
            None => self.say(Effect::Refused, element.at, "<cpu> has no numaid", "the NUMA node's number"),
            Some(id) => {
                let before = self.tree.elements[..at].iter().enumerate();
                let same = |(before, other): (usize, &Element)| {
                    used[before] && other.kind == Kind::Cpu && other.get("numaid") == element.get("numaid")
                };
                if before.into_iter().any(same) {
                    let what = format!("a second <cpu> with numaid {id}");
                    self.say(Effect::Misled, element.at, &what, "one <cpu> for each NUMA node");
                }
            }
        }
        let x86 = match element.get("arch") {
            None => true,
            Some(arch) if arch.starts_with("x86_64") => true,
            Some(arch) if arch.starts_with("arm64") || arch.starts_with("ppc64") => false,
            Some(arch) => {
                let what = format!("arch '{}' is none that NCCL knows", printable(arch.as_bytes()));
                self.say(Effect::Misled, element.at, &what, "x86_64, arm64 or ppc64, or leave it out");
                false
            }
        };
        let vendor = element.get("vendor").or(self.devices.vendor.as_deref());
        let named = vendor.is_some() || self.devices.asked == Asked::Nothing;
        let vendor = vendor.unwrap_or("GenuineIntel");
        let by_model =
            ["GenuineIntel", "CentaurHauls", "  Shanghai  "].iter().any(|known| vendor.starts_with(known));
        if x86 && by_model && element.get("familyid").is_some() && element.get("modelid").is_none() {
            let what = "<cpu> has familyid and no modelid";
            match named {
                true => self.say(Effect::Refused, element.at, what, "both, or neither"),
                false => self.untold(format!("the CPU's vendor: {what}, which NCCL refuses on Intel")),
            }
        }
        if x86 && !by_model && !vendor.starts_with("AuthenticAMD") {
            let what = format!("vendor '{}' is none that NCCL knows", printable(vendor.as_bytes()));
            self.say(Effect::Misled, element.at, &what, "as in /proc/cpuinfo, or leave it out");
        }
        if let Some(mask) = element.get("affinity")
            && cpus(mask).is_none()
        {
            let what = format!("affinity '{}' names no CPU", printable(mask.as_bytes()));
            let fix = "as /sys/devices/system/node/node0/cpumap has it, or leave it out";
            self.say(Effect::Misled, element.at, &what, fix);
        }
        self.room(element, &["host_hash", "affinity", "arch", "vendor", "familyid", "modelid"]);
    }

    fn pci(&mut self, at: usize, used: &[bool], leads_to_gpu: &[bool]) {
        let element = &self.tree.elements[at];
        let Some(busid) = element.get("busid") else {
            self.say(Effect::Refused, element.at, "<pci> has no busid: NCCL crashes", "the device's bus id");
            return;
        };
        let real = self.devices.real.contains(busid);
        let is_used = |child: &&usize| self.tree.elements[**child].kind == Kind::Pci && used[**child];
        let hung = |gpu: bool| self.devices.hung.contains(&(at, gpu));
        let bridges = element.children.iter().filter(is_used).count() > 0 || hung(true) || hung(false);
        let bridges_gpu = hung(true)
            || element
                .children
                .iter()
                .any(|child| self.tree.elements[*child].kind == Kind::Pci && leads_to_gpu[*child]);
        let subject = printable(busid.as_bytes());
        if bridges && !real {
            if self.devices.asked == Asked::Partly && may_be_real(self.tree, element) {
                self.unseen_bridge(element, &subject);
            } else {
                self.made_up_bridge(element, &subject, bridges_gpu);
            }
        }
        let device =
            self.devices.placed.iter().find(|device| device.at == at).map(|device| device.name.clone());
        let device = device.or_else(|| {
            let own = |kind| below(self.tree, element, kind).next().is_some();
            (own(Kind::Gpu) || own(Kind::Nic)).then(|| "a device".to_owned())
        });
        if let (Some(device), true) = (device, bridges) {
            let effect = if bridges_gpu { Effect::Refused } else { Effect::Misled };
            let what = format!("{subject} is {device} and contains other devices: NCCL never reads them");
            self.say(effect, element.at, &what, "a bridge above both");
        }
        self.link(element, &subject);
        let filled: &[&str] = if real {
            &["class", "vendor", "device", "subsystem_vendor", "subsystem_device", "link_speed", "link_width"]
        } else {
            &["link_speed", "link_width"]
        };
        self.room(element, filled);
        let children: Vec<&Element> =
            element.children.iter().map(|child| &self.tree.elements[*child]).collect();
        for gpu in children.into_iter().filter(|child| child.kind == Kind::Gpu) {
            self.gpu(gpu);
        }
    }

    /// If a bridge exists, NCCL reads its class from the kernel, and its link if the file has none.
    fn unseen_bridge(&mut self, element: &Element, subject: &str) {
        let missing: Vec<&str> = ["class", "link_speed", "link_width"]
            .into_iter()
            .filter(|key| element.get(key).is_none())
            .collect();
        if !missing.is_empty() {
            let what = missing.join(", ");
            self.untold(format!(
                "bridge {subject}: the file has no {what}; NCCL reads it from the kernel where the bridge exists"
            ));
        }
        if let Some(class) = element.get("class").filter(|class| of_a_device(class)) {
            self.untold(format!(
                "bridge {subject}: the file has class {}; NCCL reads it from the kernel where the bridge exists",
                printable(class.as_bytes())
            ));
        }
    }

    fn made_up_bridge(&mut self, element: &Element, subject: &str, bridges_gpu: bool) {
        match element.get("class") {
            None => {
                let what = format!("bridge {subject} has no class");
                self.say(Effect::Refused, element.at, &what, "class=\"0x060400\"");
            }
            Some(class) if of_a_device(class) => {
                let what = format!(
                    "bridge {subject} has class {}: NCCL treats it as a device and ignores its contents",
                    printable(class.as_bytes())
                );
                let effect = if bridges_gpu { Effect::Refused } else { Effect::Misled };
                self.say(effect, element.at, &what, "class=\"0x060400\"");
            }
            Some(_) => {}
        }
        for key in ["link_speed", "link_width"] {
            if element.get(key).is_none() {
                let what = format!("bridge {subject} has no {key}: NCCL takes it for PCIe 3.0 x16");
                self.say(
                    Effect::Misled,
                    element.at,
                    &what,
                    "link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"",
                );
            }
        }
    }

    fn link(&mut self, element: &Element, subject: &str) {
        // NCCL compares the start of the text; any other value is PCIe 3.0.
        const SPEEDS: &[&str] = &[
            "2.5 GT/s",
            "5 GT/s",
            "8 GT/s",
            "16 GT/s",
            "32 GT/s",
            "5.0 GT/s PCIe",
            "8.0 GT/s PCIe",
            "16.0 GT/s PCIe",
            "32.0 GT/s PCIe",
            "64.0 GT/s PCIe",
        ];
        if let Some(speed) = element.get("link_speed")
            && !SPEEDS.iter().any(|known| speed.starts_with(known))
        {
            let what = format!(
                "link_speed '{}' of {subject} is none that NCCL knows: it takes 8 GT/s",
                printable(speed.as_bytes())
            );
            self.say(Effect::Misled, element.at, &what, "as in \"32.0 GT/s PCIe\"");
        }
        if let Some(width) = element.get("link_width")
            && number(width) == 0
        {
            let what = format!("link_width '{}' of {subject}: NCCL takes 16", printable(width.as_bytes()));
            self.say(Effect::Note, element.at, &what, "");
        } else if let Some(width) = element.get("link_width")
            && !(1..=32).contains(&number(width))
        {
            let what =
                format!("link_width '{}' of {subject} is not a number of lanes", printable(width.as_bytes()));
            self.say(Effect::Misled, element.at, &what, "1 to 32");
        }
    }

    fn gpu(&mut self, gpu: &Element) {
        if gpu.get("dev").is_some_and(|dev| number(dev) == -1) {
            self.say(
                Effect::Refused,
                gpu.at,
                "dev of <gpu> is -1: NCCL leaves the GPU out",
                "leave <gpu> out",
            );
        }
        for link in gpu.children.iter().map(|child| &self.tree.elements[*child]) {
            let needed: &[&str] = match (link.kind, link.get("tclass")) {
                // The class of the target is read from it unless the file has one.
                (Kind::NvLink, Some(class)) if !class.starts_with("0x03") => &["count"],
                (Kind::NvLink, _) => &["target", "count"],
                (Kind::C2c, _) => &["bw", "count"],
                _ => continue,
            };
            for key in needed.iter().filter(|key| link.get(key).is_none()) {
                let what = format!("<{}> has no {key}", link.kind.name());
                self.say(Effect::Refused, link.at, &what, "leave it out: NCCL finds the links by itself");
            }
        }
        self.room(gpu, &["dev", "sm", "rank", "gdr", "keep"]);
    }

    /// NCCL adds these attributes if they are missing, without checking the limit: there is space for one more than it
    /// reads.
    fn room(&mut self, element: &Element, filled: &[&str]) {
        let new = filled.iter().filter(|key| element.get(key).is_none()).count();
        if element.attributes.len() + new > MAX_ATTRIBUTES + 1 {
            let what = format!(
                "<{}> has {} attributes: NCCL adds {new} and writes past the end",
                element.kind.name(),
                element.attributes.len()
            );
            self.say(Effect::Refused, element.at, &what, "fewer attributes");
        }
    }

    fn twice(&mut self) {
        let mut seen = BTreeSet::new();
        let tree = self.tree;
        for element in tree.elements.iter().filter(|element| element.kind == Kind::Pci) {
            if let Some(busid) = element.get("busid")
                && !seen.insert(busid)
            {
                let what =
                    format!("busid {} a second time: NCCL takes the first", printable(busid.as_bytes()));
                self.say(Effect::Misled, element.at, &what, "each device once");
            }
        }
    }
}

/// A bridge that can exist on a machine; domain ffff cannot.
pub(super) fn may_be_real(tree: &Tree, element: &Element) -> bool {
    let busid = element.get("busid").filter(|busid| is_busid(busid) && !busid.starts_with("ffff:"));
    element.kind == Kind::Pci && busid.is_some() && below(tree, element, Kind::Pci).next().is_some()
}

/// Whether NCCL treats this class as an NVSwitch, a GPU or an HCA.
fn of_a_device(class: &str) -> bool {
    ["0x068000", "0x068001", "0x03", "0x02"].iter().any(|device| class.starts_with(device))
}

/// The CPUs of a `cpumap`; `None` if NCCL reads no CPU from it, or other CPUs than intended.
pub(super) fn cpus(mask: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for (group, word) in (0_u32..).zip(mask.trim().rsplit(',')) {
        let fits = (1..=8).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let word = u32::from_str_radix(word, 16).ok().filter(|_| fits && group < 32)?;
        cpus.extend((0..32).filter(|bit| word & (1 << bit) != 0).map(|bit| group * 32 + bit));
    }
    (!cpus.is_empty()).then_some(cpus)
}
