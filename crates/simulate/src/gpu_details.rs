use railgate_model::{GpuDetails, GpuFabric, LinkErrors, NvLinkErrors, Peer, Profile, Reading, SramEcc};

/// Further values of a healthy, idle GPU of this type.
pub(super) fn healthy(profile: &Profile, index: u32, count: u32) -> GpuDetails {
    let facts = &profile.gpus;
    let server = facts.ecc == Some(true);
    let links = facts.nvlinks_up.unwrap_or(0) > 0;
    // Up to Ampere (at most twelve links) the driver reports sums; later, the counters of each link.
    let sums = links && facts.nvlinks_up < Some(18);
    let limit = facts.power_limit_w.unwrap_or(400.0);
    GpuDetails {
        inforom: only(server, "G525.0225.00.05".to_owned()),
        gsp: only(server, "580.159.04".to_owned()),
        ecc_pending: only(server, true),
        sram: only(
            server,
            SramEcc { volatile_uncorrected: 0, aggregate_uncorrected: 0, over_threshold: false },
        ),
        // From Ampere on, rows are remapped instead.
        retired_pages: Reading::Unsupported,
        margin_c: Reading::Known(54),
        slowdown_c: Reading::Unsupported,
        memory_c: only(server, 36),
        memory_max_c: only(server, 95),
        throttle_reasons_later: Reading::Known(1),
        hw_thermal_ns: Reading::Known(0),
        power_brake_ns: Reading::Known(0),
        power_default_w: Reading::Known(limit),
        app_clock_mhz: only(server, 1980),
        app_clock_default_mhz: only(server, 1980),
        pcie_max_gen: Reading::Known(facts.pcie_gen.unwrap_or(5)),
        pcie_max_width: Reading::Known(facts.pcie_width.unwrap_or(16)),
        utilization: Reading::Known(0),
        fabric: only(
            facts.nvlinks_up == Some(18),
            GpuFabric { state: 3, status: 0, clique: 0, cluster: "0".repeat(32), health: 0, health_mask: 0 },
        ),
        nvlink_errors: NvLinkErrors {
            replays: only(sums, 0),
            recoveries: only(sums, 0),
            crc: only(sums, 0),
            links: (0..if sums { 0 } else { facts.nvlinks_up.unwrap_or(0) }).map(no_errors).collect(),
        },
        peers: (index + 1..count)
            .map(|other| Peer { index: other, status: Reading::Known(u32::from(!links) * 2) })
            .collect(),
    }
}

fn no_errors(link: u32) -> LinkErrors {
    let none = || Reading::Known(0);
    LinkErrors { link, replays: none(), recoveries: none(), crc: none() }
}

fn only<T>(there: bool, value: T) -> Reading<T> {
    if there { Reading::Known(value) } else { Reading::Unsupported }
}
