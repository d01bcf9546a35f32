use railgate_model::PciAddress;

/// Returns the driver's kernel log line for an Xid.
pub fn xid_text(code: u32, gpu: PciAddress, pid: Option<u32>) -> String {
    let PciAddress { domain, bus, device, .. } = gpu;
    let who = match pid {
        Some(pid) => format!("pid={pid}, name=python3"),
        None => "pid='<unknown>', name=<unknown>".to_owned(),
    };
    let what = match code {
        13 => "Graphics Exception: ESR 0x504730=0x10e 0x504734=0x20 0x504728=0xf81eb60 0x50472c=0x1174",
        31 => {
            "Ch 00000018, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_0 faulted @ 0x7f4b_00000000. \
               Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
        }
        43 => "Ch 00000010",
        45 => "Ch 00000010",
        48 => {
            "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 6, \
               subpartition 1."
        }
        63 => "Row Remapper: New row (0x0000000009c5d4ec) marked for remapping, reset gpu to activate.",
        64 => "Row Remapper: Error, too many rows are already remapped",
        74 => "NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
        79 => "GPU has fallen off the bus.",
        94 => "Contained: SM (0x1). RST: No, D-RST: No",
        95 => "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
        119 => {
            "Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) \
                (0x20802a02 0x8)."
        }
        120 => "GSP task exception: load access fault (cause:0x5) @ pc:0x17fd9c0, task:1",
        140 => {
            "An uncorrectable ECC error detected (possible firmware handling failure) DRAM:1, LTC:0, MMU:0"
        }
        154 => "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        _ => "Ch 00000000",
    };
    format!("NVRM: Xid (PCI:{domain:04x}:{bus:02x}:{device:02x}): {code}, {who}, {what}")
}
