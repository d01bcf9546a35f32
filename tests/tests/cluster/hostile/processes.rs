//! Processes of a job, and their entries in /proc.

use std::time::Duration;

use anyhow::{Result, ensure};
use railgate_tests::poll;

use super::stage::{Case, Input, MINUTE, Stage};

pub(super) const INPUT: Input = Input { name: "processes", cases: CASES };

/// The sampler reads tasks from the start; with the default interval it would miss a short job.
pub(super) const WATCHFUL: &str = "[stats]\nsample = '1s'\ntask_look = '1s'\n[report]\nlive = '1s'\n";

/// Starts a Python program in the background; the script continues when the program prints `ready`.
fn python(program: &str) -> String {
    format!(
        "cat > attack.py <<'END'\nimport ctypes, os, signal, socket, sys, time\nlibc = ctypes.CDLL(None)\n\
         def ready(): open('ready', 'w').close()\n{program}\nEND\nrm -f ready\npython3 attack.py &\n\
         for n in {{1..100}}; do [ -e ready ] && break; sleep 0.05; done; [ -e ready ] || exit 9\n"
    )
}

/// Runs such a program until the sampler has read it twice, and until the job ends.
fn watched(stage: &Stage<'_>, program: &str) -> Result<()> {
    stage.during(&python(program), |id| seen(stage, id)).map(drop)
}

/// Waits until the sampler has read the job's processes, or has stopped.
fn seen(stage: &Stage<'_>, id: u32) -> Result<()> {
    let file = format!("/run/railgate/jobs/{id}/current/tasks.json");
    poll::until(MINUTE, "a reading of the sampler", || {
        Ok((stage.root_there().run(&["test", "-e", &file])?.code == 0).then_some(()))
    })
}

