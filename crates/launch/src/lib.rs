//! Starts inside an allocation: the order of the ranks, the nodes that stay spare, and what follows when a start has ended. Pure
//! functions of texts and lists.

mod next;
mod order;

pub use next::{Cause, End, Ended, Left, Next, NodeSign, next};
pub use order::{
    Allocated, BadAddress, BadHostfile, BadTopology, Chosen, Crossings, Hostlist, MAX_ADDRESS, MAX_TOPOLOGY,
    Place, Shape, SwitchPath, Topology, choose, crossings, hostfile, order, place_of_address, replace,
    slurm_orders_itself, topology_lines, topology_yaml,
};
