//! Network adapters: mlx5 of the kernel and of MLNX_OFED, which print the same texts.

use super::{DEVICE, Format, Helper, NEWEST, OLDEST, Row, linux, linux_in, reported, row};

/// `mlx5_core_err`, `mlx5_core_warn` and `mlx5_log`.
const MLX5: Helper = Helper {
    text: "mlx5_core {bdf}: {word}:{int}:(pid {pid}): ",
    wording: "%s:%d:(pid %d): ",
    files: &["drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.h"],
};

/// `mlx5_core_info` of the kernel, and errors of older MLNX_OFED.
const MLX5_PLAIN: Helper =
    Helper { text: "mlx5_core {bdf}: ", wording: "%s %s: %pV", files: &["drivers/base/core.c"] };

/// `netdev_err` for a device that has a parent.
const NETDEV: Helper =
    Helper { text: "{word} {bdf} {word}: ", wording: "%s %s %s%s: %pV", files: &["net/core/dev.c"] };

const MLX5_NETDEV: Helper =
    Helper { text: "mlx5_core {bdf} {word}: ", wording: "%s %s %s%s: %pV", files: &["net/core/dev.c"] };

const HEALTH: &str = "drivers/net/ethernet/mellanox/mlx5/core/health.c";
const EVENTS: &str = "drivers/net/ethernet/mellanox/mlx5/core/events.c";
const COMMAND: &str = "drivers/net/ethernet/mellanox/mlx5/core/cmd.c";

const POWERED_DOWN: &str = "Port module event[error]: module {int}, {text}, \
     |One or more network ports have been powered down due to insufficient/unadvertised power on the PCIe slot";
const MODULE_ERROR: &str = "Port module event[error]: module {int}, {rest}";

/// From this level on (warning is 4, notice 5) the firmware reports states that need no action.
const NOTICE: u8 = 5;

const fn health(text: &'static str) -> Format {
    linux(HEALTH, text).after(MLX5)
}

/// The text of the health buffer for a syndrome.
const fn syndrome(text: &'static str) -> Format {
    health(text).below_level(NOTICE)
}

pub(super) static ROWS: &[Row] = &[
    row(
        "mlx5-power",
        &[
            linux(EVENTS, "Detected insufficient power on the PCIe slot ({int}W).").after(MLX5),
            linux(EVENTS, POWERED_DOWN).after(MLX5),
            linux(EVENTS, POWERED_DOWN).after(MLX5_PLAIN),
        ],
    ),
    row(
        "mlx5-cable",
        &[linux(EVENTS, MODULE_ERROR).after(MLX5), linux(EVENTS, MODULE_ERROR).after(MLX5_PLAIN)],
    ),
    row(
        "mlx5-temperature",
        &[
            linux(EVENTS, "High temperature on sensors with bit set {rest}").after(MLX5),
            linux(EVENTS, "High temperature on sensors with bit set {rest}").after(MLX5_PLAIN),
        ],
    ),
    row(
        "mlx5-health",
        &[
            health("device's health compromised - reached miss count"),
            health("Fatal error {int} detected"),
            linux_in(HEALTH, (6, 1), NEWEST, "Health issue observed, {text}, severity(|0|) {rest}")
                .after(MLX5),
            linux_in(HEALTH, (6, 1), NEWEST, "Health issue observed, {text}, severity(|1|) {rest}")
                .after(MLX5),
            linux_in(HEALTH, (6, 1), NEWEST, "Health issue observed, {text}, severity(|2|) {rest}")
                .after(MLX5),
            linux_in(HEALTH, (6, 1), NEWEST, "Health issue observed, {text}, severity(|3|) {rest}")
                .after(MLX5),
            linux_in(HEALTH, (6, 1), NEWEST, "PCI slot is unavailable").after(MLX5),
            syndrome("synd 0x{hex}: |firmware internal error"),
            syndrome("synd 0x{hex}: |irisc not responding"),
            syndrome("synd 0x{hex}: |unrecoverable hardware error"),
            syndrome("synd 0x{hex}: |firmware CRC error"),
            syndrome("synd 0x{hex}: |ICM fetch PCI error"),
            syndrome("synd 0x{hex}: |HW fatal error|{rest}"),
            syndrome("synd 0x{hex}: |async EQ buffer overrun"),
            syndrome("synd 0x{hex}: |EQ error"),
            syndrome("synd 0x{hex}: |Invalid EQ referenced"),
            syndrome("synd 0x{hex}: |FFSER error"),
            syndrome("synd 0x{hex}: |High temperature"),
            linux_in(HEALTH, (6, 12), NEWEST, "synd 0x{hex}: |ICM fetch PCI data poisoned error")
                .after(MLX5)
                .below_level(NOTICE),
        ],
    ),
    row(
        "mlx5-command",
        &[
            linux(COMMAND, "{word}(0x{hex}) timeout. Will cause a leak of a command resource").after(MLX5),
            linux(
                COMMAND,
                "cmd[{int}]: {word}(0x{hex}) Async, timeout. Will cause a leak of a command resource",
            )
            .after(MLX5),
            reported(
                "MLNX_OFED 5.4 and older",
                "{word}(0x{hex}) timeout. Will cause a leak of a command resource",
            )
            .after(DEVICE),
        ],
    ),
    row(
        "net-timeout",
        &[
            linux_in(
                "net/sched/sch_generic.c",
                OLDEST,
                (5, 19),
                "NETDEV WATCHDOG: {part} ({word}): transmit queue {int} timed out",
            ),
            reported(
                "Linux 6.4 to 6.6, net/sched/sch_generic.c",
                "NETDEV WATCHDOG: {part} ({word}): transmit queue {int} timed out {int} ms",
            ),
            // In 6.7, and in 6.1.y since a later stable release.
            linux_in(
                "net/sched/sch_generic.c",
                (6, 1),
                NEWEST,
                "NETDEV WATCHDOG: CPU: {int}: transmit queue {int} timed out {int} ms",
            )
            .after(NETDEV),
            linux("drivers/net/ethernet/mellanox/mlx5/core/en_main.c", "TX timeout detected")
                .after(MLX5_NETDEV),
            linux(
                "drivers/net/ethernet/mellanox/mlx5/core/en/reporter_tx.c",
                "TX timeout on queue: {int}, {rest}",
            )
            .after(MLX5_NETDEV),
            linux(
                "drivers/net/ethernet/mellanox/mlx5/core/en/reporter_rx.c",
                "RX timeout on channel: {int}, {rest}",
            )
            .after(MLX5_NETDEV),
        ],
    ),
];
