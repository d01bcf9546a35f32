//! Profiles and calibrations that are recorded from a node, and from its self-test.

use super::{Cli, out};

#[test]
fn a_profile_recorded_from_a_fit_node_can_be_used() {
    let cli = Cli::new("");
    let said =
        cli.said(&["profile", "record", "--id", "mine", "--simulate", "h100-sxm", "--out", "mine.toml"]);
    assert!(said.starts_with("mine.toml\ncheck: fabric.exclude: "), "{said}");
    let text = std::fs::read_to_string(cli.dir.path().join("mine.toml")).unwrap();
    assert!(text.contains("id = \"mine\"") && text.contains("nvlinks_up = 18"), "{text}");
    let bad = cli.run(&["profile", "record", "--id", "mine", "--simulate", "h100-sxm:gpu-lost@3"]);
    assert_eq!(bad.status.code(), Some(1));
    assert!(
        out(&bad).starts_with("not written: the node is not healthy\nfail     gpu-lost@3: "),
        "{}",
        out(&bad)
    );
    for id in ["h100-sxm", "Mine", "../x", ""] {
        assert_eq!(cli.code(&["profile", "record", "--id", id, "--simulate", "h100-sxm"]), Some(2), "{id}");
    }
}

/// A line of `railgate-gpu-selftest`.
fn self_test_line(gpu: u32, model: &str, test: &str, name: &str, figure: f64) -> String {
    let line = serde_json::json!({
        "gpu": format!("0000:{gpu:02x}:00.0"), "uuid": format!("GPU-{gpu}"), "model": model, "test": test, "seconds": 0.1,
        "values": "none", "measured": { name: figure },
    });
    format!("{line}\n")
}

#[test]
fn a_profile_records_the_rates_of_good_cards() {
    let cli = Cli::new("");
    let of = |gpu, rate| self_test_line(gpu, "NVIDIA H100 80GB HBM3", "gemm-rate-bf16", "rate_tflops", rate);
    let lines: String = (1..4).map(|gpu| of(gpu, 680.0 + f64::from(gpu))).collect();
    std::fs::write(cli.dir.path().join("one"), lines).unwrap();
    std::fs::write(cli.dir.path().join("two"), of(1, 690.0)).unwrap();
    let record = ["profile", "record", "--id", "mine", "--simulate", "h100-sxm"];
    let text = cli.said(&[&record[..], &["--self-test", "one", "--self-test", "two"]].concat());
    let want = "[gpus.self_test.\"gemm-rate-bf16.rate_tflops\"]\nmedian = 682.5\nlowest = 681.0\nhighest = 690.0\ngpus = 4\n";
    assert!(text.contains(want), "{text}");
    let other = self_test_line(1, "NVIDIA H200", "gemm-rate-bf16", "rate_tflops", 690.0);
    for (name, content) in [("other", other.as_str()), ("empty", ""), ("garbage", "hello\n")] {
        std::fs::write(cli.dir.path().join(name), content).unwrap();
        let refused = cli.run(&[&record[..], &["--self-test", name]].concat());
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0), "{name}");
    }
}

#[test]
fn the_factor_of_a_card_comes_from_its_self_test() {
    let cli = Cli::new("");
    let factor = |gpu| self_test_line(gpu, "NVIDIA H200", "gemm-rate-bf16", "clock_factor", 1.1);
    let without = self_test_line(2, "NVIDIA H200", "gemm-rate-bf16", "rate_tflops", 690.0);
    std::fs::write(cli.dir.path().join("lines"), factor(1) + &without).unwrap();
    let said = cli.said(&["calibrate", "--no-save", "--self-test", "lines"]);
    assert_eq!(
        said,
        "GPU-1 (NVIDIA H200): NVML's clock is 1.100 times the counted one, within 3.0 %\n\
         GPU-2: could not tell: no line gemm-rate-* has a clock_factor: cuBLASLt is not installed, or a reading failed\n"
    );
    std::fs::write(cli.dir.path().join("lines"), without).unwrap();
    assert_eq!(cli.code(&["calibrate", "--no-save", "--self-test", "lines"]), Some(3));
    assert_eq!(cli.code(&["calibrate", "--self-test", "lines", "--gpu", "1"]), Some(2));
    assert_eq!(cli.code(&["calibrate"]), Some(2));
}
