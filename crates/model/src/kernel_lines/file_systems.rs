//! File systems on the node's own drives. A file system on a loop device is an image that a user's container runtime
//! mounted; its errors concern the user, and `{part}` does not match it.

use super::{Format, Helper, NEWEST, OLDEST, Row, linux, linux_in, reported, row};

const EXT4: &str = "fs/ext4/super.c";

const EXT4_MESSAGE: Helper =
    Helper { text: "EXT4-fs ({part}): ", wording: "%sEXT4-fs (%s): %pV", files: &[EXT4] };

const XFS: Helper =
    Helper { text: "XFS ({part}): ", wording: "%sXFS (%s): %pV", files: &["fs/xfs/xfs_message.c"] };

const BTRFS_FILES: &[&str] = &["fs/btrfs/super.c", "fs/btrfs/messages.c"];
const BTRFS_INFO: Helper =
    Helper { text: "BTRFS info (device {part}): ", wording: "%sBTRFS %s (device %s", files: BTRFS_FILES };
/// 5.17 and later: the states of the file system, one letter each.
const BTRFS_INFO_STATES: Helper = Helper {
    text: "BTRFS info (device {part}: state {word}): ",
    wording: "%sBTRFS %s (device %s%s)",
    files: BTRFS_FILES,
};
/// The same in later releases.
const BTRFS_INFO_STATE: Helper = Helper {
    text: "BTRFS info (device {part} state {word}): ",
    wording: "%sBTRFS %s (device %s%s)",
    files: BTRFS_FILES,
};

const XFS_SHUTDOWN: &str = "fs/xfs/xfs_fsops.c";
/// Wording between those of 5.10 and 5.15, from a patch of `xfs_fsops.c` on the linux-xfs list.
const XFS_BETWEEN: &str = "Linux 5.11 to 5.14, fs/xfs/xfs_fsops.c";
const XFS_ERROR: &str = "fs/xfs/xfs_error.c";
const GPUD_DISK: &str = "leptonai/gpud, components/disk/kmsg_matcher_test.go";

/// 5.10 has one format for each cause; later releases have a single one.
const fn shutdown(text: &'static str) -> Format {
    linux_in(XFS_SHUTDOWN, (5, 15), NEWEST, text).after(XFS)
}

const fn xfs_error(text: &'static str) -> Format {
    linux(XFS_ERROR, text).after(XFS)
}

/// The format's `%s` is a level name from a table.
const fn btrfs(text: &'static str) -> Format {
    linux_in("fs/btrfs/super.c", OLDEST, (6, 1), text)
}

const fn btrfs_states(text: &'static str) -> Format {
    linux_in("fs/btrfs/super.c", (6, 1), (6, 1), text)
}

const fn btrfs_moved(text: &'static str) -> Format {
    linux_in("fs/btrfs/messages.c", (6, 4), NEWEST, text)
}

