//! Reads a file that `contrib/python/railgate.py` wrote. Skipped without Python.

use std::path::Path;
use std::process::Command;

use railgate_node_report::application::{AppEventKind, ModelFlops, read};

#[test]
fn file_of_the_python_helper_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/python");
    let program = "
import time, railgate
railgate.model(name='m', params=1e9, layers=2, heads=4, head_dim=8, seq_len=16, dtype='fp8', keep_loss=True)
for n in range(100, 130):
    with railgate.waiting():
        time.sleep(0.001)
    time.sleep(0.004)
    railgate.step(n, tokens=10, loss=1.0 if n != 128 else 9.0)
railgate.step(120, tokens=10, loss=float('nan'))
with railgate.checkpoint():
    time.sleep(0.01)
railgate.step(131)
";
    let ran = Command::new("python3")
        .args(["-c", program])
        .current_dir(place)
        .env("RAILGATE_APP_DIR", dir.path().join("app"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .envs([("RANK", "5"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "8"), ("SLURM_STEP_ID", "0")])
        .env("RAILGATE_START", "2")
        .status();
    let Ok(status) = ran else { return };
    assert!(status.success());
    let bytes = std::fs::read(dir.path().join("app/0.5")).unwrap();
    let rank = read("0.5", &bytes).unwrap();
    assert_eq!((rank.rank, rank.local_rank, rank.world, rank.starts), (Some(5), Some(1), Some(8), 1));
    assert_eq!(rank.start_number, 2);
    assert_eq!((rank.steps, rank.first_number, rank.last_number, rank.redone), (32, Some(100), Some(131), 1));
    assert_eq!((rank.tokens, rank.samples, rank.checkpoints), (Some(310.0), None, 1));
    assert_eq!((rank.timed_tokens, rank.checkpoint_number), (Some(300.0), Some(129)));
    assert!(rank.checkpoint_s >= 0.01 && !rank.in_checkpoint);
    let input = rank.input_s.unwrap();
    let times = rank.step_s.unwrap();
    assert_eq!(times.count, 31);
    assert!(input >= 0.029 && times.total > input && times.min <= times.p50 && times.p99 <= times.max);
    let events: Vec<_> = rank.events.iter().map(|event| (event.what, event.step)).collect();
    let of =
        |kind| events.iter().filter(|(what, _)| *what == kind).map(|(_, step)| *step).collect::<Vec<_>>();
    assert_eq!(of(AppEventKind::Spike), [128]);
    assert_eq!(of(AppEventKind::Nan), [129]);
    assert_eq!(rank.events[1].loss, Some(9.0));
    assert_eq!((events[0].0, events.last().unwrap().0), (AppEventKind::Start, AppEventKind::End));
    let model = rank.model.unwrap();
    assert_eq!(model.rate(), "fp8");
    assert_eq!(model.flops(), Ok(ModelFlops::Token(6e9 + 12.0 * 2.0 * 32.0 * 16.0)));
    assert_eq!(rank.course.unwrap().step_s.len(), 1);
}
