//! Starts inside an allocation: the order of the ranks, the nodes that stay spare, and the files that Slurm reads for both. Pure
//! functions of texts and lists.

pub mod order;
