//! Tests against a simulated fabric.

mod again;
mod any_input;
mod faults;
mod few_nodes;
mod healthy;
mod histories;
mod measured;
mod nccl_tests;
mod rounds;
mod sentences;
mod simulated;
mod two_faults;
