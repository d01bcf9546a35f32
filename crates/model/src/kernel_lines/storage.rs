//! Drives and arrays.

use super::{Format, Helper, NEWEST, OLDEST, Row, linux, linux_in, reported, row};

const NVME: Helper = Helper { text: "nvme {part}: ", wording: "%s %s: %pV", files: &["drivers/base/core.c"] };
const BLOCK: Helper =
    Helper { text: "block {part}: ", wording: "%s %s: %pV", files: &["drivers/base/core.c"] };

const NVME_PCI: &str = "drivers/nvme/host/pci.c";
const NVME_PATHS: &str = "drivers/nvme/host/multipath.c";
const GPUD_DISK: &str = "leptonai/gpud, components/disk/kmsg_matcher_test.go";

const fn nvme_pci(since: super::Release, until: super::Release, text: &'static str) -> Format {
    linux_in(NVME_PCI, since, until, text).after(NVME)
}

const OLD_REQUEST: &str = "block/blk-core.c";
const REQUEST: &str = "block/blk-mq.c";
const IO: &str = "|I/O| error, dev {disk}, sector {int}{rest}";
const MEDIUM: &str = "|critical medium| error, dev {disk}, sector {int}{rest}";

/// Up to 5.15 the name of the calling function precedes the error.
const BLK_UPDATE: Helper = Helper {
    text: "blk_update_request: ",
    wording: "%s: %s error, dev %s, sector %llu",
    files: &[OLD_REQUEST, REQUEST],
};
const PRINT_REQ: Helper = Helper { text: "print_req_error: ", wording: "", files: &[] };
const END_REQUEST: Helper = Helper { text: "end_request: ", wording: "", files: &[] };

const RAID1: &str = "drivers/md/raid1.c";
const RAID10: &str = "drivers/md/raid10.c";
const RAID5: &str = "drivers/md/raid5.c";

pub(super) static ROWS: &[Row] = &[
    row(
        "nvme-timeout",
        &[
            nvme_pci(OLDEST, (6, 2), "I/O {int} QID {int} timeout, completion polled"),
            nvme_pci(OLDEST, (6, 2), "I/O {int} QID {int} timeout, disable controller"),
            nvme_pci(OLDEST, (6, 2), "I/O {int} QID {int} timeout, reset controller"),
            nvme_pci(OLDEST, (5, 15), "I/O {int} QID {int} timeout, aborting"),
            nvme_pci((6, 1), (6, 2), "I/O {int} ({text}) QID {int} timeout, aborting"),
            nvme_pci((6, 12), NEWEST, "I/O tag {int} ({hex}) QID {int} timeout, completion polled"),
            nvme_pci((6, 12), NEWEST, "I/O tag {int} ({hex}) QID {int} timeout, disable controller"),
            nvme_pci(
                (6, 12),
                NEWEST,
                "I/O tag {int} ({hex}) opcode 0x{hex} ({text}) QID {int} timeout, reset controller",
            ),
            nvme_pci(
                (6, 12),
                NEWEST,
                "I/O tag {int} ({hex}) opcode 0x{hex} ({text}) QID {int} timeout, aborting{rest}",
            ),
            linux(NVME_PCI, "controller is down; will reset: CSTS=0x{hex}, PCI_STATUS{rest}").after(NVME),
            nvme_pci(OLDEST, (6, 1), "Removing after probe failure status: {int}"),
            nvme_pci((6, 12), NEWEST, "Disabling device after reset failure: {int}"),
            linux("drivers/nvme/host/core.c", "Device not ready; aborting {word}, CSTS=0x{hex}").after(NVME),
            reported("Linux 4.18 and older", "Device not ready; aborting {word}").after(NVME),
        ],
    ),
    row("nvme-path", &[linux(NVME_PATHS, "no available path - failing I/O").after(BLOCK)]),
    row("nvme-path-wait", &[linux(NVME_PATHS, "no usable path - requeuing I/O").after(BLOCK)]),
    row(
        "disk-error",
        &[
            linux_in(REQUEST, (5, 16), NEWEST, IO),
            linux_in(REQUEST, (5, 16), NEWEST, MEDIUM),
            linux_in(OLD_REQUEST, OLDEST, (5, 15), IO).after(BLK_UPDATE),
            linux_in(OLD_REQUEST, OLDEST, (5, 15), MEDIUM).after(BLK_UPDATE),
            reported("Linux 4.18 and older", IO).after(PRINT_REQ),
            reported("Linux 4.18 and older", MEDIUM).after(PRINT_REQ),
            reported("Linux 3.10 and older", IO).after(END_REQUEST),
            reported("Linux 3.10 and older", MEDIUM).after(END_REQUEST),
            linux("fs/buffer.c", "Buffer I/O error on dev {disk}, logical block {int}|{rest}"),
            linux("fs/ext4/page-io.c", "Buffer I/O error on device {disk}, logical block {int}"),
            linux(RAID1, "md/raid1:{word}: {disk}: unrecoverable I/O read error for block {int}"),
            linux(RAID10, "md/raid10:{word}: {disk}: unrecoverable I/O read error for block {int}"),
        ],
    ),
    row(
        "disk-past-end",
        &[
            linux_in(
                OLD_REQUEST,
                OLDEST,
                (5, 15),
                "attempt to access beyond end of device|\\x0a|{disk}: rw={int}, want={int}, limit={int}",
            ),
            linux_in(
                OLD_REQUEST,
                (6, 1),
                NEWEST,
                "attempt to access beyond end of device|\\x0a|\
                 {disk}: rw={int}, sector={int}, nr_sectors = {int} limit={int}",
            )
            .after_a_process_name(),
            reported(
                "Linux 5.16 to 5.19, block/blk-core.c",
                "attempt to access beyond end of device|\\x0a|{disk}: rw={int}, want={int}, limit={int}",
            )
            .after_a_process_name(),
        ],
    ),
    row(
        "md-drive",
        &[
            linux(RAID1, "md/raid1:{word}: Disk failure on {disk}, disabling device.|{rest}"),
            linux(RAID10, "md/raid10:{word}: Disk failure on {disk}, disabling device.|{rest}"),
            linux(RAID5, "md/raid:{word}: Disk failure on {disk}, disabling device.|{rest}"),
        ],
    ),
    row(
        "md-failed",
        &[
            linux_in(
                "drivers/md/raid0.c",
                (5, 15),
                NEWEST,
                "md/raid0{part}: Disk failure on {word} detected, failing array.",
            ),
            linux_in(
                "drivers/md/md-linear.c",
                (5, 15),
                NEWEST,
                "md/linear{part}: Disk failure on {word} detected, failing array.",
            ),
            linux(RAID5, "md/raid:{part}: Cannot continue operation ({int}/{int} failed)."),
            linux_in(
                "drivers/md/md.h",
                OLDEST,
                (5, 10),
                "md: {part}: {word} array has a missing/failed member",
            ),
            reported(GPUD_DISK, "md/{word}:{part}: Disk failure on {word} detected, failing array{rest}"),
        ],
    ),
];