pub(super) static ROWS: &[Row] = &[
    row(
        "fs-read-only",
        &[
            linux(EXT4, "Remounting filesystem read-only").after(EXT4_MESSAGE),
            linux("fs/ext2/super.c", "EXT2-fs ({part}): error: |remounting filesystem read-only"),
            reported(
                "Linux 4.2 and older, fs/ext3/super.c",
                "EXT3-fs ({part}): error: remounting filesystem read-only",
            ),
            reported(GPUD_DISK, "EXT3-fs ({part}): Remounting filesystem read-only"),
            reported(GPUD_DISK, "Remounting filesystem read-only").after(XFS),
            reported(GPUD_DISK, "BTRFS: Remounting filesystem read-only"),
            linux_in("fs/btrfs/super.c", OLDEST, (6, 1), "forced readonly").after(BTRFS_INFO),
            linux_in("fs/btrfs/super.c", (6, 1), (6, 1), "forced readonly").after(BTRFS_INFO_STATES),
            linux_in("fs/btrfs/messages.c", (6, 4), NEWEST, "forced readonly").after(BTRFS_INFO),
            linux_in("fs/btrfs/messages.c", (6, 4), NEWEST, "forced readonly").after(BTRFS_INFO_STATE),
        ],
    ),
    row(
        "fs-shutdown",
        &[
            linux_in(
                XFS_SHUTDOWN,
                OLDEST,
                (5, 10),
                "Corruption of in-memory data detected.  Shutting down filesystem",
            )
            .after(XFS),
            linux_in(XFS_SHUTDOWN, OLDEST, (5, 10), "Log I/O Error Detected. Shutting down filesystem")
                .after(XFS),
            linux_in(XFS_SHUTDOWN, OLDEST, (5, 10), "I/O Error Detected. Shutting down filesystem")
                .after(XFS),
            reported(XFS_BETWEEN, "Corruption of on-disk metadata detected.  Shutting down filesystem")
                .after(XFS),
            reported(XFS_BETWEEN, "Log I/O error (0x{hex}) detected at {text}. Shutting down filesystem")
                .after(XFS),
            reported(XFS_BETWEEN, "I/O error (0x{hex}) detected at {text}. Shutting down filesystem")
                .after(XFS),
            shutdown("|Log I/O Error| (0x{hex}) detected at {text}.  Shutting down filesystem."),
            shutdown(
                "|Corruption of in-memory data| (0x{hex}) detected at {text}.  Shutting down filesystem.",
            ),
            linux_in(
                XFS_SHUTDOWN,
                (6, 1),
                NEWEST,
                "|Corruption of on-disk metadata| (0x{hex}) detected at {text}.  Shutting down filesystem.",
            )
            .after(XFS),
            shutdown("|Metadata I/O Error| (0x{hex}) detected at {text}.  Shutting down filesystem."),
            linux_in(
                XFS_SHUTDOWN,
                (6, 6),
                NEWEST,
                "|Block device removal| (0x{hex}) detected at {text}.  Shutting down filesystem.",
            )
            .after(XFS),
            linux_in(
                "fs/xfs/xfs_log.c",
                (6, 1),
                NEWEST,
                "Filesystem has been shut down due to log error (0x{hex}).",
            )
            .after(XFS),
        ],
    ),
    row(
        "fs-error",
        &[
            linux(EXT4, "EXT4-fs error (device {part}): {rest}"),
            linux(EXT4, "EXT4-fs error (device {part}) in {rest}"),
            linux(EXT4, "I/O error while writing superblock").after(EXT4_MESSAGE),
            linux("fs/ext2/super.c", "EXT2-fs ({part}): error: {rest}"),
            reported("Linux 4.2 and older, fs/ext3/super.c", "EXT3-fs error (device {part}): {rest}"),
            btrfs("BTRFS |error| (device {part}|): {rest}"),
            btrfs("BTRFS |critical| (device {part}|): {rest}"),
            btrfs_states("BTRFS |error| (device {part}|: state |{word}): {rest}"),
            btrfs_states("BTRFS |critical| (device {part}|: state |{word}): {rest}"),
            btrfs("BTRFS: error (device {part}|) in {rest}"),
            btrfs_states("BTRFS: error (device {part}|: state |{word}) in {rest}"),
            btrfs_moved("BTRFS |error| (device {part}| state |{word}): {rest}"),
            btrfs_moved("BTRFS |critical| (device {part}| state |{word}): {rest}"),
            btrfs_moved("BTRFS: error (device {part}| state |{word}) in {rest}"),
            linux("fs/xfs/xfs_log.c", "log I/O error {int}").after(XFS),
            xfs_error("Metadata corruption detected at {rest}"),
            xfs_error("Metadata |CRC error| detected at {rest}"),
            xfs_error("Corruption detected. Unmount and run xfs_repair"),
            xfs_error("Internal error {rest}"),
            linux("fs/xfs/xfs_buf.c", "metadata I/O error in {rest}").after(XFS),
            linux(
                "fs/xfs/xfs_buf.c",
                "Corruption Alert: Buffer at daddr 0x{hex} had permanent write failures!",
            )
            .after(XFS),
            linux("fs/xfs/xfs_log.c", "Corruption warning: Metadata has LSN {rest}").after(XFS),
        ],
    ),
];
