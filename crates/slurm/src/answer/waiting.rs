use super::{UnixSeconds, columns, time};

/// A job that waits for nodes, from fields that users cannot write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingJob {
    /// Its id; of an array, the array's.
    pub id: u32,
    /// How many nodes Slurm shows for it: of a range, the largest number.
    pub nodes: u32,
    /// Since when it could start.
    pub eligible: UnixSeconds,
    /// Its partition, or its list of partitions.
    pub partition: String,
}

pub(crate) const WAITING_FORMAT: &str = "JobID:12,NumNodes:12,EligibleTime:20,Reason:24,Partition:200";
const WIDTHS: [usize; 4] = [12, 12, 20, 24];
/// Reasons of jobs that wait only because others use the nodes. Every other reason is of the job itself, or of a limit.
const WAITS: [&str; 2] = ["Resources", "Priority"];

/// Parses `squeue -t PENDING -O`. Jobs that wait for something else than nodes are left out.
pub(crate) fn waiting(text: &str) -> Result<Vec<WaitingJob>, String> {
    let mut found = Vec::new();
    for line in text.lines() {
        let ([id, nodes, eligible, reason], partition) = columns(line, WIDTHS);
        let Ok(id) = id.parse() else {
            let shown = railgate_text::clip(line, 80);
            return Err(format!("'{shown}' is not an id, nodes, time and reason of a job"));
        };
        // A job that waits for a time or for another job has no time, or one of the future.
        let Some(eligible) = time(eligible).filter(|_| WAITS.contains(&reason)) else { continue };
        let nodes = nodes.parse().unwrap_or(1);
        found.push(WaitingJob { id, nodes, eligible, partition: partition.trim().to_owned() });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(id: &str, nodes: &str, eligible: &str, reason: &str, partition: &str) -> String {
        format!("{id:<12}{nodes:<12}{eligible:<20}{reason:<24}{partition:<200}\n")
    }

    /// Slurm 22.05.8 and 26.05.5 print such lines; the third job begins in an hour.
    #[test]
    fn only_jobs_that_wait_for_nodes_are_listed() {
        let then = "2026-11-21T00:59:59";
        let text = line("7", "4", then, "Resources", "gpu")
            + &line("8", "2", then, "Priority", "gpu,debug")
            + &line("9", "1", "2026-11-21T01:59:59", "BeginTime", "gpu")
            + &line("13", "1", "N/A", "Dependency", "gpu")
            + &line("10", "1", then, "QOSMaxGRESPerUser", "gpu")
            + &line("11", "1", then, "ReqNodeNotAvail, UnavailableNodes:gn1", "gpu")
            + &line("12", "1", "N/A", "Resources", "gpu");
        let job = |id, nodes, partition: &str| WaitingJob {
            id,
            nodes,
            eligible: 1_795_222_799,
            partition: partition.to_owned(),
        };
        assert_eq!(waiting(&text).unwrap(), [job(7, 4, "gpu"), job(8, 2, "gpu,debug")]);
        assert_eq!(waiting("").unwrap(), []);
        assert!(waiting("slurm_load_jobs error: down\n").is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "([0-9]{1,12}| {1,24}|Resources|\n|é){0,40}") {
            let _ = waiting(&text);
        }
    }
}
