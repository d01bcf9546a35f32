//! The starts of `railgate launch`, as it wrote them on the node of the batch script. Self-reported: they are shown, and count restarts of
//! their own job.

use std::path::Path;

use railgate_child::Task;
use railgate_node_report::{LAUNCH_FILE, Launched};
use railgate_text::{clip, printable};

use crate::user_file::{ask, asked, read_if_present};

const READ: &str = "read-launched";

/// Runs in a child, as everything that reads files of a job's owner.
pub(crate) const TASK: Task = Task::new(READ, task);

/// Largest file that is read, bytes: more than 100 starts of 1,024 nodes.
const MOST_BYTES: u64 = 1 << 20;
/// Starts that are kept, the newest ones.
const MOST_STARTS: usize = 64;
/// Nodes that a start leaves out, and names of an order, that are kept.
const MOST_NODES: usize = 1024;
/// Longest text, characters.
const LONGEST: usize = 300;
/// Longest host list, characters.
const LONGEST_LIST: usize = 4096;

/// The starts of the job, printable and within limits; `None` if launch has left none here. `run`: [`crate::Places::run`].
pub fn launched(run: &Path, job: u32, uid: u32) -> Option<Launched> {
    ask(READ, run, job, uid).unwrap_or_else(|why| {
        tracing::warn!(job, "the starts of railgate launch are unknown: {why}");
        None
    })
}

fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let (dir, uid) = asked(input)?;
    let bytes = read_if_present(&dir, uid, LAUNCH_FILE, MOST_BYTES).map_err(|why| why.to_string())?;
    let found = bytes.map(|bytes| parse(&bytes)).transpose()?;
    serde_json::to_vec(&found).map_err(|why| why.to_string())
}

fn parse(bytes: &[u8]) -> Result<Launched, String> {
    let mut found: Launched = serde_json::from_slice(bytes).map_err(|why| why.to_string())?;
    let short = |text: &mut String, most: usize| *text = clip(&printable(text), most);
    found.starts.drain(..found.starts.len().saturating_sub(MOST_STARTS));
    for start in &mut found.starts {
        start.order.truncate(MOST_NODES);
        start.left_out.truncate(MOST_NODES);
        for list in [&mut start.nodes, &mut start.spares] {
            short(list, LONGEST_LIST);
        }
        let words = start.cause.iter_mut().chain(&mut start.why).chain(&mut start.order);
        let out = start.left_out.iter_mut().flat_map(|out| [&mut out.node, &mut out.why]);
        words.chain(out).for_each(|text| short(text, LONGEST));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_writes_is_cut_and_made_printable() {
        let starts: Vec<String> = (0..100)
            .map(|number| {
                format!(r#"{{"number":{number},"why":"\u001b[2J{}","nodes":"gn1"}}"#, "x".repeat(5000))
            })
            .collect();
        let text = format!(r#"{{"restarts":3,"starts":[{}]}}"#, starts.join(","));
        let found = parse(text.as_bytes()).unwrap();
        assert_eq!((found.starts.len(), found.starts[0].number), (MOST_STARTS, 36));
        let why = found.starts[0].why.as_deref().unwrap();
        assert!(why.chars().count() <= LONGEST && !why.contains('\u{1b}'), "{why}");
        assert!(parse(b"{").is_err() && parse(b"7").is_err());
        assert_eq!(parse(b"{}").unwrap(), Launched::default());
    }
}