const CASES: &[Case] = &[
    Case {
        id: "proc-step-daemon",
        does: "names a process slurmstepd, with the title of a step of Alice's next job",
        run: |stage| {
            watched(
                stage,
                "next = int(os.environ['SLURM_JOB_ID']) + 1\nlibc.prctl(15, b'slurmstepd')\n\
                 if len(sys.argv) < 2: os.execv(sys.executable, ['slurmstepd: [%d.batch]' % next, 'attack.py', 'again'])\n\
                 libc.prctl(15, b'slurmstepd'); ready(); time.sleep(100)",
            )
        },
    },
    Case {
        id: "proc-hangs-its-reader",
        does: "names a process slurmstepd whose command line is in a page that is never delivered, so that reading it hangs",
        run: |stage| {
            // The page with the arguments is unmapped and registered with a userfaultfd that never answers.
            let program = "libc.prctl(15, b'slurmstepd')\nuffd = libc.syscall(323, 0)\n\
                 if uffd < 0: print('no userfaultfd', flush=True); ready(); time.sleep(100)\n\
                 import fcntl, struct\nfcntl.ioctl(uffd, 0xc018aa3f, struct.pack('QQQ', 0xaa, 0, 0))\n\
                 at = int(open('/proc/self/stat').read().rsplit(')', 1)[1].split()[45])\npage = at & ~4095\n\
                 fcntl.ioctl(uffd, 0xc020aa00, struct.pack('QQQQ', page, 4096, 1, 0))\n\
                 libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(4096), 4)\nready()\ntime.sleep(100)";
            stage
                .during(&python(program), |id| {
                    let reader =
                        "timeout -s KILL 1 cat /proc/$(pgrep -u rgbob -x slurmstepd)/cmdline > /dev/null";
                    let read = stage.root_there().run(&["sh", "-c", reader])?;
                    let hangs = read.code == 137 || stage.output(id).contains("no userfaultfd");
                    ensure!(hangs, "its reader does not hang: {read}");
                    seen(stage, id)
                })
                .map(drop)
        },
    },
    Case {
        id: "proc-names-with-control-characters",
        does: "names of processes, arguments and mapped files with escape sequences, newlines and U+202E",
        run: |stage| {
            watched(
                stage,
                "bad = 'libnccl-net-\\x1b[2J\\n\\u202e\\u009b31m.so'\nopen(bad, 'w').write('x' * 4096)\nimport mmap\n\
                 m = mmap.mmap(os.open(bad, os.O_RDONLY), 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)\n\
                 n = mmap.mmap(os.open(bad, os.O_RDONLY), 4096, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)\n\
                 libc.prctl(15, '\\x1b[2J\\n\\u202e'.encode()); ready(); time.sleep(100)",
            )
        },
    },
    Case {
        id: "proc-environment-with-control-characters",
        does: "an environment with NCCL and RAILGATE variables of escape sequences, newlines, 100 kB, and no equal sign",
        run: |stage| {
            watched(
                stage,
                "env = dict(os.environ, NCCL_DEBUG='\\x1b[2J\\nroot', NCCL_IB_HCA='\\u202e\\u009b', RAILGATE_SET='A' * 100000,\n\
                 RAILGATE_KEPT=','.join('NCCL_%d' % n for n in range(9999)), RAILGATE_JOB_DIR='/etc', SLURM_JOB_NAME='\\u202e\\x1b]0;x')\n\
                 if len(sys.argv) < 2: os.execve(sys.executable, ['x', 'attack.py', 'again'], env)\nready(); time.sleep(100)",
            )
        },
    },
    Case {
        id: "proc-huge-environment",
        does: "processes with 1 MiB of environment and of arguments each",
        run: |stage| {
            watched(
                stage,
                "big = ['A%d=' % n + 'x' * 100000 for n in range(8)]\nenv = dict(os.environ, **dict(b.split('=', 1) for b in big))\n\
                 if len(sys.argv) < 2:\n  for n in range(8):\n    if os.fork() == 0: os.execve(sys.executable, ['x', 'attack.py'] + big[:4], env)\n  time.sleep(100)\n\
                 ready(); time.sleep(100)",
            )
        },
    },
    Case {
        id: "proc-many",
        does: "600 processes, half of them zombies, continuously started and ended",
        run: |stage| {
            watched(
                stage,
                "for n in range(300):\n  if os.fork() == 0: time.sleep(100); os._exit(0)\n\
                 for n in range(300):\n  if os.fork() == 0: os._exit(0)\nready(); time.sleep(100)",
            )
        },
    },
    Case {
        id: "proc-ranks-that-end",
        does: "900 processes that name ranks and starts of their own, of which some end at once, some are zombies, and some stay: the sampler lists and watches a bounded number",
        run: |stage| {
            let program = "def start(n, seconds):\n  \
                 env = dict(os.environ, RANK=str(n), RAILGATE_START='9' * (n % 40))\n  \
                 return os.posix_spawn('/bin/sleep', ['sleep', str(seconds)], env)\n\
                 for n in range(300): start(n, 100)\n\
                 for n in range(300): start(300 + n, 3)\n\
                 for n in range(300): os.waitpid(start(600 + n, 0), 0)\n\
                 ready()\ntime.sleep(100)";
            stage
                .during(&python(program), |id| {
                    let file = format!("/run/railgate/jobs/{id}/current/tasks.json");
                    let listed = poll::until(MINUTE, "the end of a rank in tasks.json", || {
                        let text = stage.root_there().run(&["cat", &file])?.stdout;
                        Ok(text.contains("\"ended\"").then_some(text))
                    })?;
                    let tasks: serde_json::Value = serde_json::from_str(&listed)?;
                    let ranks = tasks["ranks"].as_array().map_or(0, Vec::len);
                    ensure!((1..=256).contains(&ranks) && listed.len() < 256 << 10, "{ranks} ranks");
                    let descriptors = "ls /proc/$(pgrep -x railgate-sampl)/fd | wc -l";
                    let count = stage.root_there().run(&["sh", "-c", descriptors])?.ok()?;
                    ensure!(count.trim().parse::<u32>()? < 200, "the sampler has {count} descriptors");
                    Ok(())
                })
                .map(drop)
        },
    },
    Case {
        id: "proc-not-dumpable",
        does: "a process that may not be dumped, so that /proc of it is root's",
        run: |stage| watched(stage, "libc.prctl(4, 0); ready(); time.sleep(100)"),
    },
    Case {
        id: "proc-stopped",
        does: "stops all its processes, so that the job looks suspended, and lets one trace its own children with ptrace",
        run: |stage| {
            watched(
                stage,
                "if os.fork() == 0: libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(100)\n\
                 if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP); time.sleep(100)\nready(); time.sleep(100)",
            )
        },
    },
    Case {
        id: "proc-in-d-state",
        does: "a process in D state: the parent of a vfork whose child sleeps",
        run: |stage| {
            // A raw system call, so that Python does not continue in the child.
            stage
                .during(
                    "cat > d.c <<'END'\n#include <unistd.h>\nint main(void) { if (vfork() == 0) { pause(); _exit(0); } return 0; }\nEND\n\
                     gcc -o d d.c || exit 8\n./d & ./d &\nsleep 0.2; grep -c '^State:.D' /proc/[0-9]*/status | grep -q ':1$' || exit 7",
                    |id| seen(stage, id),
                )
                .map(drop)
        },
    },
    Case {
        id: "proc-ignores-sigterm",
        does: "ignores SIGTERM and SIGINT, and is cancelled",
        run: |stage| {
            let id = stage.submit(&[], "trap '' TERM INT; : > begun; while :; do sleep 0.1; done")?;
            poll::until(MINUTE, "the job to begin", || Ok(stage.cluster.output("/home/rgbob/begun")))?;
            stage.bob().run(&["scancel", &id.to_string()])?;
            stage.ended(id, &["CANCELLED"])?;
            stage.bob().run(&["rm", "begun"])?.ok().map(drop)
        },
    },
    Case {
        id: "proc-stays",
        does: "leaves a process behind in a session of its own that keeps files and the working directory of user/ open",
        run: |stage| {
            stage
                .bobs(
                    "cd /run/railgate/jobs/$SLURM_JOB_ID/current/user || exit 9\n: > kept; mkdir in; cd in\n\
                     for n in {1..20}; do setsid sleep 60 8< ../kept 9> ../more.$n < /dev/null > /dev/null 2>&1 & done",
                )
                .map(drop)
        },
    },
    Case {
        id: "proc-container-root",
        does: "is root in a user namespace of its own: mounts over railgate's places, changes owners, writes to /dev/kmsg",
        run: |stage| {
            let id = stage.bobs(
                "unshare -Urm bash -c 'set +e; for at in /run/railgate /var/lib/railgate /etc/railgate /run/railgate/jobs/*/current/user /proc; do\n\
                 mount -t tmpfs none $at && chmod 777 $at && touch $at/run.json; done; chown 1 /run/railgate/jobs; mount -t proc x /proc;\n\
                 touch /etc/railgate/disable /run/railgate/disable; echo x > /dev/kmsg; mknod /dev/kmsg c 1 11; exit 0'\n\
                 unshare -Ur true && echo there; exit 0",
            )?;
            ensure!(stage.output(id).contains("there"), "no user namespaces here: {}", stage.output(id));
            Ok(())
        },
    },
    Case {
        id: "proc-false-sampler",
        does: "calls processes railgate-sampler and railgate-child with the arguments of real ones, and binds their abstract sockets",
        run: |stage| {
            watched(
                stage,
                "for name in ['railgate-sampler', 'railgate-prolog', 'railgate-child']:\n  s = socket.socket(socket.AF_UNIX)\n  s.bind('\\0' + name); s.listen(9)\n\
                 libc.prctl(15, b'railgate-child')\n\
                 if len(sys.argv) < 2: os.execv(sys.executable, ['/usr/libexec/railgate/railgate-sampler', 'attack.py', '1'])\nready(); time.sleep(100)",
            )
        },
    },
    Case {
        id: "proc-on-gpus-after-the-job",
        does: "a process that NVML still lists on a GPU when its job is over",
        run: |stage| {
            let pid = stage.bobs("setsid sleep 60 < /dev/null > /dev/null 2>&1 & echo $! > holder")?;
            let _ = pid;
            let holder = stage.cluster.output("/home/rgbob/holder").unwrap_or_default();
            let holder: u32 = holder.trim().parse()?;
            // As with a driver that releases the GPU late: the process has already exited.
            stage.cluster.hardware(&stage.node)?.hold(3, holder, 1024)?;
            stage.bobs("true")?;
            stage.cluster.hardware(&stage.node)?.release(holder)?;
            std::thread::sleep(Duration::ZERO);
            Ok(())
        },
    },
];
